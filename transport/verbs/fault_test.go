package verbs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/memory"
	"github.com/tutti-go/tutti/transport/verbs/internal/rdma"
	"github.com/tutti-go/tutti/transport/verbs/softdevice"
)

// A connPair is two live Conns on one Fabric or, without a Fabric, on this host's device. The
// test's goroutine progresses both Conns.
type connPair struct {
	testing.TB
	fabric *softdevice.Fabric
	ends   [2]*conn
	sinks  [2]countingSink
}

// A countingSink counts frames and keeps the last body.
type countingSink struct {
	n    int
	body []byte
}

func (s *countingSink) Buffer(h transport.Header) []byte {
	s.body = make([]byte, h.Size)
	return s.body
}

func (s *countingSink) Arrived(h transport.Header, n int) {
	if n == h.Size {
		s.n++
	}
}

func newConnPair(t testing.TB, f *softdevice.Fabric, o Options) *connPair {
	t.Helper()
	leak.Check(t)
	b := &connPair{TB: t, fabric: f}
	hub := memory.New()
	accepted := make(chan transport.Conn, 1)
	var trs [2]transport.Transport
	for i := range trs {
		o.Setup = hub.Transport()
		if f != nil {
			o.Device = f.Device(0)
		}
		tr, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := tr.Close(); err != nil {
				t.Error(err)
			}
		})
		trs[i] = tr
	}
	addr, err := trs[1].Serve(nil, func(c transport.Conn) { accepted <- c })
	if err != nil {
		t.Fatal(err)
	}
	c, err := trs[0].Dial(context.Background(), addr)
	if err != nil {
		t.Fatal(err)
	}
	g := (<-accepted).(pendingConn)
	g.Admit()
	b.ends = [2]*conn{c.(*conn), g.conn}
	b.until("a queue pair", func() bool { return b.ends[0].inStage(live) && b.ends[1].inStage(live) })
	return b
}

// expose exposes memory of end 1, and returns once end 0 knows about this memory.
func (b *connPair) expose(size int) (mem []byte, to transport.Token, release func()) {
	b.Helper()
	mem = make([]byte, size)
	to, release, err := b.ends[1].Expose(1, mem)
	if err != nil {
		b.Fatal(err)
	}
	b.until("the exposure", func() bool {
		b.ends[0].mu.Lock()
		defer b.ends[0].mu.Unlock()
		return len(b.ends[0].flow.remotes) > 0
	})
	return mem, to, release
}

// until progresses both ends until the function done returns true. It ignores errors, so done must
// detect them.
func (b *connPair) until(what string, done func() bool) {
	b.Helper()
	within(b, what, func() bool {
		if done() {
			return true
		}
		for i, c := range b.ends {
			c.Progress(&b.sinks[i], 1)
		}
		return false
	})
}

// within calls the function done until it returns true.
func within(t testing.TB, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !done(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s has not come", what)
		}
	}
}

// send sends a frame from end 0. The returned channel gets the error of the frame's Done.
func (b *connPair) send(f *transport.Frame) <-chan error {
	done := make(chan error, 1)
	f.Done = func(err error) { done <- err }
	b.ends[0].Send(f)
	return done
}

// waitFailure progresses both ends until they have failed, and returns the errors.
func (b *connPair) waitFailure() (errs [2]error) {
	b.Helper()
	b.until("the failure of both ends", func() bool {
		for i, c := range b.ends {
			if _, err := c.Progress(&b.sinks[i], 1); err != nil {
				errs[i] = err
			}
		}
		return errs[0] != nil && errs[1] != nil
	})
	return errs
}

// queuePairs returns the queue pairs of both ends.
func (b *connPair) queuePairs() (near, far *softdevice.SoftQueuePair) {
	return b.ends[0].endpoint.qp.(*softdevice.SoftQueuePair), b.ends[1].endpoint.qp.(*softdevice.SoftQueuePair)
}

func TestHardwareErrorsNameTheRemedy(t *testing.T) {
	for name, c := range map[string]struct {
		fault func(f *softdevice.Fabric, near, far *softdevice.SoftQueuePair)
		want  string
	}{
		"the peer's queue pair is gone": {func(_ *softdevice.Fabric, _, far *softdevice.SoftQueuePair) { far.Disconnect() }, "transport retry counter exceeded"},
		"a wrong key":                   {func(f *softdevice.Fabric, _, _ *softdevice.SoftQueuePair) { f.RevokeRemoteAccess() }, "remote access error"},
		"the link is down": {func(_ *softdevice.Fabric, near, _ *softdevice.SoftQueuePair) {
			near.Fail(rdma.Completion{Status: rdma.LocalQueuePairOp, Vendor: 0x51})
		}, "vendor error 0x51): probably the link is down"},
		"a completion queue that overran": {func(_ *softdevice.Fabric, near, _ *softdevice.SoftQueuePair) { near.Overrun() }, "has overrun"},
		"a receiver that is not ready": {func(_ *softdevice.Fabric, near, _ *softdevice.SoftQueuePair) {
			near.Fail(rdma.Completion{Status: rdma.RNRExceeded})
		}, "receiver not ready, retry counter exceeded"},
		"an event that the queue pair has failed": {func(_ *softdevice.Fabric, near, _ *softdevice.SoftQueuePair) {
			near.FailByEvent(queuePairFatal.err())
		}, "has closed the queue pair; look at the kernel's log"},
		"an event that the device has failed": {func(_ *softdevice.Fabric, near, _ *softdevice.SoftQueuePair) {
			near.FailByEvent(deviceFatal.err())
		}, "the device has failed; look at the kernel's log"},
		"an unknown status": {func(_ *softdevice.Fabric, near, _ *softdevice.SoftQueuePair) {
			near.Fail(rdma.Completion{Status: 250})
		}, "status 250"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newConnPair(t, softdevice.NewFabric(), Options{})
			mem, to, release := b.expose(50_000)
			defer release()
			near, far := b.queuePairs()
			c.fault(b.fabric, near, far)
			done := b.send(&transport.Frame{To: to, ID: 1, Body: bytes.Repeat([]byte{1}, len(mem))})
			errs := b.waitFailure()
			if err := <-done; !errors.Is(err, fault.LinkLost) || !strings.Contains(err.Error(), c.want) || err != errs[0] {
				t.Errorf("Done got %v, Progress %v; want %q in both", err, errs[0], c.want)
			}
		})
	}
}

// A device that fails while nothing is posted reports the failure only by an event. The event must
// fire Arm.
func TestEventFiresArm(t *testing.T) {
	b := newConnPair(t, softdevice.NewFabric(), Options{})
	near, _ := b.queuePairs()
	b.until("quiet", func() bool {
		state, err := b.ends[0].Progress(&b.sinks[0], 1)
		return state == transport.Idle && err == nil && !b.ends[0].setupPending.Load()
	})
	rung := make(chan struct{})
	b.ends[0].Arm(func() { close(rung) })
	near.FailByEvent(queueOverran.err())
	select {
	case <-rung:
	case <-time.After(20 * time.Second):
		t.Fatal("it sleeps on")
	}
	if errs := b.waitFailure(); !errors.Is(errs[0], fault.LinkLost) || !strings.Contains(errs[0].Error(), "has overrun") {
		t.Errorf("got %v, want %v, and why", errs[0], fault.LinkLost)
	}
}

func TestFatalEventsNameTheRemedy(t *testing.T) {
	for e := range event(20) {
		text := e.err().Error()
		if e.endsQueuePair() == strings.Contains(text, fmt.Sprint("unknown device event ", e)) {
			t.Errorf("event %d ends a pair: %v, and says %q", e, e.endsQueuePair(), text)
		}
	}
	if portError.endsQueuePair() || portActive.endsQueuePair() {
		t.Error("a port that goes down for a moment ends the queue pairs, whose retries may outlast it")
	}
}

// A Conn cannot distinguish a lost completion from a slow completion. So the bytes must count as
// unsent, and the layer above ends the wait when nothing is acknowledged.
func TestLostCompletionCountsAsUnsent(t *testing.T) {
	b := newConnPair(t, softdevice.NewFabric(), Options{})
	near, _ := b.queuePairs()
	done := b.send(&transport.Frame{Body: make([]byte, 100)})
	near.LoseCompletions()
	b.until("the frame", func() bool { return b.sinks[1].n == 1 })
	if n, since := b.ends[0].Unsent(); n != 100 || since.IsZero() {
		t.Errorf("Unsent() = %d, %v; want 100 bytes", n, since)
	}
	b.ends[0].Close()
	if err := <-done; !errors.Is(err, fault.Closed) {
		t.Errorf("Done got %v", err)
	}
}

func TestReceiverIsAlwaysReady(t *testing.T) {
	for _, depth := range []int{3, 4, 7, 32} {
		b := newConnPair(t, softdevice.NewFabric(), Options{Depth: depth, Buffer: 300})
		for i := range 400 {
			b.send(&transport.Frame{Head: []byte("head"), Body: make([]byte, i*7)})
			b.ends[1].Send(&transport.Frame{Body: make([]byte, i*3), Done: ignore})
			if i%3 == 0 {
				b.ends[i%2].Progress(&b.sinks[i%2], 1)
			}
		}
		b.until("all frames", func() bool { return b.sinks[0].n == 400 && b.sinks[1].n == 400 })
		if n := b.fabric.NotReady(); n > 0 {
			t.Errorf("depth %d: %d work requests found no posted receive", depth, n)
		}
	}
}

func TestPendingConnHasNoQueuePair(t *testing.T) {
	leak.Check(t)
	hub, fabric := memory.New(), softdevice.NewFabric()
	server, _ := New(Options{Setup: hub.Transport(), Device: fabric.Device(0)})
	client, _ := New(Options{Setup: hub.Transport(), Device: fabric.Device(0)})
	defer server.Close()
	defer client.Close()
	accepted := make(chan transport.Conn, 1)
	addr, err := server.Serve(nil, func(c transport.Conn) { accepted <- c })
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.Dial(context.Background(), addr)
	if err != nil {
		t.Fatal(err)
	}
	c.Send(&transport.Frame{Body: []byte("hello"), Done: ignore})
	var sink countingSink
	far := <-accepted
	for sink.n == 0 {
		if _, err := far.Progress(&sink, 1); err != nil {
			t.Fatal(err)
		}
	}
	if queuePairs, regions := fabric.Held(); queuePairs+regions > 0 || string(sink.body) != "hello" {
		t.Errorf("a pending peer that sent %q holds %d queue pairs and %d regions, want none", sink.body, queuePairs, regions)
	}
}

func TestFrameThatLooksLikeSetupArrives(t *testing.T) {
	leak.Check(t)
	hub, fabric := memory.New(), softdevice.NewFabric()
	server, _ := New(Options{Setup: hub.Transport(), Device: fabric.Device(0)})
	client, _ := New(Options{Setup: hub.Transport(), Device: fabric.Device(0)})
	defer server.Close()
	defer client.Close()
	accepted := make(chan transport.Conn, 1)
	addr, _ := server.Serve(nil, func(c transport.Conn) { accepted <- c })
	c, err := client.Dial(context.Background(), addr)
	if err != nil {
		t.Fatal(err)
	}
	for kind := range byte(8) {
		c.Send(&transport.Frame{Head: append([]byte(setupMark), kind), Body: []byte{kind}, Done: ignore})
	}
	var sink countingSink
	for far := <-accepted; sink.n < 8; {
		if _, err := far.Progress(&sink, 1); err != nil {
			t.Fatal(err)
		}
	}
	if sink.body[0] != 7 {
		t.Errorf("the last frame was %v", sink.body)
	}
}

func TestForeignTokenIsMisuse(t *testing.T) {
	b := newConnPair(t, softdevice.NewFabric(), Options{})
	// This Token is of end 0 itself, and not of its peer.
	to, release, err := b.ends[0].Expose(1, make([]byte, 10))
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	done := b.send(&transport.Frame{To: to, Body: make([]byte, 5)})
	b.waitFailure()
	if err := <-done; !errors.Is(err, fault.Misuse) {
		t.Errorf("Done got %v, want %v", err, fault.Misuse)
	}
}

func TestCacheIsBoundedAndReleasesAll(t *testing.T) {
	d := softdevice.NewFabric().Device(0)
	c := newCache(d, 1000, false)
	bufs := make([][]byte, 5)
	var held *registration
	for i := range bufs {
		bufs[i] = make([]byte, 400)
		l, err := c.acquire(bufs[i])
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			held = l
			continue
		}
		l.release()
	}
	if len(c.entries) != 2 || c.bytes != 800 {
		t.Errorf("%d entries of %d bytes, want the one in use and the last one", len(c.entries), c.bytes)
	}
	again, err := c.acquire(bufs[0][:100])
	if err != nil || again != held {
		t.Errorf("a part of what is registered was registered again: %v", err)
	}
	again.release()
	held.release()
	c.close()
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

func TestMissingDeviceErrorNamesTheRemedy(t *testing.T) {
	if Built {
		// Reason: this test checks the error of a build without verbs. `make test` makes such a
		// build.
		t.Skip("this build has verbs, and may find a device; the default build, which cannot, runs this test")
	}
	hub := memory.New().Transport()
	defer hub.Close()
	if _, err := New(Options{Setup: hub}); !errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), "make build VERBS=1") {
		t.Errorf("got %v", err)
	}
	for _, o := range []Options{{}, {Setup: hub, Depth: 2}, {Setup: hub, Depth: 2000}, {Setup: hub, Buffer: 10}} {
		o.Device = softdevice.NewFabric().Device(0)
		if _, err := New(o); !errors.Is(err, fault.Misuse) {
			t.Errorf("%+v: got %v, want %v", o, err, fault.Misuse)
		}
	}
}

// With Fresh, a key is valid only for one use of memory by the peer. Memory without notification is
// for many uses, so it must be refused.
func TestFreshRefusesMemoryWithoutNotification(t *testing.T) {
	b := newConnPair(t, softdevice.NewFabric(), Options{Fresh: true})
	_, _, err := b.ends[1].Expose(transport.NoNotify, make([]byte, 100))
	if !errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), "TUTTI_VERBS_FRESH") {
		t.Errorf("got %v, want it refused, and the option named", err)
	}
	_, to, release := b.expose(100_000)
	defer release()
	done := b.send(&transport.Frame{To: to, ID: 1, Body: make([]byte, 100_000)})
	b.until("a frame into other memory", func() bool { return b.sinks[1].n == 1 })
	if err := <-done; err != nil {
		t.Error(err)
	}
}
