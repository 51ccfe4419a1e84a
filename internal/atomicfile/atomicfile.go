// Package atomicfile replaces files. It knows nothing of what is in them.
package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
)

// beside are the names of files that are to take another's place, in its folder.
const beside = ".new-*"

// Write writes a file so that a reader sees the old one or all of the new one, also
// when the process ends at any moment; it does not say that either survives the
// machine's end. The file is readable for all. When it fails, the old one stays.
func Write(file string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(file), beside)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// Check reports why Write would fail; nil where it would not. It changes nothing.
func Check(file string) error {
	if info, err := os.Stat(file); err == nil && info.IsDir() {
		return errors.New("this is a folder")
	}
	f, err := os.CreateTemp(filepath.Dir(file), beside)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}
