//go:build unix

package launch

import (
	"bytes"
	"encoding/binary"
	"os"

	"github.com/tutti-go/tutti/internal/vars"
)

// An exitRecord is a memory file that all ranks inherit. From it a rank learns for certain that
// another rank has ended. A broken connection would only show that the other rank cannot be
// reached. The layout:
//
//	0           vars.ExitsMagic (16)
//	16 + 8 r    the ID of the process that has joined as rank r, written by that process (4)
//	20 + 8 r    the ID of the process that was started as rank r, written once it has ended (4)
//
// Rank r is known to be dead if both numbers are equal, and not 0. They differ if the launcher
// started a script that runs the rank as its child. The end of the script does not mean that the
// rank has ended.
//
// In a job that starts ranks while it runs, r is the number of a process, not a rank. Each start
// has its own entry, so that the end of one process is never taken for the end of another.
type exitRecord struct{ file *os.File }

// newExitRecord returns the record of a job of n ranks. On a system without memory files it returns
// nil, and the job runs without a record.
func newExitRecord(n int) *exitRecord {
	f, err := memoryFile("exits")
	if err != nil {
		return nil
	}
	_, err = f.WriteAt([]byte(vars.ExitsMagic), 0)
	if err == nil {
		err = f.Truncate(int64(vars.ExitsSize(n)))
	}
	if err != nil {
		f.Close()
		return nil
	}
	return &exitRecord{f}
}

// inherited returns the file that a rank inherits, or nil if the job has no record.
func (e *exitRecord) inherited() *os.File {
	if e == nil {
		return nil
	}
	return e.file
}

// grow makes room for n entries. If that fails, the ends of processes without an entry are not
// recorded.
func (e *exitRecord) grow(n int) {
	if e != nil {
		e.file.Truncate(int64(vars.ExitsSize(n)))
	}
}

// add records that the process of a rank has ended, and reports whether the rank is now known to be
// dead. If the write fails, the other ranks do not learn of the end.
func (e *exitRecord) add(rank, pid int) (dead bool) {
	if e == nil {
		return false
	}
	at, id := int64(vars.ExitsSize(rank)), binary.LittleEndian.AppendUint32(nil, uint32(pid))
	e.file.WriteAt(id, at+4)
	var joined [4]byte
	_, err := e.file.ReadAt(joined[:], at)
	return err == nil && bytes.Equal(joined[:], id)
}

// addElsewhere records that a rank on another host is dead.
func (e *exitRecord) addElsewhere(rank, pid int) {
	if e != nil {
		id := binary.LittleEndian.AppendUint32(nil, uint32(pid))
		e.file.WriteAt(append(id, id...), int64(vars.ExitsSize(rank)))
	}
}

// close releases the file.
func (e *exitRecord) close() {
	if e != nil {
		e.file.Close()
	}
}
