package collective

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/leak"
	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/rendezvous"
	"github.com/tutti-go/tutti/tensor"
	"github.com/tutti-go/tutti/topology"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/memory"
)

// roundLimit bounds a round of a test, so that a deadlock is a failure.
const roundLimit = 30 * time.Second

// teamID is the team's communicator: a number that no other bytes look like.
const teamID = 0x5eed_7ea3_0c11_ec71

// A team is n ranks that are goroutines of this test, joined in memory.
type team struct {
	ranks  []*member
	seq    uint32
	shared []byte // the memory that all ranks have
}

// A member is one rank of a team, and what it hears of the others.
type member struct {
	engine *rendezvous.Engine
	mesh   *mesh.Mesh
	group  *p2p.Group
}

func (m *member) Verdict(e *fault.Error) {
	for _, p := range e.Peers {
		m.engine.FailPeer(p.Rank, e)
	}
}

func (m *member) Goodbye(rank int) {
	m.engine.FailPeer(rank, fault.New(fault.Closed, "close", rank, ""))
}

func (m *member) Flooded(int, byte, []byte)   {}
func (m *member) Question(int, []byte) []byte { return nil }
func (m *member) LastCall() string            { return "a test" }

// newTeam starts n ranks, and closes them when the test ends, which must leave
// nothing behind.
func newTeam(t testing.TB, n, segment int) *team {
	t.Helper()
	return startTeam(t, n, segment, bare)
}

// A wrapper puts something between a rank and its wire.
type wrapper func(rank int, t transport.Transport) transport.Transport

func bare(_ int, t transport.Transport) transport.Transport { return t }

func startTeam(t testing.TB, n, segment int, wrap wrapper) *team {
	t.Helper()
	return startPlacedTeam(t, make([]topology.Place, n), sharing, segment, wrap)
}

// Whether the ranks of a host share memory.
const (
	sharing = true
	alone   = false
)

// startPlacedTeam starts a rank at each place.
func startPlacedTeam(t testing.TB, places []topology.Place, share bool, segment int, wrap wrapper) *team {
	t.Helper()
	n := len(places)
	leak.Check(t)
	hub := memory.New()
	tm := &team{ranks: make([]*member, n)}
	peers, all := make([]string, n), make([]int, n)
	for i := range peers {
		peers[i], all[i] = hub.Addr(i), i
	}
	transports := make([]transport.Transport, n)
	for i := range transports {
		transports[i] = wrap(i, hub.Transport())
	}
	l := topology.New(places)
	memory := make([][]byte, l.Hosts())
	for host := range memory {
		first, end := l.Host(host)
		memory[host] = tensor.Bytes(make([]uint64, p2p.SharedSize(end-first)/8))
	}
	tm.shared = memory[0]
	tm.each(t, func(ctx context.Context, i int) error {
		m := &member{engine: rendezvous.New(rendezvous.Config{Rank: i, Size: n})}
		var err error
		m.mesh, err = mesh.Start(ctx, mesh.Config{
			Rank: i, Size: n, Job: "test/" + hub.ID(), Transport: transports[i], Peers: peers,
			InProcess: true, Events: m, Data: m.engine,
			Heartbeat: time.Minute, Silence: time.Hour, // so that the tests' own load looks like no failure
		})
		if err != nil {
			return err
		}
		m.engine.Bind(m.mesh)
		m.group = p2p.NewGroup(m.engine, p2p.Options{ID: teamID, Ranks: all, Rank: i, Segment: segment})
		m.group.SetLayout(l)
		switch {
		case share && l.Hosts() == 1:
			m.group.SetShared(tm.shared)
		case share:
			m.group.SetHostShared(memory[l.HostOf(i)])
		}
		tm.ranks[i] = m
		return nil
	})
	t.Cleanup(func() { tm.close(t) })
	return tm
}

func (tm *team) close(t testing.TB) {
	tm.each(t, func(ctx context.Context, i int) error {
		tm.ranks[i].engine.End(fault.New(fault.Closed, "close", i, ""))
		return tm.ranks[i].mesh.Close(ctx)
	})
}

// run has all ranks be in one round at once.
func (tm *team) run(t testing.TB, f func(ctx context.Context, r *p2p.Round) error) {
	t.Helper()
	tm.seq++
	tm.each(t, func(ctx context.Context, i int) error {
		r := tm.ranks[i].group.NewRound(tm.seq, uint64(tm.seq), nil)
		defer r.End()
		return f(ctx, r)
	})
}

// each calls f for every rank at once, and fails the test by the first error,
// which ends the others' contexts.
func (tm *team) each(t testing.TB, f func(ctx context.Context, rank int) error) {
	t.Helper()
	limited, stop := context.WithTimeout(context.Background(), roundLimit)
	defer stop()
	ctx, cancel := context.WithCancelCause(limited)
	defer cancel(nil)
	var wg sync.WaitGroup
	for i := range tm.ranks {
		wg.Go(func() {
			if err := f(ctx, i); err != nil && !errors.Is(err, context.Canceled) {
				cancel(fmt.Errorf("rank %d of %d: %w", i, len(tm.ranks), err))
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		t.Fatal(err)
	}
}
