package leak

import (
	"os"
	"strings"
	"testing"
)

// A leak that lasts is found by comparing; the wait for it is not tested, since
// it would cost its whole patience.
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
	if left := settle(func() []string { return added(before, stacks()) }); len(left) > 0 {
		t.Errorf("got %q, want nothing once it has ended", left)
	}
}

func TestDescriptorThatStaysIsNamed(t *testing.T) {
	before := descriptors()
	if before == nil {
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

func TestCleanTestPasses(t *testing.T) {
	Check(t)
	done := make(chan struct{})
	go close(done)
	<-done
}
