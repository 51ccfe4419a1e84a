package transporttest

import (
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/memory"
)

// A failureRecorder is a TB that records failures and does not fail the test. Its Fatal ends the
// goroutine.
type failureRecorder struct {
	testing.TB
	failed atomic.Bool
}

func (r *failureRecorder) Errorf(string, ...any) { r.failed.Store(true) }
func (r *failureRecorder) Fatalf(string, ...any) {
	r.failed.Store(true)
	runtime.Goexit()
}

// A closeCounter is a Transport that counts the calls of its Close.
type closeCounter struct {
	transport.Transport
	closed *atomic.Int32
}

func (c closeCounter) Close() error {
	c.closed.Add(1)
	return c.Transport.Close()
}

// runAgent starts an agent that makes Nodes with mk, and a Remote for this agent. The agent ends
// after the near end of the wire is closed. The function over waits until the agent has ended.
func runAgent(tb testing.TB, mk Maker) (near net.Conn, r *Remote, over *sync.WaitGroup) {
	near, far := net.Pipe()
	over = new(sync.WaitGroup)
	over.Go(func() { RunAgent(tb, far, mk) })
	return near, Connect(near), over
}

func TestAgentClosesTheNodesOfARemoteThatDies(t *testing.T) {
	leak.Check(t)
	hub, closed, far := memory.New(), new(atomic.Int32), &failureRecorder{TB: t}
	mk := func(testing.TB, int) []Node { return []Node{{Transport: closeCounter{hub.Transport(), closed}}} }
	near, r, over := runAgent(far, mk)
	nodes := r.Maker(mk)(t, 4)
	for i := 1; i < 4; i += 2 {
		if _, err := nodes[i].Transport.Serve(nil, func(transport.Conn) {}); err != nil {
			t.Fatal(err)
		}
	}
	if err := nodes[1].Transport.Close(); err != nil {
		t.Fatal(err)
	}
	r.Stop()
	near.Close()
	over.Wait()
	if n := closed.Load(); n != 2 || !far.failed.Load() {
		t.Errorf("%d of two remote Nodes are closed, failed: %v; want both, and a failure for the one left open", n, far.failed.Load())
	}
	for i := 0; i < 4; i += 2 {
		nodes[i].Transport.Close()
	}
}

func TestAgentWithoutNodesEndsTheWire(t *testing.T) {
	leak.Check(t)
	far, here := &failureRecorder{TB: t}, &failureRecorder{TB: t}
	mk := func(tb testing.TB, _ int) []Node { tb.Fatalf("there is no device"); return nil }
	_, r, over := runAgent(far, mk)
	own := func(testing.TB, int) []Node { return make([]Node, 1) }
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.Maker(own)(here, 2)
		t.Error("the Maker has made what the agent could not")
	}()
	<-ended
	r.Stop()
	over.Wait()
	if !far.failed.Load() || !here.failed.Load() {
		t.Errorf("failed: the agent %v, the remote %v; want both", far.failed.Load(), here.failed.Load())
	}
}
