package p2p

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/tutti-go/tutti/internal/cpu"
	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/rendezvous"
)

// A rank polls a flag in two ways. On a core of its own it reads the flag again and again, for at
// most pollTime. Where ranks outnumber cores it yields the core after a few reads, each time,
// because the rank that sets the flag may need it. If the flag is not set by then, the rank sleeps
// until it is woken.
const (
	pollTime            = 200 * time.Microsecond
	oversubscribedPolls = 20  // reads before the first yield
	yields              = 200 // one read after each
	pollsPerCheck       = 32  // reads between checks of everything else: about a microsecond
	coreCheckInterval   = 8   // checks after which the awaited rank may be on this core
)

// await returns when a member's flag has reached count. It returns an error when ctx or the wait
// policy ends the wait, when the collectives are revoked, or when that member is gone.
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

// poll reads a flag on a core of this rank's own. It reports false when it is time to sleep.
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

// separateCores moves this rank away from the core of the rank that it waits for, if both are on
// the same one. Two polling ranks on one core delay each other, and the scheduler takes long to see
// it.
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

// pollOversubscribed is poll where the awaited rank may need this rank's core.
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

// sleep parks until a member's flag has reached count, or the wait is over. The asleep word of the
// control block asks that member to wake us.
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

// A flagEvent is the condition that a flag has reached a count or never will: the group's
// collectives are revoked, or the flag's rank is gone. Checking it before the flag is set stores 1
// in asleep, which asks for a wake-up.
//
// The order prevents a lost wake-up: we store asleep and then read the flag; the flag's owner
// stores the flag and then reads asleep. Whatever the interleaving, one of the two sees the other's
// store.
type flagEvent struct {
	coll      *rendezvous.MatchContext
	e         *rendezvous.Engine
	worldRank int // the job's rank of the flag's owner
	flag      *uint64
	asleep    *uint64
	count     uint64
}

// Met implements mesh.Condition.
func (ev *flagEvent) Met() bool {
	if atomic.LoadUint64(ev.flag) >= ev.count || ev.coll.Dead() || ev.e.Gone(ev.worldRank) != nil {
		return true
	}
	atomic.StoreUint64(ev.asleep, 1)
	return atomic.LoadUint64(ev.flag) >= ev.count
}

var _ mesh.Condition = (*flagEvent)(nil)
