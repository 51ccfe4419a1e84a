// Package filestore keeps the texts of the ranks of a job in a directory that all of their hosts
// share, such as a home directory on NFS. It does not know what the texts mean.
//
// In a job with the name NAME, the file NAME.R holds the text of rank R and a newline. A file is
// written under another name and then renamed, so that no rank reads a part of it.
//
// Ranks poll, because a network file system does not report changes of a file.
package filestore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"
)

// A Directory is one rank's view of the directory. One goroutine uses it.
type Directory struct {
	root  *os.Root // keeps referring to the directory, even if another one is put at its path
	name  string   // the job's name
	rank  int
	texts []string      // the result of the last Next
	pause time.Duration // the time before the next poll
}

// Open returns the view of a rank in the job with the given name, in the directory at path. It
// makes the directory if only its last element is missing. Other users must not be able to write in
// the directory, because they could replace the value. The name must be valid as the name of a
// file. The caller must call Close.
func Open(path, name string, rank, size int) (*Directory, error) {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	info, err := root.Stat(".")
	if err == nil {
		err = refuseOthers(info)
	}
	if err != nil {
		root.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &Directory{root: root, name: name, rank: rank, texts: make([]string, size)}, nil
}

// Close closes the directory.
func (d *Directory) Close() error { return d.root.Close() }

// Next reads the texts: on rank 0 those of all ranks, and on another rank its own and rank 0's.
// Each call except the first pauses before it reads.
func (d *Directory) Next(ctx context.Context) ([]string, error) {
	if d.pause > 0 {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(d.pause):
		}
	}
	d.pause = min(max(minPause, 2*d.pause), maxPause)
	for r := range d.texts {
		if d.rank != 0 && r != 0 && r != d.rank {
			continue
		}
		var err error
		if d.texts[r], err = d.read(r); err != nil {
			return nil, err
		}
	}
	return d.texts, nil
}

// A rank polls at intervals that double from minPause to maxPause.
const (
	minPause = 2 * time.Millisecond
	maxPause = 200 * time.Millisecond
)

// read returns a rank's text, or "" if the file does not exist or is incomplete.
func (d *Directory) read(rank int) (string, error) {
	f, err := d.root.Open(d.file(rank))
	var text []byte
	if err == nil {
		text, err = io.ReadAll(io.LimitReader(f, int64(maxFixed+maxNonce*len(d.texts))))
		f.Close()
	}
	if errors.Is(err, fs.ErrNotExist) || isReplaced(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	line, whole := strings.CutSuffix(string(text), "\n")
	if !whole {
		return "", nil
	}
	return line, nil
}

// A file has at most maxFixed bytes and maxNonce bytes for each rank.
const (
	maxFixed = 4 << 10
	maxNonce = 64
)

// Write writes this rank's file.
func (d *Directory) Write(_ context.Context, text string) error {
	temp := d.name + ".tmp" + rand.Text()
	err := d.root.WriteFile(temp, []byte(text+"\n"), 0o600)
	if err == nil {
		err = d.root.Rename(temp, d.file(d.rank))
	}
	if err != nil {
		d.root.Remove(temp)
	}
	return err
}

// Remove removes the files of some ranks. It returns the errors of files that stay.
func (d *Directory) Remove(_ context.Context, ranks ...int) error {
	var errs []error
	for _, r := range ranks {
		if err := d.root.Remove(d.file(r)); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// file returns the name of a rank's file.
func (d *Directory) file(rank int) string { return d.name + "." + strconv.Itoa(rank) }
