// Package atomicfile replaces files. It knows nothing of what is in them.
package atomicfile

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// beside is how names of files begin that are to take another's place, in its folder.
const beside = ".new-"

// Write replaces a file, so that a reader sees the old one or all of the new one, also
// when the process ends at any moment, and the old one stays when it fails; it does not
// say that either survives the machine's end. A link stays one, and what it leads to is
// replaced; a file keeps its permissions, and its owner and group where this process may
// give it to them, and a new one has the permissions that the umask leaves. What cannot
// be replaced is written to where it is: a device, and a file where the system refuses to
// have another in its place, as it does for one that is mounted by itself, or is another
// user's in a folder like /tmp. A reader may then see a part, and what is left is cut
// short when writing fails or the process ends in it. Pipes and sockets are refused.
func Write(file string, text []byte) error { return write(file, text, os.Rename) }

func write(file string, text []byte, rename func(from, to string) error) error {
	to, old, err := target(file)
	if err != nil {
		return failed(file, err)
	}
	if old != nil && !old.Mode().IsRegular() {
		return failed(file, inPlace(to, text))
	}
	err = replace(to, old, text, rename)
	if old == nil || !refused(err) {
		return failed(file, err)
	}
	if again := inPlace(to, text); again != nil {
		return failed(file, errors.Join(bare(err), bare(again)))
	}
	return nil
}

// Check reports why Write would fail, as far as can be told without trying it, which
// is not all: that a folder takes a new file does not mean that it lets go of the old
// one. It changes nothing.
func Check(file string) error {
	to, old, err := target(file)
	if err != nil {
		return failed(file, err)
	}
	if old != nil && !old.Mode().IsRegular() {
		return failed(file, opens(to))
	}
	f, err := create(to, old)
	if err != nil {
		if old != nil && refused(err) && opens(to) == nil {
			return nil
		}
		return failed(file, err)
	}
	return failed(file, errors.Join(f.Close(), os.Remove(f.Name())))
}

// target is what is to be written, behind all links, and what is there; nil for nothing.
func target(file string) (to string, old fs.FileInfo, err error) {
	switch old, err = os.Stat(file); {
	case errors.Is(err, fs.ErrNotExist):
		to, err = behind(file)
		return to, nil, err
	case err != nil:
		return "", nil, err
	case old.IsDir():
		return "", nil, errors.New("this is a folder")
	case old.Mode()&fs.ModeDevice != 0:
		return file, old, nil
	case !old.Mode().IsRegular():
		return "", nil, errors.New("this is neither a file nor a device")
	}
	to, err = filepath.EvalSymlinks(file)
	return to, old, err
}

// behind is where a link leads that leads to nothing yet, and any other name itself. A
// link's `..` is above the folder that the link is in, not above a link to that folder.
func behind(file string) (string, error) {
	const mostLinks = 40 // as Linux follows
	for range mostLinks {
		to, err := os.Readlink(file)
		if err != nil {
			return file, nil // no link
		}
		if !filepath.IsAbs(to) {
			dir, _ := filepath.Split(file)
			to = dir + to // filepath.Join would take each `..` for the end of what is before it
		}
		dir, name := filepath.Split(to)
		if dir, err = filepath.EvalSymlinks(dir); err != nil {
			return "", err
		}
		file = filepath.Join(dir, name)
	}
	return "", errors.New("too many links")
}

// replace puts a new file in the place of another, or of nothing.
func replace(to string, old fs.FileInfo, text []byte, rename func(from, to string) error) error {
	f, err := create(to, old)
	if err != nil {
		return err
	}
	if old != nil {
		giveTo(f, old)
	}
	_, err = f.Write(text)
	if old != nil {
		err = errors.Join(err, f.Chmod(old.Mode().Perm()))
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = rename(f.Name(), to)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// create makes a file beside to. One that is to take old's place is its owner's alone
// until it has old's permissions, for old may be; where there is nothing yet the umask
// counts, which os.CreateTemp would not heed.
func create(to string, old fs.FileInfo) (f *os.File, err error) {
	mode := fs.FileMode(0o666)
	if old != nil {
		mode = 0o600
	}
	for range 100 {
		name := filepath.Join(filepath.Dir(to), beside+strconv.FormatUint(rand.Uint64(), 36))
		if f, err = os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode); !errors.Is(err, fs.ErrExist) {
			break
		}
	}
	return f, err
}

// refused reports whether the system lets nothing take a file's place.
func refused(err error) bool {
	return errors.Is(err, syscall.EBUSY) || errors.Is(err, syscall.EROFS) || errors.Is(err, fs.ErrPermission)
}

func inPlace(file string, text []byte) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

func opens(file string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// failed names the file that was meant, and not one beside it.
func failed(file string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: "write", Path: file, Err: bare(err)}
}

// bare is an error without the names of files.
func bare(err error) error {
	var path *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &path):
		return path.Err
	case errors.As(err, &link):
		return link.Err
	}
	return err
}
