package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
	"github.com/tutti-go/tutti/topology"
)

// The algorithms of this family work in two levels. Within a host, ranks use shared memory if they
// have it, and messages otherwise. Between hosts, one rank of each host runs another algorithm. In
// the split algorithm several ranks of each host do so, each with a part of the vector. A host may
// have any number of ranks, and ranks may be placed in any way.
//
// Within a host, shares are folded one after the other in the order of the host's ranks. The order
// is the same with and without shared memory, so both give the same bits.

// The names of the hierarchical algorithms.
const (
	hierarchical      = "hierarchical"       // one rank of each host
	hierarchicalSplit = "hierarchical_split" // several ranks of each host, each with a part
)

// Hierarchical reports whether an algorithm distinguishes hosts. Such an algorithm uses shared
// memory within a host if the host's ranks have it. Either the ranks of every host in a round have
// shared memory, or the ranks of no host. On one host, or with one rank per host, a hierarchical
// algorithm has no advantage.
func (a Algorithm) Hierarchical() bool {
	name := a.Name()
	return name == hierarchical || name == hierarchicalSplit
}

// SupportsOrderOn is like SupportsOrder, for ranks with the placement l. A hierarchical algorithm
// folds in rank order only if the placement's hosts are in rank order.
func (a Algorithm) SupportsOrderOn(order reduce.Order, l *topology.Layout) bool {
	return a.SupportsOrder(order) && (order != reduce.RankOrder || !a.Hierarchical() || l.InOrder())
}

// crossHost returns r restricted to the ranks with local index i, one per host. It returns nil on
// all other ranks. Every host must have more than i ranks.
func crossHost(r *p2p.Round, i int) *p2p.Round {
	l := r.Layout()
	return r.Among(l.HostLayout(), func(host int) int {
		first, _ := l.Host(host)
		return l.Rank(first + i)
	})
}

// leaders returns r restricted to one rank of each host, numbered by host. On the root's host this
// rank is the root, and on every other host it is the first rank. leaders returns nil on all other
// ranks.
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

// leaderOf returns the local index of the rank that represents this host between hosts: the root on
// its own host, and the first rank on every other host.
func leaderOf(r *p2p.Round, root int) int {
	l := r.Layout()
	host := l.HostOf(root)
	if l.HostOf(r.Rank()) != host {
		return 0
	}
	first, _ := l.Host(host)
	return l.Position(root) - first
}

// reduceOnHost folds the vectors that a host's ranks hold in src, in the order of the ranks, and
// leaves the unfinished fold in dst on the root. dst may be the same memory as src, and is ignored
// on other ranks.
func reduceOnHost(ctx context.Context, host *p2p.Round, root int, dst, src []byte, k reduce.Kernel) error {
	if host.HasShared() {
		return sharedReduce(ctx, host, root, dst, src, k)
	}
	return linearReduce(ctx, host, root, dst, src, k)
}

// broadcastOnHost copies buf from the root to every rank of a host.
func broadcastOnHost(ctx context.Context, host *p2p.Round, root int, buf []byte) error {
	if host.HasShared() {
		return sharedBroadcast(ctx, host, root, buf)
	}
	return binomialBroadcast(ctx, host, root, buf)
}

// reduceScatterOnHost replaces this rank's chunk of buf by the unfinished fold of that chunk
// over the host's ranks, in their order. Without shared memory, the order of arrival differs
// from the order of the fold, so all shares are kept until the last one has arrived.
func reduceScatterOnHost(ctx context.Context, host *p2p.Round, buf chunks, k reduce.Kernel) error {
	if host.HasShared() {
		return sharedReduceScatter(ctx, host, buf.of(host.Rank()), buf, k)
	}
	n, me := host.Size(), host.Rank()
	own := buf.of(me)
	size := len(own)
	shares := host.Scratch(n * size) // the order of arrival differs from the order of the fold
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

// allGatherOnHost gives every rank of a host the chunks of all ranks of that host.
func allGatherOnHost(ctx context.Context, host *p2p.Round, buf chunks) error {
	if host.HasShared() {
		return sharedAllGather(ctx, host, buf, buf.of(host.Rank()))
	}
	return ringAllGather(ctx, host, buf)
}

// A permutation holds a vector and a copy of it whose chunks are reordered host by host. With ranks
// 0 and 2 on one host, and 1 and 3 on another:
//
//	byRank       chunk 0   chunk 1   chunk 2   chunk 3
//	byPosition   chunk 0   chunk 2   chunk 1   chunk 3
//	byHost       chunks 0 and 2      chunks 1 and 3
//
// All chunks of a host are adjacent in the reordered vector, so one message can carry them to
// another host.
type permutation struct {
	byRank     chunks // the caller's vector
	byPosition chunks // the reordered vector; the caller's vector if hosts are in rank order
	byHost     chunks // the reordered vector, with one chunk per host
	r          *p2p.Round
}

// permute returns the permutation of a vector. It allocates the reordered vector, but copies no
// chunks. If hosts are in rank order, the reordered vector is the caller's vector.
func permute(r *p2p.Round, all chunks) permutation {
	l, n := r.Layout(), r.Size()
	// One piece of scratch memory holds the offsets of the chunks and the offsets of the hosts.
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

// ownHost returns the chunks of this rank's host, one chunk per rank of the host.
func (v permutation) ownHost() chunks {
	l := v.r.Layout()
	first, end := l.Host(l.HostOf(v.r.Rank()))
	c := v.byPosition
	c.n, c.starts = end-first, c.starts[first:end+1]
	return c
}

// otherHosts returns the parts of the reordered vector before and after this host's chunks.
func (v permutation) otherHosts() (before, after []byte) {
	own := v.ownHost()
	return own.buf[:own.starts[0]], own.buf[own.starts[own.n]:]
}

// copyIn copies the caller's vector into the reordered vector.
func (v permutation) copyIn() {
	v.each(func(ordered, ranked []byte) { copy(ordered, ranked) })
}

// copyOut copies all chunks back to their positions in the caller's vector.
func (v permutation) copyOut() {
	v.each(func(ordered, ranked []byte) { copy(ranked, ordered) })
}

// each calls the function visit once for every chunk. It passes the chunk's memory in the reordered
// vector and in the caller's vector. It does nothing if both vectors are the same memory.
func (v permutation) each(visit func(ordered, ranked []byte)) {
	if same(v.byPosition.buf, v.byRank.buf) {
		return
	}
	for position := range v.byPosition.n {
		visit(v.byPosition.of(position), v.byRank.of(v.r.Layout().Rank(position)))
	}
}
