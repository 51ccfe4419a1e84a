package mesh

import (
	"testing"
	"time"

	"github.com/tutti-go/tutti/mesh/membership"
	"github.com/tutti-go/tutti/transport"
)

// An echoConn is a Conn that delivers the last sent frame back to the sender.
type echoConn struct {
	transport.Conn // nil: no other method is called

	head [controlSize]byte
	body [MaxCall]byte
	n    int
	full bool
}

func (e *echoConn) Send(f *transport.Frame) {
	copy(e.head[:], f.Head)
	e.n, e.full = copy(e.body[:], f.Body), true
	f.Done(nil)
}

func (e *echoConn) Progress(in transport.Sink, _ int) (transport.State, error) {
	if !e.full {
		return transport.Idle, nil
	}
	e.full = false
	h := transport.Header{Head: e.head[:], Size: e.n}
	copy(in.Buffer(h), e.body[:e.n])
	in.Arrived(h, e.n)
	return transport.Moved, nil
}

func (e *echoConn) Arm(func())   {}
func (e *echoConn) Close() error { return nil }

// This test checks that heartbeats do not allocate. Otherwise an idle job would cause garbage
// collections, also in a program that avoids allocations.
func TestHeartbeatsDoNotAllocate(t *testing.T) {
	call := "allreduce #41 float32 x1000 sum at train.go:88"
	c := newControl(&Mesh{cfg: Config{Size: 2, Events: &eventRecorder{call: call}}})
	c.state = membership.New(membership.Config{Size: 2, Joined: true, Heartbeat: membership.Second, Silence: 1000 * membership.Second})
	wire := new(echoConn)
	l := newControlLink(c, 1, wire)
	c.links[1] = l
	c.step(membership.LinkUp{Rank: 1})
	beat := func() {
		l.send(membership.Message{Kind: membership.Heartbeat, Origin: 1})
		l.ready.Store(true)
		l.receive()
	}
	beat()
	if got := string(l.heartbeatBuf[:len(call)]); got != call || wire.full || l.protocolErr != nil || l.queued.Load() != 0 {
		t.Fatalf("got %q (%v), with %d bytes queued; want %q", got, l.protocolErr, l.queued.Load(), call)
	}
	if got := testing.AllocsPerRun(100, beat); got != 0 {
		t.Errorf("a heartbeat there and back makes %v pieces of garbage, want none", got)
	}
}

// A unwokenConn never calls the wake-up, as on a machine so busy that the poller does not run.
type unwokenConn struct{ transport.Conn }

func (unwokenConn) Arm(func()) {}

// A message that has arrived is a sign of life, also before the poller has reported it.
func TestARankReadsItsLinksBeforeItCountsPeersAsSilent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := started(t, 3, nil)
		defer r.close()
		for _, m := range r.meshes {
			m.control.post(func(c *control) {
				for _, l := range c.links {
					if l != nil {
						l.conn = unwokenConn{l.conn}
					}
				}
			})
		}
		time.Sleep(4 * DefaultSilence)
		for i, e := range r.events {
			if failure, _ := e.first(); failure != nil {
				t.Errorf("rank %d got %v, want no failure", i, failure)
			}
		}
	})
}
