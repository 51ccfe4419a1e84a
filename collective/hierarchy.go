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

// TakesOn is Takes for ranks that are placed in that way: an algorithm that tells
// hosts apart folds in rank order only where hosts are.
func (a Algorithm) TakesOn(order reduce.Order, l *topology.Layout) bool {
	return a.Takes(order) && (order != reduce.RankOrder || !a.Hierarchical() || l.InOrder())
}

// lane is r as seen by the ranks that are number i on their hosts; nil on others.
// Every host has more than i ranks.
func lane(r *p2p.Round, i int) *p2p.Round {
	l := r.Layout()
	return r.Among(l.Across(), func(host int) int {
		first, _ := l.Host(host)
		return l.Rank(first + i)
	})
}

// heads is r as seen by one rank of each host, in which a host's number is its
// rank's: the root on its own, the first on others. It is nil on others.
func heads(r *p2p.Round, root int) *p2p.Round {
	l := r.Layout()
	return r.Among(l.Across(), func(host int) int {
		if l.HostOf(root) == host {
			return root
		}
		first, _ := l.Host(host)
		return l.Rank(first)
	})
}

// headOf is which rank of this rank's host is the one in heads.
func headOf(r *p2p.Round, root int) int {
	l := r.Layout()
	host := l.HostOf(root)
	if l.HostOf(r.Rank()) != host {
		return 0
	}
	first, _ := l.Host(host)
	return l.Place(root) - first
}

// foldWithin leaves in dst, on the root, the unfinished fold of src of the ranks of
// a host, in their order. dst may be src; on other ranks it is not looked at.
func foldWithin(ctx context.Context, host *p2p.Round, root int, dst, src []byte, k reduce.Kernel) error {
	if host.HasShared() {
		return sharedReduce(ctx, host, root, dst, src, k)
	}
	return linearReduce(ctx, host, root, dst, src, k)
}

// spreadWithin leaves the root's buf on every rank of a host.
func spreadWithin(ctx context.Context, host *p2p.Round, root int, buf []byte) error {
	if host.HasShared() {
		return sharedBroadcast(ctx, host, root, buf)
	}
	return binomialBroadcast(ctx, host, root, buf)
}

// dealWithin leaves in place of this rank's chunk of buf the unfinished fold of the
// host's ranks' chunks, in their order.
func dealWithin(ctx context.Context, host *p2p.Round, buf chunks, k reduce.Kernel) error {
	if host.HasShared() {
		return sharedReduceScatter(ctx, host, buf.of(host.Rank()), buf, k)
	}
	n, me := host.Size(), host.Rank()
	own := buf.of(me)
	size := len(own)
	shares := host.Scratch(n * size) // they come in another order than they are folded in
	copy(shares[me*size:], own)
	for step := 1; step < n; step++ {
		to, from := mod(me+step, n), mod(me-step, n)
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

// shareWithin leaves on every rank of a host the chunks of all of them.
func shareWithin(ctx context.Context, host *p2p.Round, buf chunks) error {
	if host.HasShared() {
		return sharedAllGather(ctx, host, buf, buf.of(host.Rank()))
	}
	return ringAllGather(ctx, host, buf)
}

// An arrangement is a vector whose chunks lie in the order of hosts.
type arrangement struct {
	byRank  chunks // the vector as its caller has it
	byPlace chunks // the vector with its chunks in order: the same memory, where they are
	byHost  chunks // the same, with one chunk for all ranks of a host
	r       *p2p.Round
}

// arrange makes room for a vector in the order of hosts; nothing is copied yet.
func arrange(r *p2p.Round, all chunks) arrangement {
	l, n := r.Layout(), r.Size()
	words := tensor.Elements[int64](r.Scratch(8 * (n + 1 + l.Hosts() + 1)))
	starts, ends := words[:n+1], words[n+1:]
	starts[0] = 0
	for place := range n {
		starts[place+1] = starts[place] + int64(len(all.of(l.Rank(place))))
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
	return arrangement{
		byRank: all, r: r,
		byPlace: chunks{buf: buf, n: n, elem: all.elem, starts: starts},
		byHost:  chunks{buf: buf, n: l.Hosts(), elem: all.elem, starts: ends},
	}
}

// own is the chunks of this rank's host, one for each of its ranks.
func (v arrangement) own() chunks {
	l := v.r.Layout()
	first, end := l.Host(l.HostOf(v.r.Rank()))
	c := v.byPlace
	c.n, c.starts = end-first, c.starts[first:end+1]
	return c
}

// others is what comes before this rank's host's chunks, and what comes after.
func (v arrangement) others() (before, after []byte) {
	own := v.own()
	return own.buf[:own.starts[0]], own.buf[own.starts[own.n]:]
}

// in copies the caller's vector into the order of hosts.
func (v arrangement) in() {
	v.each(func(placed, ranked []byte) { copy(placed, ranked) })
}

// out copies all chunks to where the caller has them.
func (v arrangement) out() {
	v.each(func(placed, ranked []byte) { copy(ranked, placed) })
}

func (v arrangement) each(do func(placed, ranked []byte)) {
	if same(v.byPlace.buf, v.byRank.buf) {
		return
	}
	for place := range v.byPlace.n {
		do(v.byPlace.of(place), v.byRank.of(v.r.Layout().Rank(place)))
	}
}
