//go:build unix

package bootstrap

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/tutti-go/tutti/internal/vars"
)

// record returns a record of exits for n ranks, which the caller writes as a launcher does.
func record(t *testing.T, n int) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "exits"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	f.WriteString(vars.ExitsMagic)
	if err := f.Truncate(int64(vars.ExitsSize(n))); err != nil {
		t.Fatal(err)
	}
	return f
}

// TestARankHasEndedWhenTheProcessThatJoinedHas checks that only the end of the process that joined
// counts. A script may run the rank as its child, and end before the child.
func TestARankHasEndedWhenTheProcessThatJoinedHas(t *testing.T) {
	f := record(t, 3)
	number := func(at int64, n int) { f.WriteAt(binary.LittleEndian.AppendUint32(nil, uint32(n)), at) }
	exited := openExits(int(f.Fd()), 1, upTo(3), false)
	if exited == nil {
		t.Fatal("the record was not accepted")
	}
	for r := -1; r < 4; r++ {
		if exited(r) {
			t.Errorf("rank %d has ended before anything was recorded", r)
		}
	}
	number(int64(vars.ExitsSize(1))+4, os.Getpid())
	number(int64(vars.ExitsSize(0))+4, 77) // the end of a process that has not joined
	if !exited(1) || exited(0) {
		t.Errorf("got %v for rank 1 and %v for rank 0, want true and false", exited(1), exited(0))
	}
	number(int64(vars.ExitsSize(0)), 78) // the end of the process that has joined
	if exited(0) {
		t.Error("the end of a script counts as the end of the rank that it runs")
	}
}

func TestAnotherFileIsNoRecordAndIsNotWritten(t *testing.T) {
	f := record(t, 3)
	f.WriteAt([]byte("other"), 0)
	if openExits(int(f.Fd()), 1, upTo(3), false) != nil || openExits(int(record(t, 4).Fd()), 1, upTo(3), false) != nil || openExits(999, 1, upTo(3), false) != nil {
		t.Error("a descriptor that is no record of this job was accepted")
	}
	b := make([]byte, vars.ExitsSize(3)-len(vars.ExitsMagic))
	if f.ReadAt(b, int64(len(vars.ExitsMagic))); string(b) != string(make([]byte, len(b))) {
		t.Errorf("the file was written: %x", b)
	}
}

// The record of a job that grows has an entry for each process, whatever its rank.
func TestTheEntriesOfAGrowingRecordAreThoseOfTheProcesses(t *testing.T) {
	f := record(t, 6)
	exited := openExits(int(f.Fd()), 0, []int{4, 1}, true)
	if exited == nil {
		t.Fatal("the record was not accepted")
	}
	f.WriteAt(binary.LittleEndian.AppendUint32(nil, uint32(os.Getpid())), int64(vars.ExitsSize(4))+4)
	if !exited(0) || exited(1) {
		t.Errorf("got %v for rank 0 and %v for rank 1, want true and false", exited(0), exited(1))
	}
	if openExits(int(f.Fd()), 0, []int{6, 1}, true) != nil {
		t.Error("a record that has no entry of the process was accepted")
	}
}
