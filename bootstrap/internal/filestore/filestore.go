// Package filestore lets the ranks of a job meet in a directory that all of their hosts share, such
// as a home directory on NFS. It needs no launcher: a loop of ssh commands may start the ranks.
//
// Every rank writes one file in the directory, and reads those of others. In a job with the name
// NAME, the file of rank R is NAME.R:
//
//	rank      text                              meaning
//	not 0     1 NONCE -                         this run of the rank waits for rank 0's value
//	0         1 TOKEN VALUE NONCE [NONCE ...]   the value, for these runs of ranks 1, 2, ...
//	not 0     1 NONCE TOKEN                     the rank has read the value
//
// An earlier job that failed may have left files. A rank accepts only a value that is for its own
// nonce, which is random. Rank 0 writes its file again when a nonce has changed, and is finished
// when all ranks show its token, which is random, too. It then removes all files. A file is written
// under another name and then renamed, so nobody reads a part of it.
//
// Nothing tells a rank that a file on a network file system has changed, so ranks poll.
package filestore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// A Directory is one rank's view of the directory. One goroutine uses it.
type Directory struct {
	root       *os.Root // so that nobody can put another directory in its place
	name       string   // of the job
	rank, size int
	own        string // the nonce, or rank 0's token
	written    string // the text that this rank's file has now, or ""
}

// Open returns the view of a rank in the job with the given name, in the directory at path. It
// makes the directory if only its last element is missing. Other users must not be able to write in
// the directory, because they could replace the value. The name must be valid as the name of a
// file. Close ends the use of the directory.
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
	return &Directory{root: root, name: name, rank: rank, size: size, own: rand.Text()}, nil
}

// Close closes the directory.
func (d *Directory) Close() error { return d.root.Close() }

// Exchange gives rank 0's value to all ranks. On rank 0 it returns when all ranks have read the
// value. On another rank it returns when the rank has read the value, which rank 0 writes when all
// ranks have called Exchange. The value has neither spaces nor newlines. The error after the end of
// ctx names the ranks that did not come.
func (d *Directory) Exchange(ctx context.Context, value string) (string, error) {
	step := d.follow
	if d.rank == 0 {
		if value == "" || strings.ContainsAny(value, " \n") {
			return "", fmt.Errorf("value %q: want a value without spaces and newlines", value)
		}
		step = func() (string, string, error) { return d.lead(value) }
	}
	pause := minPause
	for {
		got, waiting, err := step()
		if err == nil && got != "" {
			return got, nil
		}
		if err == nil {
			select {
			case <-ctx.Done():
				err = fmt.Errorf("%s: %w", waiting, ctx.Err())
			case <-time.After(pause):
			}
		}
		if err != nil {
			d.remove()
			return "", err
		}
		pause = min(2*pause, maxPause)
	}
}

// A rank polls at intervals that double from minPause to maxPause.
const (
	minPause = 2 * time.Millisecond
	maxPause = 200 * time.Millisecond
)

// lead is one poll of rank 0. It returns the value once all ranks have read it, and otherwise for
// which ranks rank 0 waits.
func (d *Directory) lead(value string) (got, waiting string, err error) {
	var nonces, absent, unread []string
	for r := 1; r < d.size; r++ {
		fields, err := d.readFile(r)
		switch {
		case err != nil:
			return "", "", err
		case len(fields) != 3:
			absent = append(absent, strconv.Itoa(r))
			continue
		case fields[2] != d.own:
			unread = append(unread, strconv.Itoa(r))
		}
		nonces = append(nonces, fields[1])
	}
	if len(absent) > 0 {
		return "", fmt.Sprintf("no file %s of %s", d.path(d.name+".RANK"), listRanks(absent)), nil
	}
	if err := d.write(append([]string{version, d.own, value}, nonces...)); err != nil {
		return "", "", err
	}
	if len(unread) > 0 {
		return "", fmt.Sprintf("%s not read by %s, whose files may be of an earlier job", d.path(d.file(0)), listRanks(unread)), nil
	}
	for r := range d.size {
		d.root.Remove(d.file(r)) // a file that stays does not deceive the next job
	}
	return value, "", nil
}

// listRanks lists ranks for an error. It names the first few.
func listRanks(ranks []string) string {
	word, more := "ranks ", ""
	if len(ranks) == 1 {
		word = "rank "
	}
	if len(ranks) > maxNamed {
		ranks, more = ranks[:maxNamed], fmt.Sprintf(" and %d more", len(ranks)-maxNamed)
	}
	return word + strings.Join(ranks, ", ") + more
}

// maxNamed is the maximum number of ranks that an error names.
const maxNamed = 8

// follow is one poll of another rank. It returns the value once rank 0 has written it for this run
// of the rank.
func (d *Directory) follow() (got, waiting string, err error) {
	if err := d.write([]string{version, d.own, "-"}); err != nil {
		return "", "", err
	}
	fields, err := d.readFile(0)
	switch {
	case err != nil:
		return "", "", err
	case len(fields) == 0:
		return "", "no file " + d.path(d.file(0)) + ": rank 0 or another rank has not come", nil
	case len(fields) != 2+d.size || fields[2+d.rank] != d.own:
		return "", d.path(d.file(0)) + " is not for this run: rank 0 or another rank has not come", nil
	}
	if err := d.write([]string{version, d.own, fields[1]}); err != nil {
		return "", "", err
	}
	return fields[2], "", nil
}

// write writes this rank's file, unless it has that text already. If another process has written
// the file meanwhile, write returns an error.
func (d *Directory) write(fields []string) error {
	text := strings.Join(fields, " ") + "\n"
	if d.written != "" {
		now, err := d.readFile(d.rank)
		if err != nil {
			return err
		}
		if len(now) > 1 && now[1] != d.own {
			return fmt.Errorf("%s: another process has replaced it: give each job on the directory another name (TUTTI_JOB), and each process another rank", d.path(d.file(d.rank)))
		}
		if len(now) > 0 && d.written == text {
			return nil
		}
	}
	temp := d.name + ".tmp" + rand.Text()
	err := d.root.WriteFile(temp, []byte(text), 0o600)
	if err == nil {
		err = d.root.Rename(temp, d.file(d.rank))
	}
	if err != nil {
		d.root.Remove(temp)
		return err
	}
	d.written = text
	return nil
}

// version is the first field of every file. Files of another version are ignored.
const version = "1"

// readFile returns the fields of a rank's file, or none if there is no such file, or one of another
// version or form.
func (d *Directory) readFile(rank int) ([]string, error) {
	f, err := d.root.Open(d.file(rank))
	var text []byte
	if err == nil {
		text, err = io.ReadAll(io.LimitReader(f, int64(maxFixed+maxNonce*d.size)))
		f.Close()
	}
	if errors.Is(err, fs.ErrNotExist) || isReplaced(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	line, whole := strings.CutSuffix(string(text), "\n")
	fields := strings.Split(line, " ")
	if !whole || fields[0] != version || len(fields) < 3 {
		return nil, nil
	}
	return fields, nil
}

// A file has at most maxFixed bytes and maxNonce bytes for each rank.
const (
	maxFixed = 4 << 10
	maxNonce = 64
)

// file returns the name of a rank's file.
func (d *Directory) file(rank int) string { return d.name + "." + strconv.Itoa(rank) }

// path returns the path of a file, for errors.
func (d *Directory) path(file string) string { return filepath.Join(d.root.Name(), file) }

// remove removes this rank's file, so that it does not mislead users.
func (d *Directory) remove() {
	if now, err := d.readFile(d.rank); err == nil && len(now) > 1 && now[1] == d.own {
		d.root.Remove(d.file(d.rank))
	}
}
