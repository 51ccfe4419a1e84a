package comm

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/transport"
)

// maxSharing is the most ranks that work in one piece of shared memory: each
// polls all others' flags.
const maxSharing = 64

// shareLimit bounds how long ranks wait for each other to map the memory.
const shareLimit = 10 * time.Second

// A groupSharer is a Transport that can share memory among some ranks and not
// others: it is asked with their addresses, and returns nil for "not these".
type groupSharer interface {
	SharerFor(addrs []string) transport.Sharer
}

// sharer is what can share memory among all members, as this rank sees it.
func (c *Comm) sharer() transport.Sharer {
	if c.w.opt.noSharing {
		return nil
	}
	if s, ok := c.w.wire.(transport.Sharer); ok {
		return s
	}
	s, ok := c.w.wire.(groupSharer)
	if !ok {
		return nil
	}
	addrs := make([]string, c.Size())
	for i := range addrs {
		addrs[i] = c.w.mesh.Addr(c.g.World(i))
	}
	return s.SharerFor(addrs)
}

// share has the ranks agree on the wires between them, and gives the communicator
// memory that all its ranks have in common, when all of them can: they agree on
// it twice, before they try and afterwards, so that all have it or none.
func (c *Comm) share(ctx context.Context) error {
	n := c.Size()
	if n == 1 {
		return nil
	}
	table := c.table
	c.use(collective.DefaultTable()) // what is forced may need the memory that is not there yet
	defer func() { c.use(table) }()
	var with transport.Sharer
	if n <= maxSharing {
		with = c.sharer()
	}
	all, err := c.survey(ctx, with != nil)
	if err != nil || !all {
		return err
	}
	token := make([]byte, 16)
	if c.Rank() == 0 {
		rand.Read(token) // never fails since Go 1.24
	}
	if err := Broadcast(ctx, c, token, 0); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, shareLimit)
	defer cancel()
	mem, release, err := with.Share(limited, hex.EncodeToString(token), n, p2p.SharedSize(n))
	if err != nil {
		c.w.log.Warn("tutti: no memory could be shared; collectives go by messages", "because", err)
	}
	mapped := err == nil
	if all, err = c.agree(ctx, mapped); err != nil || !all {
		if mapped {
			release()
		}
		return err
	}
	c.g.SetShared(mem)
	if w, ok := with.(transport.Witness); ok {
		c.g.WitnessShared(w.Publish)
	}
	c.unshare = release
	return nil
}

// wireNames are the wires that tables know, in the order of a survey's bits.
func wireNames() []string { return []string{"memory", "shm", "tcp", "grpc", "verbs", "other"} }

// survey finds out which wires there are between any two ranks, and reports
// whether all ranks can share memory.
func (c *Comm) survey(ctx context.Context, sharing bool) (bool, error) {
	const unable = 1 << 16
	names := wireNames()
	seen := []int32{0}
	if !sharing {
		seen[0] = unable
	}
	for rank := range c.Size() {
		if rank == c.Rank() {
			continue
		}
		bit := slices.Index(names, c.Transport(rank))
		if bit < 0 {
			bit = len(names) - 1
		}
		seen[0] |= 1 << bit
	}
	if err := AllReduce(ctx, c, seen, BitOr); err != nil {
		return false, err
	}
	var wires []string
	for bit, name := range names {
		if seen[0]&(1<<bit) != 0 {
			wires = append(wires, name)
		}
	}
	c.wire = strings.Join(wires, "+")
	return seen[0]&unable == 0, nil
}

// agree reports whether all ranks say yes.
func (c *Comm) agree(ctx context.Context, yes bool) (bool, error) {
	vote := []int32{0}
	if yes {
		vote[0] = 1
	}
	err := AllReduce(ctx, c, vote, Min)
	return vote[0] == 1, err
}

// giveBack unmaps the shared memory, once no call of this rank looks at it. The
// group was closed before, so such a call ends soon.
func (c *Comm) giveBack() {
	c.sharing.Lock()
	defer c.sharing.Unlock()
	if c.unshare != nil {
		c.unshare()
		c.unshare = nil
	}
}
