// Package teamtest starts ranks as goroutines of a test and connects them with package p2p. Tests
// of rounds, and of algorithms that use rounds, run on it.
package teamtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/rendezvous"
	"github.com/tutti-go/tutti/tensor"
	"github.com/tutti-go/tutti/topology"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/memory"
)

// roundLimit bounds a round of a test, so that a deadlock becomes a failure.
const roundLimit = 30 * time.Second

// ID is the id of the team's communicator. Its bytes do not occur elsewhere on the wire.
const ID = 0x5eed_7ea3_0c11_ec71

// A Team is n ranks that are goroutines of this test, connected by the memory transport.
type Team struct {
	Ranks     []*Member
	Seq       uint32 // the number of the last round
	SharedMem []byte // the memory that the ranks of the first host share
}

// A Member is one rank of a Team. It implements mesh.Events: it passes the loss or the orderly
// close of a rank to its engine.
type Member struct {
	Group  *p2p.Group
	engine *rendezvous.Engine
	mesh   *mesh.Mesh
}

func (m *Member) Failed(e *fault.Error) {
	for _, p := range e.Peers {
		m.engine.FailPeer(p.Rank, e)
	}
}

func (m *Member) Goodbye(rank int) {
	m.engine.FailPeer(rank, fault.New(fault.Closed, "close", rank, ""))
}

func (m *Member) Flooded(int, byte, []byte)   {}
func (m *Member) Question(int, []byte) []byte { return nil }
func (m *Member) LastCall(b []byte) []byte    { return append(b, "a test"...) }

// New starts n ranks. The parameter segment is the size of a segment in bytes; 0 means the default.
// New closes the ranks when the test ends, and fails the test if they leave resources behind.
func New(t testing.TB, n, segment int) *Team {
	t.Helper()
	return Start(t, n, segment, NoWrapper)
}

// A Wrapper wraps the transport of a rank.
type Wrapper func(rank int, t transport.Transport) transport.Transport

// NoWrapper returns the transport itself.
func NoWrapper(_ int, t transport.Transport) transport.Transport { return t }

// Start does the same as New, and wraps the transport of each rank.
func Start(t testing.TB, n, segment int, wrap Wrapper) *Team {
	t.Helper()
	return StartAt(t, make([]topology.Place, n), SharedMemory, segment, wrap)
}

// Values of StartAt's parameter share.
const (
	SharedMemory   = true
	NoSharedMemory = false
)

// StartAt does the same as Start, with one rank for each place in the topology. If share is true,
// the ranks of a host share memory.
func StartAt(t testing.TB, hosts []topology.Place, share bool, segment int, wrap Wrapper) *Team {
	t.Helper()
	n := len(hosts)
	leak.Check(t)
	hub := memory.New()
	tm := &Team{Ranks: make([]*Member, n)}
	peers, all := make([]string, n), make([]int, n)
	for i := range peers {
		peers[i], all[i] = hub.Addr(i), i
	}
	transports := make([]transport.Transport, n)
	for i := range transports {
		transports[i] = wrap(i, hub.Transport())
	}
	l := topology.New(hosts)
	memory := make([][]byte, l.Hosts())
	for host := range memory {
		first, end := l.Host(host)
		memory[host] = tensor.Bytes(make([]uint64, p2p.SharedSize(end-first)/8))
	}
	tm.SharedMem = memory[0]
	tm.Each(t, func(ctx context.Context, i int) error {
		m := &Member{engine: rendezvous.New(rendezvous.Config{Rank: i, Size: n})}
		var err error
		m.mesh, err = mesh.Start(ctx, mesh.Config{
			Rank: i, Size: n, Job: "test/" + hub.ID(), Transport: transports[i], Peers: peers,
			InProcess: true, Events: m, Data: m.engine,
			Heartbeat: time.Minute, Silence: time.Hour, // a loaded machine is no failure
		})
		if err != nil {
			return err
		}
		m.engine.Bind(m.mesh)
		m.Group = p2p.NewGroup(m.engine, p2p.Options{ID: ID, Ranks: all, Rank: i, Segment: segment})
		m.Group.SetLayout(l)
		switch {
		case share && l.Hosts() == 1:
			m.Group.SetShared(tm.SharedMem)
		case share:
			m.Group.SetHostShared(memory[l.HostOf(i)])
		}
		tm.Ranks[i] = m
		return nil
	})
	t.Cleanup(func() { tm.close(t) })
	return tm
}

func (tm *Team) close(t testing.TB) {
	tm.Each(t, func(ctx context.Context, i int) error {
		tm.Ranks[i].engine.End(fault.New(fault.Closed, "close", i, ""))
		return tm.Ranks[i].mesh.Close(ctx)
	})
}

// Run calls f for every rank at the same time, each with its Round of the team's next operation.
func (tm *Team) Run(t testing.TB, f func(ctx context.Context, r *p2p.Round) error) {
	t.Helper()
	tm.Seq++
	tm.Each(t, func(ctx context.Context, i int) error {
		r := tm.Ranks[i].Group.NewRound(tm.Seq, uint64(tm.Seq), nil)
		defer r.End()
		return f(ctx, r)
	})
}

// Each calls f for every rank at the same time. The first error fails the test and ends the
// contexts of the others.
func (tm *Team) Each(t testing.TB, f func(ctx context.Context, rank int) error) {
	t.Helper()
	limited, stop := context.WithTimeout(context.Background(), roundLimit)
	defer stop()
	ctx, cancel := context.WithCancelCause(limited)
	defer cancel(nil)
	var wg sync.WaitGroup
	for i := range tm.Ranks {
		wg.Go(func() {
			if err := f(ctx, i); err != nil && !errors.Is(err, context.Canceled) {
				cancel(fmt.Errorf("rank %d of %d: %w", i, len(tm.Ranks), err))
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		t.Fatal(err)
	}
}
