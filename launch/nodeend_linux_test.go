package launch

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/tutti-go/tutti/launch/internal/remote"
)

// A stuckConn is a connection whose Close does not return before the end of release, so that
// remote.Serve does not return either.
type stuckConn struct {
	net.Conn
	release chan struct{}
}

func (c stuckConn) Close() error {
	<-c.release
	return c.Conn.Close()
}

// A host in the middle of a tree still waits for the hosts that it has started when it kills its own
// ranks.
func TestANodeKillsItsRanksBeforeServeReturns(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	ours, theirs := net.Pipe()
	stuck := stuckConn{theirs, make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		serveNode(stuck, "", nil)
	}()
	l, err := remote.Connect(t.Context(), hostB, ours)
	if err != nil {
		t.Fatal(err)
	}
	l.Send(&remote.Command{Prepare: &remote.Prepare{Job: "job-of-a-stuck-node.1", Size: 1}})
	l.Send(&remote.Command{Start: &remote.Start{Args: []string{"/bin/sh", "-c", `exec sleep 1000 >"$0"`, fifo}, Env: os.Environ()}})
	rank, err := os.Open(fifo) // waits for the rank
	if err != nil {
		t.Fatal(err)
	}
	defer rank.Close()
	ours.Close()
	if err := rank.SetReadDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	if _, err := rank.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the rank after the end of the connection: got %v, want its end", err)
	}
	close(stuck.release)
	<-done
	l.Close()
}
