package p2p

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
	"github.com/tutti-go/tutti/rendezvous"
	"github.com/tutti-go/tutti/tensor"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/memory"
)

// rigLimit bounds what a rig does at once, so that a deadlock is a failure.
const rigLimit = 30 * time.Second

// A rig is a group of ranks that are goroutines of this test, joined in memory.
type rig struct {
	nodes []*node
	seq   uint32
}

// A node is one rank of a rig, and what it hears of the others.
type node struct {
	engine *rendezvous.Engine
	mesh   *mesh.Mesh
	group  *Group
}

func (n *node) Verdict(e *fault.Error) {
	for _, p := range e.Peers {
		n.engine.FailPeer(p.Rank, e)
	}
}

func (n *node) Goodbye(rank int) {
	n.engine.FailPeer(rank, fault.New(fault.Closed, "close", rank, ""))
}

func (n *node) Flooded(int, byte, []byte)   {}
func (n *node) Question(int, []byte) []byte { return nil }
func (n *node) LastCall() string            { return "a test" }

// newRig starts n ranks that share memory, and closes them when the test ends.
func newRig(t *testing.T, n, segment int) *rig {
	t.Helper()
	leak.Check(t)
	hub := memory.New()
	g := &rig{nodes: make([]*node, n)}
	peers, all, wires := make([]string, n), make([]int, n), make([]transport.Transport, n)
	for i := range peers {
		peers[i], all[i], wires[i] = hub.Addr(i), i, hub.Transport()
	}
	shared := tensor.Bytes(make([]uint64, SharedSize(n)/8))
	g.each(t, func(ctx context.Context, i int) error {
		nd := &node{engine: rendezvous.New(rendezvous.Config{Rank: i, Size: n})}
		m, err := mesh.Start(ctx, mesh.Config{
			Rank: i, Size: n, Job: "test/" + hub.ID(), Transport: wires[i], Peers: peers,
			InProcess: true, Events: nd, Data: nd.engine,
			Heartbeat: time.Minute, Silence: time.Hour, // so that the tests' own load looks like no failure
		})
		if err != nil {
			return err
		}
		nd.mesh = m
		nd.engine.Bind(m)
		nd.group = NewGroup(nd.engine, Options{ID: 7, Ranks: all, Rank: i, Segment: segment})
		nd.group.SetShared(shared)
		g.nodes[i] = nd
		return nil
	})
	t.Cleanup(func() {
		g.each(t, func(ctx context.Context, i int) error {
			g.nodes[i].engine.End(fault.New(fault.Closed, "close", i, ""))
			return g.nodes[i].mesh.Close(ctx)
		})
	})
	return g
}

// round has all ranks be in one round at once.
func (g *rig) round(t *testing.T, f func(ctx context.Context, r *Round) error) {
	t.Helper()
	g.seq++
	g.each(t, func(ctx context.Context, i int) error {
		r := g.nodes[i].group.NewRound(g.seq, uint64(g.seq), nil)
		defer r.End()
		return f(ctx, r)
	})
}

// each calls f for every rank at once, and fails the test by the first error,
// which ends the others' contexts.
func (g *rig) each(t *testing.T, f func(ctx context.Context, rank int) error) {
	t.Helper()
	limited, stop := context.WithTimeout(context.Background(), rigLimit)
	defer stop()
	ctx, cancel := context.WithCancelCause(limited)
	defer cancel(nil)
	var wg sync.WaitGroup
	for i := range g.nodes {
		wg.Go(func() {
			if err := f(ctx, i); err != nil && !errors.Is(err, context.Canceled) {
				cancel(fmt.Errorf("rank %d of %d: %w", i, len(g.nodes), err))
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		t.Fatal(err)
	}
}
