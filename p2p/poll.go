package p2p

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/tutti-go/tutti/internal/cpu"
	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/rendezvous"
)

// A rank polls a flag in one of two ways. If it has a core of its own, it reads the flag
// repeatedly, for at most pollTime. If there are more ranks than cores, it reads the flag a few
// times. After that it yields the core between reads, because the rank that sets the flag may need
// the core. If the flag is not set when polling ends, the rank sleeps until it is woken.
const (
	pollTime            = 200 * time.Microsecond
	oversubscribedPolls = 20  // reads before the first yield
	yields              = 200 // number of yields, each followed by one read
	pollsPerCheck       = 32  // reads between checks of ctx, failure and time: about a microsecond
	coreCheckInterval   = 8   // checks between calls of separateCores
)

// await waits until a member's flag has reached count. It returns an error if ctx or the wait
// policy ends the wait, if the collectives are revoked, or if the member is gone.
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

// poll polls a flag when this rank has a core of its own. It returns true if the flag has reached
// count, and false if the rank should sleep.
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
// the same core. Two polling ranks on one core delay each other, and the scheduler takes long to
// move one of them.
func (p Fragment) separateCores(rank int) {
	s, m := p.r.sub.shared, p.r.g.e.Mesh()
	core := uint64(m.Core()) + 1
	if own := s.core(s.rank); atomic.LoadUint64(own) != core {
		atomic.StoreUint64(own, core)
	}
	if atomic.LoadUint64(s.core(rank)) != core {
		return
	}
	if s.rank > rank { // only one of the two ranks moves
		m.AvoidCore(int(core) - 1)
	}
	m.Yield()
}

// pollOversubscribed is like poll, for the case that the awaited rank may need this rank's core.
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

// sleep parks the goroutine until a member's flag has reached count, or until the wait fails. The
// asleep word in this rank's control block asks the member for a wake-up.
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

// A flagEvent is the condition that a flag has reached a count or can never reach it. The flag can
// never reach the count if the group's collectives are revoked or the flag's owner is gone. A check
// that finds the flag unset stores 1 in asleep, which asks for a wake-up.
//
// The order of the accesses prevents a lost wake-up. The waiting rank stores asleep and then reads
// the flag. The flag's owner stores the flag and then reads asleep. In every interleaving at least
// one of the two ranks sees the other rank's store.
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
