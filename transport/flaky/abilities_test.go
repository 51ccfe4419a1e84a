package flaky

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/memory"
)

// A plainConn has a Conn's methods and no ability.
type plainConn struct{ transport.Conn }

// A countingConn counts bytes.
type countingConn struct{ transport.Conn }

func (countingConn) Traffic() (sent, acked, received, arrived uint64) { return 4, 3, 2, 1 }

// A plainTransport has a Transport's methods and no ability.
type plainTransport struct{ transport.Transport }

// A wrapper must refuse the abilities that the wrapped value lacks, in the way that the contract of
// each ability allows.
func TestWrapperRefusesWhatTheWrappedConnCannot(t *testing.T) {
	w := newCluster(t, 2, Options{})
	near, _ := w.link(0, 1)
	n := &node{script: w.script, death: new(death), inner: plainTransport{memory.New().Transport()}}
	c := n.newConn(plainConn{near.Conn}, Unknown)
	if _, _, err := c.Expose(1, make([]byte, 10)); !errors.Is(err, fault.Refused) {
		t.Errorf("Expose: got %v, want %v", err, fault.Refused)
	}
	if c.TrySend(nil, []byte("body")) {
		t.Error("TrySend has sent over a wire that cannot")
	}
	if c.Admit(); c.RemoteAddr() != nil {
		t.Errorf("RemoteAddr: got %v, want nil", c.RemoteAddr())
	}
	if sent, acked, received, arrived := c.Traffic(); sent|acked|received|arrived != 0 {
		t.Errorf("Traffic: got %d, %d, %d, %d; want zeros", sent, acked, received, arrived)
	}
	c.inner = countingConn{near.Conn}
	if sent, acked, received, arrived := c.Traffic(); sent != 4 || acked != 3 || received != 2 || arrived != 1 {
		t.Errorf("Traffic: got %d, %d, %d, %d; want what the wrapped Conn returns, 4, 3, 2, 1", sent, acked, received, arrived)
	}
	if _, _, err := n.Alloc(10); !errors.Is(err, fault.Refused) {
		t.Errorf("Alloc: got %v, want %v", err, fault.Refused)
	}
	if s := n.SharerFor([]string{"mem:0"}); s != nil {
		t.Errorf("SharerFor: got %v, want nil", s)
	}
	if n.Proto() != "" || n.Prefix([]byte("PRI ")) {
		t.Error("it greets where the wrapped Transport is no Greeter")
	}
	if got, want := n.Explain("x"), "memory: it is the only wire"; got != want {
		t.Errorf("Explain: got %q, want %q", got, want)
	}
}

// A greeter has all abilities of a Transport.
type greeter struct{ transport.Transport }

func (greeter) Prefix(first []byte) bool { return string(first) == "mine" }
func (greeter) Proto() string            { return "x" }
func (greeter) Alloc(size int) ([]byte, func() error, error) {
	return make([]byte, size), nil, nil
}
func (greeter) Explain(addr string) string                  { return "memory: " + addr }
func (g greeter) SharerFor(addrs []string) transport.Sharer { return g.Transport.(transport.Sharer) }

func TestWrapperPassesOnWhatTheWrappedTransportCan(t *testing.T) {
	n := New(Options{}).Wrap(greeter{memory.New().Transport()}, 0).(*node)
	if mem, _, err := n.Alloc(10); err != nil || len(mem) != 10 {
		t.Errorf("Alloc: got %d bytes, %v", len(mem), err)
	}
	if n.Proto() != "x" || !n.Prefix([]byte("mine")) || n.Prefix([]byte("other")) || n.Explain("why") != "memory: why" {
		t.Error("an ability of the wrapped Transport does not shine through")
	}
	if n.SharerFor(nil) == nil {
		t.Error("SharerFor: got nil, want a Sharer")
	}
}

// A delay holds a frame. The frame has been accepted and has not reached the peer, so it must count
// as unsent.
func TestUnsentCountsFramesThatADelayHolds(t *testing.T) {
	w := newCluster(t, 2, Options{Rules: []Rule{Delay(1, time.Hour)}})
	near, _ := w.link(0, 1)
	before := time.Now()
	send(near, "head", make([]byte, 100))
	if n, since := near.Unsent(); n != 104 || since.Before(before) {
		t.Errorf("got %d bytes since %v, want 104 since the Send", n, since)
	}
	near.Close()
	if n, _ := near.Unsent(); n != 0 {
		t.Errorf("got %d bytes after Close, want 0", n)
	}
}

// useAll makes one step of each kind on a Conn, and returns the step that failed.
func useAll(near, far *end) (failed string) {
	to, release, err := near.Conn.(transport.Exposer).Expose(1, make([]byte, 10))
	if err != nil {
		return "expose"
	}
	defer release()
	done := make(map[string]error)
	note := func(what string) func(error) { return func(err error) { done[what] = err } }
	far.Send(&transport.Frame{To: to, ID: 1, Body: []byte("straight"), Done: note("write")})
	poll(near, far)
	far.Send(&transport.Frame{Parts: [][]byte{{1}, {2}}, Done: note("parts")})
	poll(near, far)
	for _, what := range []string{"write", "parts"} {
		if done[what] != nil {
			return what
		}
	}
	if near.err != nil {
		return "the end"
	}
	return ""
}

// Each use of an ability must count as a step, so that a rule can cut there.
func TestEveryUseOfAnAbilityIsAStep(t *testing.T) {
	count := newCluster(t, 2, Options{})
	near, far := count.link(0, 1)
	if failed := useAll(near, far); failed != "" || near.whole != 2 {
		t.Fatalf("without a rule: %q failed, %d frames arrived", failed, near.whole)
	}
	steps := []string{"expose", "write", "parts"}
	if got := count.script.Steps(); got != len(steps) {
		t.Fatalf("%d steps, want %d", got, len(steps))
	}
	for k, failed := range steps {
		for _, rule := range []Rule{Cut(Before, k+1), Die(Before, k+1), Cut(Within, k+1), Cut(After, k+1)} {
			t.Run(fmt.Sprint(failed, " ", rule), func(t *testing.T) {
				w := newCluster(t, 2, Options{Rules: []Rule{rule}})
				near, far := w.link(0, 1)
				got, want := useAll(near, far), failed
				if rule.moment != Before {
					// The bytes of this step have left, and the bytes of the next step have not.
					want = append(steps, "the end")[k+1]
				}
				if got != want || !w.script.Fired(0) {
					t.Errorf("%q failed, want %q; fired: %v", got, want, w.script.Fired(0))
				}
			})
		}
	}
}

func TestShareIsAStep(t *testing.T) {
	for m := Before; m <= After; m++ {
		w := newCluster(t, 1, Options{Rules: []Rule{Cut(m, 2)}})
		for k := 1; k <= 3; k++ {
			_, _, err := w.nodes[0].(transport.Selector).SharerFor(w.addrs).Share(context.Background(), "name", 1, 10)
			if (err != nil) != (k == 2) {
				t.Errorf("%v: share %d returned %v", m, k, err)
			}
		}
		if got := w.script.Steps(); got != 3 || !w.script.Fired(0) {
			t.Errorf("%v: %d steps, want 3; fired: %v", m, got, w.script.Fired(0))
		}
	}
}
