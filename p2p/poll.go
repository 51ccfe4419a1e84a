package p2p

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/tutti-go/tutti/internal/cpu"
	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/rendezvous"
)

// How a rank polls a flag. With a core of its own it looks again and again, for a
// bounded time. Where ranks outnumber cores it gives the core away after a few
// looks, each time. Then it sleeps until it is nudged.
const (
	pollTime            = 200 * time.Microsecond
	oversubscribedPolls = 20
	yields              = 200
	pollsPerCheck       = 32 // looks between looks at everything else: about a microsecond
	coreCheckInterval   = 8  // turns: whoever takes so long may share our core
)

// await returns when a member's flag shows count.
func (p Fragment) await(ctx context.Context, rank int, flag *uint64, count uint64) error {
	if atomic.LoadUint64(flag) >= count {
		return nil
	}
	var shown bool
	if p.r.g.e.Mesh().Oversubscribed() {
		shown = p.pollOversubscribed(flag, count)
	} else {
		shown = p.poll(ctx, rank, flag, count)
	}
	if shown {
		return nil
	}
	return p.sleep(ctx, rank, flag, count)
}

// poll looks at a flag from a core of this rank's own; false when it is time for
// something else.
func (p Fragment) poll(ctx context.Context, rank int, flag *uint64, count uint64) bool {
	var end time.Time
	for turn := 0; ; turn++ {
		for range pollsPerCheck {
			if atomic.LoadUint64(flag) >= count {
				return true
			}
			cpu.Pause()
		}
		if ctx.Err() != nil || p.r.g.collectives.Dead() {
			return false
		}
		now := time.Now()
		switch {
		case turn == 0:
			end = now.Add(pollTime)
		case now.After(end):
			return false
		case turn%coreCheckInterval == 0:
			p.separateCores(rank)
		}
	}
}

// separateCores parts this rank from the one it waits for, if both have been put on one
// core: the system may take long to see that two who poll do not go together.
func (p Fragment) separateCores(rank int) {
	s, m := p.r.sub.shared, p.r.g.e.Mesh()
	core := uint64(m.Core()) + 1
	if own := s.core(s.rank); atomic.LoadUint64(own) != core {
		atomic.StoreUint64(own, core)
	}
	if atomic.LoadUint64(s.core(rank)) != core {
		return
	}
	if s.rank > rank { // one of the two
		m.AvoidCore(int(core) - 1)
	}
	m.Yield()
}

// pollOversubscribed is poll where the core may be what the awaited rank waits for.
func (p Fragment) pollOversubscribed(flag *uint64, count uint64) bool {
	for range oversubscribedPolls {
		if atomic.LoadUint64(flag) >= count {
			return true
		}
	}
	for range yields {
		p.r.g.e.Mesh().Yield()
		if atomic.LoadUint64(flag) >= count {
			return true
		}
	}
	return false
}

// sleep parks until a member's flag shows count, or the wait is over.
func (p Fragment) sleep(ctx context.Context, rank int, flag *uint64, count uint64) error {
	g, s := p.r.g, p.r.sub.shared
	ev := &p.r.flag
	*ev = flagEvent{coll: g.collectives, e: g.e, worldRank: s.ranks[rank], flag: flag, asleep: s.sleep[s.rank], count: count}
	err := g.collectives.Await(ctx, p.r.p, ev)
	atomic.StoreUint64(s.sleep[s.rank], 0)
	if err == nil && atomic.LoadUint64(ev.flag) < count {
		if err = g.collectives.Err(); err == nil {
			err = g.e.Gone(ev.worldRank)
		}
	}
	if err != nil {
		return p.r.fail(err)
	}
	return nil
}

// flagEvent is the event that a flag shows a count, or never will: the group's
// collectives are revoked, or the flag's rank has gone. Looking at it in vain
// leaves the wish to be nudged.
type flagEvent struct {
	coll      *rendezvous.MatchContext
	e         *rendezvous.Engine
	worldRank int // the job's rank of the flag's owner
	flag      *uint64
	asleep    *uint64
	count     uint64
}

// Met implements mesh.Event.
func (ev *flagEvent) Met() bool {
	if atomic.LoadUint64(ev.flag) >= ev.count || ev.coll.Dead() || ev.e.Gone(ev.worldRank) != nil {
		return true
	}
	atomic.StoreUint64(ev.asleep, 1)
	return atomic.LoadUint64(ev.flag) >= ev.count
}

var _ mesh.Condition = (*flagEvent)(nil)
