//go:build unix

package bootstrap

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/tutti-go/tutti/internal/vars"
)

// record returns a file as a launcher makes it: the magic, and zeroes up to the given size.
func record(t *testing.T, magic string, size int) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "record"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	f.WriteString(magic)
	if err := f.Truncate(int64(size)); err != nil {
		t.Fatal(err)
	}
	return f
}

func exitsOf(t *testing.T, ranks int) *os.File {
	t.Helper()
	return record(t, vars.ExitsMagic, vars.ExitsSize(ranks))
}

// A rank reads the record, and has no need to write it.
func TestARankHasEndedOnceTheRecordHasIt(t *testing.T) {
	f := exitsOf(t, 3)
	readOnly, err := os.Open(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer readOnly.Close()
	exited := openExits(int(readOnly.Fd()), upTo(3), false)
	if exited == nil {
		t.Fatal("the record was not accepted")
	}
	for r := -1; r < 4; r++ {
		if exited(r) {
			t.Errorf("rank %d has ended before anything was recorded", r)
		}
	}
	f.WriteAt([]byte{1}, int64(vars.ExitsSize(1)))
	if !exited(1) || exited(0) || exited(2) {
		t.Errorf("got %v, %v and %v for ranks 0 to 2, want only rank 1", exited(0), exited(1), exited(2))
	}
}

func TestAProcessRecordsThatItHasJoined(t *testing.T) {
	f := record(t, vars.JoinedMagic, vars.JoinedSize)
	writeJoined(int(f.Fd()))
	want := binary.LittleEndian.AppendUint32([]byte(vars.JoinedMagic), uint32(os.Getpid()))
	if got, err := os.ReadFile(f.Name()); err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %q and error %v, want %q", got, err, want)
	}
}

func TestAnotherFileIsNoRecordAndIsNotWritten(t *testing.T) {
	other := record(t, "some other file ", vars.ExitsSize(3))
	if openExits(int(other.Fd()), upTo(3), false) != nil || openExits(int(exitsOf(t, 4).Fd()), upTo(3), false) != nil || openExits(999, upTo(3), false) != nil {
		t.Error("a descriptor that is no record of this job was accepted")
	}
	for _, f := range []*os.File{record(t, "some other file", vars.JoinedSize), record(t, vars.JoinedMagic, vars.JoinedSize+1), exitsOf(t, 4)} {
		before, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		writeJoined(int(f.Fd()))
		if after, err := os.ReadFile(f.Name()); err != nil || !bytes.Equal(after, before) {
			t.Errorf("the file was written: got %q and error %v, want %q", after, err, before)
		}
	}
	writeJoined(999)
}

// The record of a job that grows has an entry for each process, whatever its rank.
func TestTheEntriesOfAGrowingRecordAreThoseOfTheProcesses(t *testing.T) {
	f := exitsOf(t, 6)
	exited := openExits(int(f.Fd()), []int{4, 1}, true)
	if exited == nil {
		t.Fatal("the record was not accepted")
	}
	f.WriteAt([]byte{1}, int64(vars.ExitsSize(4)))
	if !exited(0) || exited(1) {
		t.Errorf("got %v for rank 0 and %v for rank 1, want true and false", exited(0), exited(1))
	}
	if openExits(int(f.Fd()), []int{6, 1}, true) != nil {
		t.Error("a record that has no entry of the process was accepted")
	}
}
