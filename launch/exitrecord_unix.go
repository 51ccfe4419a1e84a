//go:build unix

package launch

import (
	"encoding/binary"
	"errors"
	"os"

	"github.com/tutti-go/tutti/internal/vars"
)

// An exitRecord is a memory file that all ranks inherit and only this process writes. From it a rank
// learns for certain that another rank has ended. A broken connection would only show that the
// other rank cannot be reached. The layout:
//
//	0        vars.ExitsMagic (16)
//	16 + r   1 once rank r is known to be dead (1)
//
// Rank r is known to be dead if the process that this process has started as rank r has ended, and
// that very process had joined; see joinedFile. Otherwise a script may run the rank as its child.
// The end of the script does not mean that the rank has ended.
//
// In a job that starts ranks while it runs, r is the number of a process, not a rank. Each start
// has its own entry, so that the end of one process is never taken for the end of another.
type exitRecord struct {
	file  *os.File
	ranks *os.File // the same file, open for reading only; the ranks inherit it
}

// newExitRecord returns the record of a job of n ranks. On a system without memory files it returns
// nil, and the job runs without a record.
func newExitRecord(n int) *exitRecord {
	f, err := memoryFile("exits")
	if err != nil {
		return nil
	}
	e := &exitRecord{file: f}
	_, err = f.WriteAt([]byte(vars.ExitsMagic), 0)
	if err == nil {
		err = f.Truncate(int64(vars.ExitsSize(n)))
	}
	if err == nil {
		e.ranks, err = readOnly(f)
	}
	if err != nil {
		f.Close()
		return nil
	}
	return e
}

// inherited returns the file that a rank inherits, or nil if the job has no record.
func (e *exitRecord) inherited() *os.File {
	if e == nil {
		return nil
	}
	return e.ranks
}

// grow makes room for n entries. If that fails, the ends of processes without an entry are not
// recorded.
func (e *exitRecord) grow(n int) {
	if e != nil {
		e.file.Truncate(int64(vars.ExitsSize(n)))
	}
}

// add records that a rank is dead. If the write fails, the other ranks do not learn of it.
func (e *exitRecord) add(rank int) {
	if e != nil {
		e.file.WriteAt([]byte{1}, int64(vars.ExitsSize(rank)))
	}
}

// close releases the file.
func (e *exitRecord) close() {
	if e != nil {
		e.file.Close()
		e.ranks.Close()
	}
}

// A joinedFile is a memory file of one process. The process, or a child of it that runs the rank,
// writes its own id into it when it joins; see vars.JoinedMagic. No other rank has the file.
type joinedFile struct{ *os.File }

// newJoinedFile returns an empty file.
func newJoinedFile() (*joinedFile, error) {
	f, err := memoryFile("joined")
	if err != nil {
		return nil, err
	}
	if _, err = f.WriteAt(append([]byte(vars.JoinedMagic), 0, 0, 0, 0), 0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &joinedFile{f}, nil
}

// by reports whether the process with the given id has joined.
func (j *joinedFile) by(pid int) bool {
	var id [4]byte
	_, err := j.ReadAt(id[:], int64(len(vars.JoinedMagic)))
	return err == nil && binary.LittleEndian.Uint32(id[:]) == uint32(pid)
}
