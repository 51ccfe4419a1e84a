package leak

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// A permanent leak is detected by comparing two snapshots. The wait for it is not tested, because
// the test would take as long as the whole timeout.
func TestGoroutineThatStaysIsNamed(t *testing.T) {
	before := stacks()
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() { defer close(ended); <-stop }()
	got := added(before, stacks())
	close(stop)
	<-ended
	if len(got) != 1 || !strings.Contains(got[0], "TestGoroutineThatStaysIsNamed") {
		t.Errorf("got %q, want the one goroutine that this test started", got)
	}
	if left := waitUntilNone(func() []string { return added(before, stacks()) }); len(left) > 0 {
		t.Errorf("got %q, want nothing once it has ended", left)
	}
}

func TestDescriptorThatStaysIsNamed(t *testing.T) {
	before := descriptors()
	if before == nil {
		// Reason: only Linux lists a process's descriptors in /proc.
		t.Skip("no /proc/self/fd on this system")
	}
	f, err := os.Open("leak.go")
	if err != nil {
		t.Fatal(err)
	}
	got := added(before, descriptors())
	f.Close()
	if len(got) != 1 || !strings.HasSuffix(got[0], "leak.go") {
		t.Errorf("got %q, want leak.go", got)
	}
	if left := added(before, descriptors()); len(left) > 0 {
		t.Errorf("got %q, want nothing once it is closed", left)
	}
}

func TestFileThatStaysInSharedMemoryIsNamed(t *testing.T) {
	before := sharedMemory()
	f, err := os.CreateTemp("/dev/shm", "tutti-leak-")
	if err != nil {
		// Reason: only Linux has /dev/shm.
		t.Skipf("no /dev/shm on this system: %v", err)
	}
	f.Close()
	got := added(before, sharedMemory())
	os.Remove(f.Name())
	if !slices.Contains(got, f.Name()) {
		t.Errorf("got %q, want %s", got, f.Name())
	}
	if left := added(before, sharedMemory()); slices.Contains(left, f.Name()) {
		t.Errorf("got %q, want nothing once it is removed", left)
	}
}

func TestCleanTestPasses(t *testing.T) {
	Check(t)
	done := make(chan struct{})
	go close(done)
	<-done
}
