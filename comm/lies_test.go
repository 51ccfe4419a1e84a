package comm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tutti-go/tutti/internal/jobca"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/internal/test/relay"
	"github.com/tutti-go/tutti/internal/test/starved"
	"github.com/tutti-go/tutti/internal/tlsopt"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/grpc"
	"github.com/tutti-go/tutti/transport/tcp"
)

// A lie is what a relay does to one frame of a job of three ranks.
type lie struct {
	wire       string
	protection string
	fault      relay.Fault
	conn       int  // the number of the connection, in the order in which the job dials
	up         bool // the direction is away from the dialling rank
	frame      int
}

// protections returns the ways to protect the connections: checksums only, TLS under the launcher's
// CA, and TLS under a CA that is derived from the secret.
func protections() []string { return []string{"plain", "launcher's CA", "secret's CA"} }

// randomLie returns the lie with the given number.
func randomLie(seed, number uint64) lie {
	rng := rand.New(rand.NewPCG(seed, number))
	faults := []relay.Fault{relay.Drop, relay.Double, relay.Swap, relay.Corrupt}
	return lie{
		wire:       []string{tcp.Name, grpc.Name}[rng.IntN(2)],
		protection: protections()[rng.IntN(3)],
		fault:      faults[rng.IntN(len(faults))],
		conn:       rng.IntN(8), // 2 for the addresses, 3 control links, 3 data links
		up:         rng.IntN(2) == 0,
		frame:      rng.IntN(1 << rng.IntN(8)),
	}
}

// A lyingWire is the transport of a rank that dials the other ranks through relays, one per
// connection. One of the relays alters a frame.
type lyingWire struct {
	transport.Transport
	lie     lie
	conns   *atomic.Int32 // the connections that the job has dialled
	altered *atomic.Bool

	mu     sync.Mutex // guards relays
	relays []*relay.Relay
}

func (w *lyingWire) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	r, err := relay.New(addr, w.filters)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	w.relays = append(w.relays, r)
	w.mu.Unlock()
	return w.Transport.Dial(ctx, r.Addr())
}

// Close closes the relays, too.
func (w *lyingWire) Close() error {
	err := w.Transport.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.relays {
		r.Close()
	}
	return err
}

// filters returns the Filters of the next connection.
func (w *lyingWire) filters(int) (up, down relay.Filter) {
	if int(w.conns.Add(1))-1 != w.lie.conn {
		return nil, nil
	}
	framing := relay.TCP(w.lie.up)
	if w.lie.wire == grpc.Name {
		framing = relay.HTTP2(w.lie.up)
	}
	if w.lie.protection != "plain" {
		framing = relay.TLS()
	}
	counts, n := framing.Counts, 0
	framing.Counts = func(frame []byte) bool {
		if counts != nil && !counts(frame) {
			return false
		}
		if n == w.lie.frame {
			w.altered.Store(true)
		}
		n++
		return true
	}
	if filter := framing.Alter(w.lie.fault, w.lie.frame); w.lie.up {
		return filter, nil
	} else {
		return nil, filter
	}
}

// liesSecret is the secret of the jobs with a secret.
var liesSecret = []byte("what only the ranks of these jobs know")

// run starts three ranks, which make some allreduces. It returns the error that ended each rank,
// and whether the frame was altered. A wrong result is an errWrongSum.
//
// A rank that is refused, because its proof was altered, may be started again. So the others wait
// for it until Init's deadline.
func (l lie) run() (errs []error, altered bool) {
	const n, calls, count, initLimit = 3, 20, 3000, 12 * time.Second
	name := "lies"
	ca, err := jobca.New(name)
	if l.protection == "secret's CA" {
		ca, err = jobca.Derive(liesSecret, name)
	}
	if err != nil {
		return []error{err}, false
	}
	w := &localWires{id: name}
	var conns atomic.Int32
	var hit atomic.Bool
	options := make([]*options, n)
	for r := range n {
		o := newOptions([]Option{WithLogger(slog.New(slog.DiscardHandler)), WithTimeout(time.Minute), WithSecret(liesSecret),
			WithParameters(Parameters{Checksums: true})})
		if l.protection != "plain" {
			c, err := ca.Issue(r, 0)
			if err != nil {
				return []error{err}, false
			}
			o.tls = tlsopt.ForJob(c).Everywhere()
		}
		o.wrap = func(_ int, t transport.Transport) transport.Transport {
			return &lyingWire{Transport: t, lie: l, conns: &conns, altered: &hit}
		}
		options[r] = o
		if l.wire == grpc.Name {
			w.wires = append(w.wires, wire{grpc.New(grpc.Options{TLS: o.tls})})
		} else {
			w.wires = append(w.wires, wire{tcp.New(tcp.Options{TLS: o.tls})})
		}
	}
	errs = make([]error, n)
	root := ""
	var all sync.WaitGroup
	for r := range n {
		m, err := w.localMember(r, options[r], root)
		if err != nil {
			return []error{err}, false
		}
		root = m.cfg.Root
		all.Go(func() {
			joining, cancel := context.WithTimeout(context.Background(), initLimit)
			defer cancel()
			c, err := m.start(joining, options[r])
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
	return errs, hit.Load()
}

// A relay drops, doubles, swaps or corrupts any one frame of any one connection. No rank may get a
// wrong result, and no call may last longer than its limits. In a soak there are 10,000 such lies.
func TestNoAlteredFrameGivesAWrongResultOrAHang(t *testing.T) {
	leak.Check(t)
	const seed, atOnce, limit = 1, 12, 20 * time.Second
	tries := 24
	if os.Getenv("TUTTI_SOAK") != "" {
		tries = 10_000
	}
	var next atomic.Int64
	var mu sync.Mutex // guards the maps below
	lasted := map[string][]time.Duration{}
	hits, failures := map[string]int{}, map[string]int{}
	var workers sync.WaitGroup
	for range atOnce {
		workers.Go(func() {
			for i := next.Add(1) - 1; i < int64(tries); i = next.Add(1) - 1 {
				l := randomLie(seed, uint64(i))
				waited, began := starved.Since(os.Getpid()), time.Now()
				errs, hit := l.run()
				elapsed := time.Since(began)
				for r, err := range errs {
					if errors.Is(err, errWrongSum) {
						t.Errorf("lie %d, %+v: rank %d: %v", i, l, r, err)
					}
				}
				if elapsed > limit+min(waited(), limit) {
					t.Errorf("lie %d, %+v: it elapsed %v, want at most %v: %v", i, l, elapsed, limit, errs)
				}
				mu.Lock()
				lasted[l.protection] = append(lasted[l.protection], elapsed)
				if hit {
					hits[l.protection]++
				}
				if slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
					failures[l.protection]++
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	var all strings.Builder
	for _, p := range protections() {
		d := slices.Sorted(slices.Values(lasted[p]))
		if len(d) == 0 || hits[p] == 0 {
			t.Errorf("%s: no frame was altered in %d tries", p, len(d))
			continue
		}
		fmt.Fprintf(&all, "\n%s: %d tries, %d altered, %d ended by errors; p50 %v, p99 %v, max %v", p, len(d), hits[p], failures[p],
			d[len(d)/2].Round(time.Millisecond), d[len(d)*99/100].Round(time.Millisecond), d[len(d)-1].Round(time.Millisecond))
	}
	t.Logf("seed %d:%s", seed, &all)
}
