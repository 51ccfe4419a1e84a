package comm

import (
	"context"
	"encoding/binary"
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

// A relayedWire is the wire of a rank that dials the other ranks through relays. On data
// connections each relay passes the handshake and some frames in each direction, and then reads
// everything and forwards nothing.
type relayedWire struct {
	transport.Transport
	tb     testing.TB
	silent int // frames until the silence

	mu     sync.Mutex        // guards relays
	relays map[string]string // by the address behind each
}

// The layout of a stream of package tcp, from the side that dials and from the other one. The
// handshake without a secret is one frame each way. The channel of the first one is 2 on data
// connections.
const (
	magicSize    = 4
	preambleSize = 24
	channelAt    = magicSize + preambleSize + 9
	dataChannel  = 2
)

func frameSize(p []byte) int {
	word := binary.LittleEndian.Uint64(p)
	return preambleSize + int(word>>48&0xFF) + int(word&(1<<48-1))
}

func (w *relayedWire) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	w.mu.Lock()
	through, ok := w.relays[addr]
	if !ok {
		through = relay.Start(w.tb, addr, w.filters)
		w.relays[addr] = through
	}
	w.mu.Unlock()
	return w.Transport.Dial(ctx, through)
}

// filters returns the Filters of one connection, which learn from its first frame whether it is a
// data connection.
func (w *relayedWire) filters(int) (up, down relay.Filter) {
	var isData atomic.Bool
	var first []byte
	silentUp := relay.Framing{First: magicSize, Preamble: preambleSize, Size: frameSize}.Alter(relay.Silence, 1+w.silent)
	silentDown := relay.Framing{Preamble: preambleSize, Size: frameSize}.Alter(relay.Silence, 1+w.silent)
	up = func(p []byte) []byte {
		if len(first) <= channelAt {
			first = append(first, p...)
			if len(first) <= channelAt {
				return nil
			}
			p = first
			isData.Store(p[channelAt] == dataChannel)
		}
		if isData.Load() {
			return silentUp(p)
		}
		return p
	}
	down = func(p []byte) []byte { // the accepting side answers the first frame
		if isData.Load() {
			return silentDown(p)
		}
		return p
	}
	return up, down
}

// The data connections of three ranks go silent, within Init or in a call. Every rank gets an error
// that names both ends of a lost link, within the stall limit of the mesh and the time of its checks.
func TestASilentConnectionEndsInitAndCalls(t *testing.T) {
	leak.Check(t)
	const most = 8 * time.Second
	for silent := range 6 {
		t.Run(fmt.Sprintf("after %d frames", silent), func(t *testing.T) {
			t.Parallel()
			waited := starved.Since(os.Getpid())
			began := time.Now()
			for r, err := range runSilent(t, silent) {
				var f *fault.Error
				if !errors.As(err, &f) || !errors.Is(f, fault.LinkLost) || len(f.Peers) != 2 || f.Peers[0].Rank == f.Peers[1].Rank {
					t.Errorf("rank %d got %v, want a lost link that names both ends", r, err)
				}
			}
			if lasted := time.Since(began); lasted > most+min(waited(), most) {
				t.Errorf("it took %v, want at most %v", lasted, most)
			}
		})
	}
}

// runSilent starts three ranks that dial through relays, and returns what ended each: its Init, or one
// of many allreduces.
func runSilent(t *testing.T, silent int) []error {
	t.Helper()
	const n, calls = 3, 20
	o := newOptions([]Option{WithTransportName("tcp"), WithLogger(slog.New(slog.DiscardHandler)),
		WithWrap(func(_ int, tr transport.Transport) transport.Transport {
			return &relayedWire{Transport: tr, tb: t, silent: silent, relays: make(map[string]string)}
		})})
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
				for i := 0; i < calls && err == nil; i++ {
					err = AllReduce(context.Background(), c, make([]float32, 10_000), Sum)
				}
			}
			errs[r] = err
		})
	}
	all.Wait()
	return errs
}
