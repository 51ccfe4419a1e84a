package comm

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/p2p"
)

// maxSharing bounds the number of ranks that share one memory region, because each of them polls
// the flags of all others.
const maxSharing = 64

// shareLimit bounds how long ranks wait for each other to map the memory. After that they go on
// without shared memory. The loss of a rank ends the wait as soon as the loss is known.
const shareLimit = 10 * time.Second

// sharerFor returns the transport's means to share memory among the given members, as seen from
// this rank. It returns nil if the transport has none, if there are more than maxSharing members,
// or if Parameters.NoSharedMemory is set. sharerFor passes the addresses of all members, because
// some transports choose a wire for each pair of ranks.
func (c *Comm) sharerFor(members []int) memorySharer {
	if len(members) > maxSharing {
		return nil
	}
	if c.rt.opt.params.NoSharedMemory {
		return nil
	}
	addrs := make([]string, len(members))
	for i, member := range members {
		addrs[i] = c.rt.mesh.Addr(c.group.WorldRank(member))
	}
	return c.rt.wire.sharerFor(addrs)
}

// share agrees with the other ranks on the transports between them, and maps shared memory if all
// ranks can. It runs when a communicator is made. It takes at most three small collectives. They
// use messages, which carry the name of the call that makes the communicator:
//
//  1. survey: which transports connect the ranks, and can all ranks share memory?
//  2. Rank 0 broadcasts a random token, which names the memory, and every rank maps the memory.
//  3. allAgree: has every rank mapped the memory? Otherwise all ranks unmap it.
//
// All ranks must choose the same algorithm, so either all ranks use the memory or none does. They
// therefore agree both before and after they map it. Ranks on different hosts cannot share memory,
// but the ranks of each host may; see shareOnHosts.
//
// If share succeeds, all members have gone on after earlier losses. This rank then drops the
// members' reactions to these losses.
func (c *Comm) share(ctx context.Context, call string) error {
	// A member that is done earlier may report a new loss during shareMemory. Such a report must
	// stay, so only the earlier reactions are dropped.
	reactions := c.rt.membersReactions(c)
	err := c.shareMemory(ctx, call)
	if err == nil {
		c.rt.dropReactions(reactions)
	}
	return err
}

// shareMemory does the work of share, except for the reactions.
func (c *Comm) shareMemory(ctx context.Context, call string) error {
	n := c.Size()
	if n == 1 {
		return nil
	}
	table := c.table
	// A forced algorithm may need the memory, which is not mapped yet, so the default table applies
	// meanwhile.
	c.setTable(collective.DefaultTable())
	defer func() { c.setTable(table) }()
	var sharer memorySharer
	if l := c.group.Layout(); l.Hosts() == 1 {
		sharer = c.sharerFor(l.Order())
	}
	all, err := c.survey(ctx, call, sharer != nil)
	if err != nil {
		return err
	}
	if !all {
		return c.shareOnHosts(ctx, call)
	}
	token := newToken()
	if err := c.executeAs(ctx, call, exchange(new(plan), collective.VerbBroadcast, token, 0)); err != nil {
		return err
	}
	mem, release := c.mapMemory(ctx, sharer, token, n)
	if all, err = c.allAgree(ctx, call, mem != nil); err != nil || !all {
		if mem != nil {
			release()
		}
		return err
	}
	c.group.SetShared(mem)
	// A test may delay or end a rank at each flag that it sets.
	if hook := c.rt.opt.flagHook; hook != nil {
		c.group.SetFlagHook(func(set func()) { hook(c.rt.rank, set) })
	}
	c.releaseMemory = release
	return nil
}

// tokenSize is the size in bytes of the random name of a group's memory.
const tokenSize = 16

// newToken returns a random name for a group's memory.
func newToken() []byte {
	token := make([]byte, tokenSize)
	rand.Read(token) // never fails since Go 1.24
	return token
}

// mapMemory maps memory for n ranks, which all call it with the same token. If that fails, it logs
// a warning and returns nil, and the communicator works by messages, which is slower. If the
// communicator has ended, for example because a rank was lost, it returns nil without a warning.
// The lost rank will not come, and the next collective returns the error.
func (c *Comm) mapMemory(ctx context.Context, sharer memorySharer, token []byte, n int) (mem []byte, release func() error) {
	limited, cancel := context.WithTimeout(ctx, shareLimit)
	var watcher sync.WaitGroup
	watcher.Go(func() {
		c.group.AwaitRevoke(limited)
		cancel()
	})
	mem, release, err := sharer.Share(limited, hex.EncodeToString(token), n, p2p.SharedSize(n))
	cancel()
	watcher.Wait()
	if err != nil {
		if !c.group.Revoked() {
			c.rt.log.Warn("tutti: the ranks cannot share memory, so their collectives use messages", "error", err)
		}
		return nil, nil
	}
	return mem, release
}

// shareOnHosts maps memory that the ranks of a host share, on every host where several ranks run
// and all of them can. All ranks of c exchange offers twice: first whether they can share memory,
// and then whether they have mapped it. Each rank considers only the offers of its own host. The
// token in the offer of the host's first rank names the memory. If the ranks of one host cannot
// share memory, other hosts are not affected.
func (c *Comm) shareOnHosts(ctx context.Context, call string) error {
	l := c.group.Layout()
	if l.Hosts() == 1 || l.MaxRanksPerHost() == 1 {
		return nil
	}
	first, end := l.Host(l.HostOf(c.Rank()))
	members := l.Order()[first:end]
	var sharer memorySharer
	if len(members) > 1 {
		sharer = c.sharerFor(members)
	}
	// Every rank receives every offer, and uses only the offers of its host. With one collective of
	// all ranks, the hosts need no communicators of their own.
	offers, err := c.exchangeOffers(ctx, call, sharer != nil)
	if err != nil {
		return err
	}
	mine := func(offers []byte) bool { // whether all ranks on this host offer to share
		return !slices.ContainsFunc(members, func(member int) bool { return offers[member*offerSize] == 0 })
	}
	var mem []byte
	var release func() error
	if mine(offers) {
		token := offers[members[0]*offerSize+1:][:tokenSize]
		mem, release = c.mapMemory(ctx, sharer, token, len(members))
	}
	// If one rank fails to map the memory, no rank of its host uses it.
	offers, err = c.exchangeOffers(ctx, call, mem != nil)
	if err == nil && mine(offers) {
		c.group.SetHostShared(mem)
		c.releaseMemory = release
	} else if mem != nil {
		release()
	}
	return err
}

// offerSize is the size in bytes of an offer: one byte for yes or no, and a token.
const offerSize = 1 + tokenSize

// exchangeOffers sends this rank's answer, with a new token, to all ranks and returns the offers of
// all ranks.
func (c *Comm) exchangeOffers(ctx context.Context, call string, yes bool) ([]byte, error) {
	own := append([]byte{0}, newToken()...)
	if yes {
		own[0] = 1
	}
	offers := make([]byte, c.Size()*offerSize)
	return offers, c.executeAs(ctx, call, exchange(new(plan), collective.VerbAllGather, offers, -1), From(own))
}

// survey finds out which transports connect any two ranks, and reports whether all ranks can
// share memory. Each rank contributes a bit for each transport that it uses, and one bit if it
// cannot share memory; one allreduce combines them.
func (c *Comm) survey(ctx context.Context, call string, sharing bool) (bool, error) {
	const unable = 1 << 16 // a bit above the bits of all transports
	names := wireNames()
	bits := []int32{0}
	if !sharing {
		bits[0] = unable
	}
	for rank := range c.Size() {
		if rank == c.Rank() {
			continue
		}
		bits[0] |= 1 << slices.Index(names[:], tuningName(c.Bridge().Transport(rank)))
	}
	if err := c.executeAs(ctx, call, allReduce(new(plan), bits, BitOr)); err != nil {
		return false, err
	}
	var wires []string
	for bit, name := range names {
		if bits[0]&(1<<bit) != 0 {
			wires = append(wires, name)
		}
	}
	c.wire = strings.Join(wires, "+")
	return bits[0]&unable == 0, nil
}

// allAgree reports whether all ranks pass true.
func (c *Comm) allAgree(ctx context.Context, call string, yes bool) (bool, error) {
	vote := []int32{0}
	if yes {
		vote[0] = 1
	}
	err := c.executeAs(ctx, call, allReduce(new(plan), vote, Min))
	return vote[0] == 1, err
}

// releaseShared waits until no call of this rank uses the shared memory, unmaps the memory, and
// removes the blocking call from the list. The communicator and its group are closed before, so the
// call in progress ends soon. releaseShared stores closing before it looks for that call. A
// returning call stores exited before it loads closing. So releaseShared sees that the call has
// exited, or the call sees that the communicator is closing.
func (c *Comm) releaseShared() {
	c.closing.Store(true)
	c.mu.Lock()
	var drained chan struct{}
	switch {
	case !c.blocking.listed:
	case !c.blocking.active():
		c.rt.calls.remove(&c.blocking)
	case c.inUse:
		if c.drained == nil {
			c.drained = make(chan struct{})
		}
		drained = c.drained
	}
	c.mu.Unlock()
	if drained != nil {
		<-drained
	}
	c.mu.Lock()
	release := c.releaseMemory
	c.releaseMemory = nil
	c.mu.Unlock()
	if release != nil {
		release()
	}
}
