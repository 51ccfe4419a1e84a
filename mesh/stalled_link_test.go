package mesh

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/internal/test/starved"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/auto"
	"github.com/tutti-go/tutti/transport/flaky"
	"github.com/tutti-go/tutti/transport/grpc"
	"github.com/tutti-go/tutti/transport/verbs"
	"github.com/tutti-go/tutti/transport/verbs/softdevice"
)

// dataWires are the wires whose links can stall.
func dataWires() []string {
	wires := []string{"memory", "tcp", "grpc", "verbs"}
	if runtime.GOOS == "linux" {
		wires = append(wires, "shm")
	}
	return wires
}

// stallTestLimit is the Config.Stall of the tests below. It is short, so that the tests are short.
// A stall is found at most stallEvery after the limit, and then the ranks agree on the failure. So
// the failure is reported within stallReported, also on a busy machine.
const (
	stallTestLimit = time.Second
	stallReported  = DefaultStall
)

// transportOf returns a new Transport of the given kind.
func transportOf(t *testing.T, name string) transport.Transport {
	tr, err := auto.New(name, auto.Options{Job: t.Name(), Wires: []transport.Transport{grpc.New(grpc.Options{})}})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// A wrapper returns a Transport that wraps the Transport of a rank.
type wrapper func(tr transport.Transport, rank int) transport.Transport

// startOver starts a job of n ranks over a wire. The recorders are the layers above the data Conns.
func startOver(t *testing.T, wire string, n int, wrap wrapper) (*testJob, []*recorder) {
	t.Helper()
	r := newTestJob(t, n)
	fabric := softdevice.NewFabric()
	root, lns, recorders := r.hub.Addr(0), make([]net.Listener, n), make([]*recorder, n)
	transports := make([]transport.Transport, n)
	for i := range n {
		switch wire {
		case "memory":
			transports[i] = r.wires[i]
		case "verbs":
			tr, err := verbs.New(verbs.Options{Setup: r.wires[i], Device: fabric.Device(i)})
			if err != nil {
				t.Fatal(err)
			}
			transports[i] = tr
		default:
			transports[i], lns[i] = transportOf(t, wire), listen(t)
			root = lns[0].Addr().String()
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r.start(ctx, upTo(n), func(i int, cfg *Config) {
		recorders[i] = &recorder{got: make(map[string]int)}
		cfg.Transport, cfg.Listener, cfg.Root, cfg.Data = wrap(transports[i], i), lns[i], root, recorders[i]
		cfg.Stall, cfg.InProcess = stallTestLimit, lns[i] == nil
	})
	t.Cleanup(r.close)
	for i, err := range r.errs {
		if err != nil {
			t.Fatalf("rank %d: %v", i, err)
		}
	}
	return r, recorders
}

// send sends a body from rank 0 to rank 1.
func (r *testJob) send(body []byte) {
	r.meshes[0].Link(1).Send(&transport.Frame{Head: []byte("h"), Body: body, Done: func(error) {}})
}

// lostLink waits until all ranks have reported a failure. It returns an error unless each reports
// within the limit that the link between ranks 0 and 1 is lost. The time for which this process
// starved is added to the limit, up to twice the limit in all.
func (r *testJob) lostLink(start time.Time, limit time.Duration) error {
	starving := starved.Since(os.Getpid())
	late := func(at time.Time) bool { return at.Sub(start) > limit+min(starving(), limit) }
	for i, ear := range r.events {
		e, when := ear.first()
		for e == nil && !late(time.Now()) {
			// Reason: a report has no event that a test can wait for.
			time.Sleep(time.Millisecond)
			e, when = ear.first()
		}
		if e == nil || late(when) {
			return fmt.Errorf("rank %d has reported nothing within %v", i, limit)
		}
		if !blames(e, fault.LinkLost, 0, 1) {
			return fmt.Errorf("rank %d reports %w, want a lost link of ranks 0 and 1", i, e)
		}
	}
	return nil
}

// reportStall makes rank 1 of three ranks stop reading its link to rank 0, while rank 0 sends to
// rank 1. It returns an error unless all ranks report the lost link within stallReported.
func reportStall(t *testing.T, wire string, wrap wrapper) error {
	r, recorders := startOver(t, wire, 3, wrap)
	r.send([]byte("hello"))
	eventually(t, "the first frame arrives", func() bool { return recorders[1].count() == 1 })
	defer r.meshes[1].Link(0).stopReading()()
	start := time.Now()
	body := make([]byte, 1<<20)
	for range 24 { // more than any wire buffers
		r.send(body)
	}
	if err := r.lostLink(start, stallReported); err != nil {
		return err
	}
	if e, _ := r.events[2].first(); !strings.Contains(e.Error(), "rank 1 has read none of") {
		return fmt.Errorf("the report is %w, want one that says what rank 1 has not read", e)
	}
	return nil
}

// stopReading keeps all goroutines out of the link's Progress until the test calls the returned
// function.
func (l *Link) stopReading() (resume func()) {
	for !l.inProgress.CompareAndSwap(0, 1) {
		runtime.Gosched()
	}
	return func() { l.inProgress.Store(0) }
}

func TestAStalledLinkIsReportedWithBothEnds(t *testing.T) {
	leak.Check(t)
	for _, wire := range dataWires() {
		for name, wrap := range map[string]wrapper{
			wire:                    func(tr transport.Transport, _ int) transport.Transport { return tr },
			wire + " through flaky": flaky.New(flaky.Options{}).Wrap,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				if err := reportStall(t, wire, wrap); err != nil {
					t.Error(err)
				}
			})
		}
	}
	// The tests above must fail for Conns that report no bytes.
	t.Run("no Conn reports it", func(t *testing.T) {
		t.Parallel()
		err := reportStall(t, "tcp", func(tr transport.Transport, _ int) transport.Transport { return silentNode{tr} })
		if err == nil {
			t.Error("the stall was reported, although every Conn reports that nothing is unsent")
		}
	})
}

// A silentNode is a Transport whose Conns report that nothing is unsent.
type silentNode struct{ transport.Transport }

func (n silentNode) Serve(in net.Listener, accept func(transport.Conn)) (string, error) {
	return n.Transport.Serve(in, func(c transport.Conn) { accept(silentConn{c}) })
}

func (n silentNode) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := n.Transport.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return silentConn{c}, nil
}

type silentConn struct{ transport.Conn }

func (silentConn) Unsent() (int, time.Time) { return 0, time.Time{} }

func (c silentConn) Admit() {
	if p, ok := c.Conn.(transport.Pending); ok {
		p.Admit()
	}
}

func (c silentConn) RemoteAddr() net.Addr { return nil }
