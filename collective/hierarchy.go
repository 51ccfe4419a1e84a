package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
	"github.com/tutti-go/tutti/topology"
)

// The algorithms of this family work in two levels: within each host, in memory
// that its ranks share, or by messages where they share none; and between hosts,
// where a rank of each, or several of each with a part of the vector, run another
// algorithm among themselves. A host may have any number of ranks, and ranks may be
// placed in any way.
//
// Within a host shares are folded one after the other in the order of its ranks,
// with shared memory or without, so bits do not depend on it.

// The names of this family's algorithms.
const (
	hierarchical      = "hierarchical"       // one rank of each host
	hierarchicalSplit = "hierarchical_split" // several ranks of each host, each with its part
)

// Hierarchical reports whether an algorithm tells hosts apart. It works in memory
// that the ranks of a host share, where they do; rounds of ranks that differ in
// that do not meet. On one host, and with one rank on each, it gains nothing.
func (a Algorithm) Hierarchical() bool {
	name := a.Name()
	return name == hierarchical || name == hierarchicalSplit
}

// SupportsOrderOn is Takes for ranks that are placed in that way: an algorithm that tells
// hosts apart folds in rank order only where hosts are.
func (a Algorithm) SupportsOrderOn(order reduce.Order, l *topology.Layout) bool {
	return a.SupportsOrder(order) && (order != reduce.RankOrder || !a.Hierarchical() || l.InOrder())
}

// crossHost is r as seen by the ranks that are number i on their hosts; nil on others.
// Every host has more than i ranks.
func crossHost(r *p2p.Round, i int) *p2p.Round {
	l := r.Layout()
	return r.Among(l.HostLayout(), func(host int) int {
		first, _ := l.Host(host)
		return l.Rank(first + i)
	})
}

// leaders is r as seen by one rank of each host, in which a host's number is its
// rank's: the root on its own, the first on others. It is nil on others.
func leaders(r *p2p.Round, root int) *p2p.Round {
	l := r.Layout()
	return r.Among(l.HostLayout(), func(host int) int {
		if l.HostOf(root) == host {
			return root
		}
		first, _ := l.Host(host)
		return l.Rank(first)
	})
}

// leaderOf is which rank of this rank's host is the one in heads.
func leaderOf(r *p2p.Round, root int) int {
	l := r.Layout()
	host := l.HostOf(root)
	if l.HostOf(r.Rank()) != host {
		return 0
	}
	first, _ := l.Host(host)
	return l.Position(root) - first
}

// reduceOnHost leaves in dst, on the root, the unfinished fold of src of the ranks of
// a host, in their order. dst may be src; on other ranks it is not looked at.
func reduceOnHost(ctx context.Context, host *p2p.Round, root int, dst, src []byte, k reduce.Kernel) error {
	if host.HasShared() {
		return sharedReduce(ctx, host, root, dst, src, k)
	}
	return linearReduce(ctx, host, root, dst, src, k)
}

// broadcastOnHost leaves the root's buf on every rank of a host.
func broadcastOnHost(ctx context.Context, host *p2p.Round, root int, buf []byte) error {
	if host.HasShared() {
		return sharedBroadcast(ctx, host, root, buf)
	}
	return binomialBroadcast(ctx, host, root, buf)
}

// reduceScatterOnHost leaves in place of this rank's chunk of buf the unfinished fold of the
// host's ranks' chunks, in their order.
func reduceScatterOnHost(ctx context.Context, host *p2p.Round, buf chunks, k reduce.Kernel) error {
	if host.HasShared() {
		return sharedReduceScatter(ctx, host, buf.of(host.Rank()), buf, k)
	}
	n, me := host.Size(), host.Rank()
	own := buf.of(me)
	size := len(own)
	shares := host.Scratch(n * size) // they come in another order than they are folded in
	copy(shares[me*size:], own)
	for step := 1; step < n; step++ {
		to, from := modulo(me+step, n), modulo(me-step, n)
		if err := host.Exchange(ctx, to, buf.of(to), from, shares[from*size:][:size]); err != nil {
			return err
		}
	}
	copy(own, shares[:size])
	for rank := 1; rank < n; rank++ {
		k.Fold(own, own, shares[rank*size:][:size])
	}
	return nil
}

// allGatherOnHost leaves on every rank of a host the chunks of all of them.
func allGatherOnHost(ctx context.Context, host *p2p.Round, buf chunks) error {
	if host.HasShared() {
		return sharedAllGather(ctx, host, buf, buf.of(host.Rank()))
	}
	return ringAllGather(ctx, host, buf)
}

// An permutation is a vector whose chunks lie in the order of hosts.
type permutation struct {
	byRank     chunks // the vector as its caller has it
	byPosition chunks // the vector with its chunks in order: the same memory, where they are
	byHost     chunks // the same, with one chunk for all ranks of a host
	r          *p2p.Round
}

// permute makes room for a vector in the order of hosts; nothing is copied yet.
func permute(r *p2p.Round, all chunks) permutation {
	l, n := r.Layout(), r.Size()
	words := tensor.Elements[int64](r.Scratch(8 * (n + 1 + l.Hosts() + 1)))
	starts, ends := words[:n+1], words[n+1:]
	starts[0] = 0
	for position := range n {
		starts[position+1] = starts[position] + int64(len(all.of(l.Rank(position))))
	}
	ends[0] = 0
	for host := range l.Hosts() {
		_, end := l.Host(host)
		ends[host+1] = starts[end]
	}
	buf := all.buf
	if !l.InOrder() {
		buf = r.Scratch(len(buf))
	}
	return permutation{
		byRank: all, r: r,
		byPosition: chunks{buf: buf, n: n, elem: all.elem, starts: starts},
		byHost:     chunks{buf: buf, n: l.Hosts(), elem: all.elem, starts: ends},
	}
}

// ownHost is the chunks of this rank's host, one for each of its ranks.
func (v permutation) ownHost() chunks {
	l := v.r.Layout()
	first, end := l.Host(l.HostOf(v.r.Rank()))
	c := v.byPosition
	c.n, c.starts = end-first, c.starts[first:end+1]
	return c
}

// otherHosts is what comes before this rank's host's chunks, and what comes after.
func (v permutation) otherHosts() (before, after []byte) {
	own := v.ownHost()
	return own.buf[:own.starts[0]], own.buf[own.starts[own.n]:]
}

// copyIn copies the caller's vector into the order of hosts.
func (v permutation) copyIn() {
	v.each(func(ordered, ranked []byte) { copy(ordered, ranked) })
}

// copyOut copies all chunks to where the caller has them.
func (v permutation) copyOut() {
	v.each(func(ordered, ranked []byte) { copy(ranked, ordered) })
}

func (v permutation) each(visit func(ordered, ranked []byte)) {
	if same(v.byPosition.buf, v.byRank.buf) {
		return
	}
	for position := range v.byPosition.n {
		visit(v.byPosition.of(position), v.byRank.of(v.r.Layout().Rank(position)))
	}
}
