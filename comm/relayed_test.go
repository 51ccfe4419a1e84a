package comm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/internal/test/relay"
	"github.com/tutti-go/tutti/internal/test/starved"
	"github.com/tutti-go/tutti/transport"
)

// A relayedWire is the transport of a rank that dials the other ranks through relays. The relays
// alter the frames on data connections.
type relayedWire struct {
	transport.Transport
	tb    testing.TB
	alter func(f relay.Framing, up bool) relay.Filter // nil: everything is forwarded unchanged
	most  int                                         // bytes of the dialling side before a reset; 0: no reset

	mu     sync.Mutex        // guards relays
	relays map[string]string // indexed by the address behind the relay
}

// The handshake without a secret is one frame in each direction. On data connections the channel
// number in the first frame is 2; 4 bytes, the preamble and 9 bytes of the head precede it.
const (
	channelAt   = 4 + 24 + 9
	dataChannel = 2

	handshakeFrames = 1
)

func (w *relayedWire) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	w.mu.Lock()
	through, ok := w.relays[addr]
	if !ok {
		if w.most > 0 {
			through = relay.StartCutting(w.tb, addr, func(int) (up, down relay.Cutter) { return relay.CutAfter(w.most), relay.CutAfter(-1) })
		} else {
			through = relay.Start(w.tb, addr, w.filters)
		}
		w.relays[addr] = through
	}
	w.mu.Unlock()
	return w.Transport.Dial(ctx, through)
}

// filters returns the Filters of one connection. The Filters learn from the connection's first
// frame whether it is a data connection.
func (w *relayedWire) filters(int) (up, down relay.Filter) {
	var isData atomic.Bool
	var first []byte
	alterUp := w.alter(relay.TCP(true), true)
	alterDown := w.alter(relay.TCP(false), false)
	up = func(p []byte) []byte {
		if len(first) <= channelAt {
			first = append(first, p...)
			if len(first) <= channelAt {
				return nil
			}
			p = first
			isData.Store(p[channelAt] == dataChannel)
		}
		if isData.Load() && alterUp != nil {
			return alterUp(p)
		}
		return p
	}
	down = func(p []byte) []byte { // the accepting side answers the first frame
		if isData.Load() && alterDown != nil {
			return alterDown(p)
		}
		return p
	}
	return up, down
}

// The data connections of three ranks fall silent, within Init or in a call. Every rank must get an
// error that names both ends of a lost link. The error must come within the mesh's stall limit,
// plus the time of its checks.
func TestASilentConnectionEndsInitAndCalls(t *testing.T) {
	leak.Check(t)
	const most = 8 * time.Second
	for _, silent := range []int{0, 1, 5} {
		t.Run(fmt.Sprintf("after %d frames", silent), func(t *testing.T) {
			t.Parallel()
			waited := starved.Since(os.Getpid())
			began := time.Now()
			errs := runRelayed(t, func(f relay.Framing, _ bool) relay.Filter { return f.Alter(relay.Silence, handshakeFrames+silent) })
			for r, err := range errs {
				if !isLostLink(err) {
					t.Errorf("rank %d got %v, want a lost link that names both ends", r, err)
				}
			}
			if lasted := time.Since(began); lasted > most+min(waited(), most) {
				t.Errorf("it took %v, want at most %v", lasted, most)
			}
		})
	}
}

// A relay drops, doubles or swaps one of the first eight frames that the dialling ranks send. Every
// rank must get an error that names both ends of a lost link. No allreduce may give a wrong result.
func TestAlteredFramesEndInitAndCalls(t *testing.T) {
	leak.Check(t)
	for _, lie := range []relay.Fault{relay.Drop, relay.Double, relay.Swap} {
		for k := range 8 {
			t.Run(fmt.Sprintf("%s %d", lie, k), func(t *testing.T) {
				t.Parallel()
				errs := runRelayed(t, func(f relay.Framing, up bool) relay.Filter {
					if !up {
						return nil
					}
					return f.Alter(lie, handshakeFrames+k)
				})
				for r, err := range errs {
					if !isLostLink(err) {
						t.Errorf("rank %d got %v, want a lost link that names both ends", r, err)
					}
				}
			})
		}
	}
}

// isLostLink reports whether err is about a lost link and names both its ends.
func isLostLink(err error) bool {
	var f *fault.Error
	return errors.As(err, &f) && errors.Is(f, fault.LinkLost) && len(f.Peers) == 2 && f.Peers[0].Rank != f.Peers[1].Rank
}

// runRelayed starts three ranks that dial through relays. It returns the error that ended each
// rank, in Init or in one of many allreduces. A wrong result is an error, too.
func runRelayed(t *testing.T, alter func(f relay.Framing, up bool) relay.Filter) []error {
	t.Helper()
	return runOver(t, func(w *relayedWire) { w.alter = alter })
}

// Connections are reset again and again. With WithRedial, all calls must succeed, with right
// results.
func TestBrokenConnectionsAreReplacedUnderCalls(t *testing.T) {
	leak.Check(t)
	for _, most := range []int{50_000, 300_001} {
		t.Run(fmt.Sprintf("after %d bytes", most), func(t *testing.T) {
			for r, err := range runOver(t, func(w *relayedWire) { w.most = most }, WithRedial(10*time.Second)) {
				if err != nil {
					t.Errorf("rank %d: %v", r, err)
				}
			}
		})
	}
}

// runOver is like runRelayed, but the function set adjusts the transport of each rank.
func runOver(t *testing.T, set func(*relayedWire), opts ...Option) []error {
	t.Helper()
	const n, calls, count = 3, 40, 10_000
	o := newOptions(append(opts, WithTransportName("tcp"), WithLogger(slog.New(slog.DiscardHandler)),
		WithWrap(func(_ int, tr transport.Transport) transport.Transport {
			w := &relayedWire{Transport: tr, tb: t, relays: make(map[string]string)}
			set(w)
			return w
		})))
	wires, err := o.newLocalWires(n, nil)
	if err != nil {
		t.Fatal(err)
	}
	errs, root := make([]error, n), ""
	var all sync.WaitGroup
	for r := range n {
		m, err := wires.localMember(r, o, root)
		if err != nil {
			t.Fatal(err)
		}
		root = m.cfg.Root
		all.Go(func() {
			c, err := m.start(context.Background(), o)
			if err == nil {
				defer c.Close(context.Background())
			}
			for i := 0; i < calls && err == nil; i++ {
				err = checkedSum(c, count, i)
			}
			errs[r] = err
		})
	}
	all.Wait()
	return errs
}

// errWrongSum marks a result that is wrong.
var errWrongSum = errors.New("wrong sum")

// checkedSum makes an allreduce whose result depends on the element and on the number of the call.
func checkedSum(c *Comm, count, call int) error {
	v := make([]float32, count)
	for i := range v {
		v[i] = float32((i + call + c.Rank()) % 1000)
	}
	if err := AllReduce(context.Background(), c, v, Sum); err != nil {
		return err
	}
	for i := range v {
		want := float32(0)
		for r := range c.Size() {
			want += float32((i + call + r) % 1000)
		}
		if v[i] != want {
			return fmt.Errorf("%w: call %d, element %d: got %v, want %v", errWrongSum, call, i, v[i], want)
		}
	}
	return nil
}
