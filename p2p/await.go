package p2p

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/tutti-go/tutti/internal/spin"
	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/rendezvous"
)

// How a rank polls a flag. With a core of its own it looks again and again, for a
// bounded time. Where ranks outnumber cores it gives the core away after a few
// looks, each time. Then it sleeps until it is nudged.
const (
	flagTime    = 200 * time.Microsecond
	flagsCrowd  = 20
	flagYields  = 200
	flagsInTurn = 32 // looks between looks at everything else: about a microsecond
	partAfter   = 8  // turns: whoever takes so long may share our core
)

// await returns when a member's flag shows count.
func (p Piece) await(ctx context.Context, rank int, flag *uint64, count uint64) error {
	if atomic.LoadUint64(flag) >= count {
		return nil
	}
	var shown bool
	if p.r.g.e.Mesh().Oversubscribed() {
		shown = p.pollCrowded(flag, count)
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
func (p Piece) poll(ctx context.Context, rank int, flag *uint64, count uint64) bool {
	var end time.Time
	for turn := 0; ; turn++ {
		for range flagsInTurn {
			if atomic.LoadUint64(flag) >= count {
				return true
			}
			spin.Pause()
		}
		if ctx.Err() != nil || p.r.g.coll.Dead() {
			return false
		}
		now := time.Now()
		switch {
		case turn == 0:
			end = now.Add(flagTime)
		case now.After(end):
			return false
		case turn%partAfter == 0:
			p.part(rank)
		}
	}
}

// part parts this rank from the one it waits for, if both have been put on one
// core: the system may take long to see that two who poll do not go together.
func (p Piece) part(rank int) {
	s, m := p.r.on.shared, p.r.g.e.Mesh()
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

// pollCrowded is poll where the core may be what the awaited rank waits for.
func (p Piece) pollCrowded(flag *uint64, count uint64) bool {
	for range flagsCrowd {
		if atomic.LoadUint64(flag) >= count {
			return true
		}
	}
	for range flagYields {
		p.r.g.e.Mesh().Yield()
		if atomic.LoadUint64(flag) >= count {
			return true
		}
	}
	return false
}

// sleep parks until a member's flag shows count, or the wait is over.
func (p Piece) sleep(ctx context.Context, rank int, flag *uint64, count uint64) error {
	g, s := p.r.g, p.r.on.shared
	ev := &p.r.flag
	*ev = flagEvent{coll: g.coll, e: g.e, world: s.ranks[rank], flag: flag, asleep: s.sleep[s.rank], count: count}
	err := g.coll.Await(ctx, p.r.p, ev)
	atomic.StoreUint64(s.sleep[s.rank], 0)
	if err == nil && atomic.LoadUint64(ev.flag) < count {
		if err = g.coll.Err(); err == nil {
			err = g.e.Gone(ev.world)
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
	coll   *rendezvous.MatchContext
	e      *rendezvous.Engine
	world  int // the job's rank of the flag's owner
	flag   *uint64
	asleep *uint64
	count  uint64
}

// Met implements mesh.Event.
func (ev *flagEvent) Met() bool {
	if atomic.LoadUint64(ev.flag) >= ev.count || ev.coll.Dead() || ev.e.Gone(ev.world) != nil {
		return true
	}
	atomic.StoreUint64(ev.asleep, 1)
	return atomic.LoadUint64(ev.flag) >= ev.count
}

var _ mesh.Condition = (*flagEvent)(nil)
