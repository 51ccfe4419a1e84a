package launch

import (
	"net"
	"testing"
	"time"

	"github.com/tutti-go/tutti/launch/internal/remote"
)

// startNode runs a node without a guardian in this process, and returns the launcher's end of its
// connection.
func startNode(t *testing.T) *remote.Link {
	t.Helper()
	ours, theirs := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		serveNode(theirs, "", nil)
	}()
	l, err := remote.Connect(t.Context(), hostB, ours)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return l
}

// await waits for an event.
func await(t *testing.T, l *remote.Link, wanted func(*remote.Event) bool) {
	t.Helper()
	for late := time.After(limit); ; {
		select {
		case e, ok := <-l.Events():
			if !ok {
				t.Fatalf("the connection has ended: %v", l.Err())
			}
			if wanted(e) {
				return
			}
		case <-late:
			t.Fatalf("got no such event within %v", limit)
		}
	}
}

// The launcher waits until a host has no process left after the last start, also if that start and
// the one before it have failed.
func TestANodeIsEmptyAfterEachFailedStart(t *testing.T) {
	l := startNode(t)
	l.Send(&remote.Command{Prepare: &remote.Prepare{Job: "job-of-failures.1", Size: 2}})
	for process := range 2 {
		l.Send(&remote.Command{Start: &remote.Start{Process: process, Args: []string{"/nonexistent/program"}}})
		await(t, l, func(e *remote.Event) bool { return e.Empty != nil && e.Empty.Starts == process+1 })
	}
}
