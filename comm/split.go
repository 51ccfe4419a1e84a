package comm

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/tensor"
)

// Undefined is the color of a rank to which Split gives no communicator.
const Undefined = -1

// Split makes one communicator for each color that the ranks pass (MPI_Comm_split). Its members are
// the ranks that passed the color, ordered by key and then by their rank in c. All ranks of c must
// call Split. A rank that passes Undefined gets nil. The new communicators use the table of
// algorithms of c. They share memory if their own ranks can, even if the ranks of c cannot.
func (c *Comm) Split(ctx context.Context, color, key int) (*Comm, error) {
	if color < Undefined {
		return nil, c.misuse("split", "color: got %d, want 0 or more, or Undefined", color)
	}
	n := c.Size()
	mine := []int64{int64(color), int64(key)}
	all := make([]int64, 2*n)
	if err := c.gatherWords(ctx, "split", all, mine); err != nil {
		return nil, err
	}
	// Ranks that get no communicator count it, too, so that the counters of all ranks stay equal.
	id := c.child(uint64(color))
	if color == Undefined {
		return nil, nil
	}
	var members []int
	for r := range n {
		if all[2*r] == int64(color) {
			members = append(members, r)
		}
	}
	// The sort is stable, so ranks with equal keys keep their order.
	slices.SortStableFunc(members, func(a, b int) int { return cmp.Compare(all[2*a+1], all[2*b+1]) })
	return c.derive(ctx, "split", id, members, c.table)
}

// Dup makes a communicator of the same ranks, whose messages and collectives never match those of
// c. All ranks of c must call Dup. The option Algorithm takes a list in the form of WithAlgorithm,
// and forces these algorithms in the new communicator, for example to compare algorithms within one
// job. An empty list forces only what c forces. Ranks that pass different lists get fault.Mismatch.
func (c *Comm) Dup(ctx context.Context, opts ...CallOption) (*Comm, error) {
	table, list := c.table, ""
	for _, o := range opts {
		if o.kind != optionAlgorithm {
			return nil, c.misuse("dup", "options: got %v, want none but Algorithm", o.kind)
		}
		list = tensor.Text(o.data)
		var err error
		if table, err = c.table.WithForced(list); err != nil {
			return nil, c.withOp("dup", err)
		}
	}
	n := c.Size()
	lists := make([]int64, n)
	if err := c.gatherWords(ctx, "dup", lists, []int64{int64(hashText(list))}); err != nil {
		return nil, err
	}
	members := make([]int, n)
	for i := range members {
		members[i] = i
	}
	id := c.child(0)
	for r, other := range lists {
		if other != lists[0] {
			return nil, &fault.Error{Kind: fault.Mismatch, Op: "dup", Rank: c.rt.rank,
				Peers: []fault.Peer{c.rt.peer(c.WorldRank(r)), c.rt.peer(c.WorldRank(0))},
				Err:   fault.New(fault.Misuse, "dup", c.rt.rank, "forced algorithms: got different lists, want one on all ranks; the list on this rank is %q", list)}
		}
	}
	return c.derive(ctx, "dup", id, members, table)
}

// Sub makes a communicator of some ranks of c, in the given order (MPI_Comm_create_group). Only
// these ranks call Sub, all with the same list; the other ranks take no part. Sub returns when all
// of these ranks have called it. Ranks that pass the same ranks in a different order get
// fault.Mismatch.
//
// Sub works after the loss of a rank that is not in the list. It asks for no quorum, so both sides
// of a broken network could each make a communicator and go on. After a loss, call Shrink instead.
func (c *Comm) Sub(ctx context.Context, ranks ...int) (*Comm, error) {
	if err := checkContext("sub", ctx); err != nil {
		return nil, err
	}
	seen := make(map[int]bool)
	for _, r := range ranks {
		if r < 0 || r >= c.Size() || seen[r] {
			return nil, c.misuse("sub", "ranks: got %d in %v, want different ranks from 0 to %d", r, ranks, c.Size()-1)
		}
		seen[r] = true
	}
	if !seen[c.Rank()] {
		return nil, c.misuse("sub", "ranks: got %v, want a list with this rank, %d; only members call Sub", ranks, c.Rank())
	}
	// Only the members call Sub, so the communicator's own counter must not advance. Each set of
	// ranks has its own counter. The set ignores the order of the list, so ranks that pass
	// different orders meet in one communicator, in which they detect the difference.
	set := hashRanks(slices.Sorted(slices.Values(ranks)))
	c.mu.Lock()
	if err := c.unusable(); err != nil {
		c.mu.Unlock()
		return nil, c.withOp("sub", err)
	}
	if c.subs == nil {
		c.subs = make(map[uint64]uint64)
	}
	c.subs[set]++
	id := childID(c.id, set, c.subs[set])
	c.mu.Unlock()
	sub := c.member(id, ranks, c.table)
	// The first collective shows whether all ranks have passed the same list. Its name contains the
	// list, so ranks whose lists differ get a mismatch that names both lists.
	if err := sub.executeAs(ctx, sub.listName(), barrier(new(plan))); err != nil {
		sub.Close(ctx)
		return nil, c.withOp("sub", err)
	}
	return c.complete(ctx, "sub", sub)
}

// hashRanks returns a hash of a list of ranks.
func hashRanks(ranks []int) uint64 {
	h := fnv.New64a()
	var b [8]byte
	for _, r := range ranks {
		binary.LittleEndian.PutUint64(b[:], uint64(r))
		h.Write(b[:])
	}
	return h.Sum64()
}

// maxListed bounds the number of ranks in the name of Sub's first collective. The name of a longer
// list contains a hash of the whole list instead of the other ranks.
const maxListed = 16

// listName returns the name of Sub's first collective, which differs for different lists of ranks:
// "sub of ranks [2 0 1]". The ranks are numbered in the job.
func (c *Comm) listName() string {
	ranks := make([]int, c.Size())
	for i := range ranks {
		ranks[i] = c.WorldRank(i)
	}
	if len(ranks) <= maxListed {
		return fmt.Sprintf("sub of ranks %v", ranks)
	}
	return fmt.Sprintf("sub of %d ranks %v…, hash %x,", len(ranks), ranks[:maxListed], hashRanks(ranks))
}

// child returns the id of the next communicator made from c. Making a communicator is a collective,
// so the counters of all ranks are equal, and the ranks agree on the id without a message.
func (c *Comm) child(color uint64) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.children++
	return childID(c.id, c.children, color)
}

// childID returns the id of a child of the communicator parent: a hash of 63 bits. Two
// communicators that exist at the same time have equal ids with a probability of about 2 to the
// power of -63 per pair. The top bit of the id stays free.
func childID(parent, n, color uint64) uint64 {
	h := fnv.New64a()
	var b [24]byte
	binary.LittleEndian.PutUint64(b[0:], parent)
	binary.LittleEndian.PutUint64(b[8:], n)
	binary.LittleEndian.PutUint64(b[16:], color)
	h.Write(b[:])
	return h.Sum64() >> 1
}

// derive makes the communicator of some ranks of c, with a table of algorithms. The parameter call
// is the name of the exported call. The parameter members lists ranks of c, in their new order. All
// members call derive with the same id.
func (c *Comm) derive(ctx context.Context, call string, id uint64, members []int, table *collective.Table) (*Comm, error) {
	return c.complete(ctx, call, c.member(id, members, table))
}

// member makes the communicator of some ranks of c. It exchanges no messages.
func (c *Comm) member(id uint64, members []int, table *collective.Table) *Comm {
	ranks := make([]int, len(members))
	rank := 0
	for i, r := range members {
		ranks[i] = c.group.WorldRank(r)
		if r == c.Rank() {
			rank = i
		}
	}
	return newComm(c.rt, id, ranks, rank, table)
}

// complete exchanges messages among the members of a new communicator, to agree on transports and
// shared memory. It returns the communicator, or closes it after an error.
func (c *Comm) complete(ctx context.Context, call string, made *Comm) (*Comm, error) {
	if err := made.share(ctx, call); err != nil {
		made.Close(ctx)
		return nil, c.withOp(call, err)
	}
	return made, nil
}
