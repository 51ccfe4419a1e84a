package launch

import (
	"os"
	"testing"

	"github.com/tutti-go/tutti/internal/vars"
)

// A rank must not be able to record the end of another rank, which may be alive.
func TestOnlyTheLauncherWritesTheRecordOfEnds(t *testing.T) {
	e := newExitRecord(1)
	if e == nil {
		t.Fatal("no record")
	}
	defer e.close()
	ranks := e.inherited()
	if _, err := ranks.WriteAt([]byte{1}, int64(vars.ExitsSize(0))); err == nil {
		t.Error("a rank has written the record")
	}
	if err := ranks.Truncate(0); err == nil {
		t.Error("a rank has truncated the record")
	}
	e.grow(3)
	e.add(2)
	for r, want := range []byte{0, 0, 1} {
		got := make([]byte, 1)
		if _, err := ranks.ReadAt(got, int64(vars.ExitsSize(r))); err != nil || got[0] != want {
			t.Errorf("rank %d: got %v and error %v, want %v", r, got, err, want)
		}
	}
}

func TestAProcessThatHasNotJoinedIsNotKnownToBeDead(t *testing.T) {
	j, err := newJoinedFile()
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if j.by(os.Getpid()) {
		t.Error("a process has joined before anything was written")
	}
	j.WriteAt([]byte{7, 1, 0, 0}, int64(len(vars.JoinedMagic)))
	if !j.by(0x107) || j.by(7) {
		t.Errorf("got %v for the process that has joined and %v for another, want true and false", j.by(0x107), j.by(7))
	}
}
