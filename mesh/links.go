package mesh

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tutti-go/tutti/fault"
)

// restInterval is how long a link that nobody polls may stay without an armed wake-up. It bounds
// how late a frame is noticed while the program computes.
const restInterval = time.Millisecond

// A links holds the data Links of one rank, and the goroutines that serve them: one goroutine per
// dial, and a ticker. The ticker arms links that waiters have left; while all links are armed it
// sleeps without a timer, so that an idle process does not wake up.
type links struct {
	peer []*Link

	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu     sync.Mutex // guards closed, against a concurrent spawn
	closed bool

	ticking    atomic.Bool // the ticker is awake, and will look at every link again
	wakeTicker wakeup
	lastCheck  time.Time // of stalls; owned by the control goroutine
	asking     bool      // a question about traffic is open; owned by the control goroutine
}

// init makes the Links, all idle, and starts the ticker.
func (ls *links) init(m *Mesh) {
	ls.ctx, ls.cancel = context.WithCancel(context.Background())
	ls.wakeTicker = newWakeup()
	ls.peer = make([]*Link, m.Size())
	for r := range ls.peer {
		l := &Link{Rank: r, m: m}
		l.onReady = l.ready
		ls.peer[r] = l
	}
	ls.spawn(ls.tickLoop)
}

// Link returns the data link to the given rank. The link need not be up.
func (m *Mesh) Link(rank int) *Link { return m.links.peer[rank] }

// Links returns the data links to all ranks, by rank.
func (m *Mesh) Links() []*Link { return m.links.peer }

// spawn runs the function f on a new goroutine. close waits for that goroutine, so f must return
// when its context ends.
func (ls *links) spawn(f func(context.Context)) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.closed {
		return
	}
	ls.work.Add(1)
	go func() {
		defer ls.work.Done()
		f(ls.ctx)
	}()
}

// close closes every link with err, calls LinkDown once for each link, and waits for the goroutines
// of spawn. After close has returned, nothing arrives and no buffer is written.
func (ls *links) close(err error) {
	ls.mu.Lock()
	ls.closed = true
	ls.mu.Unlock()
	ls.cancel()
	for _, l := range ls.peer {
		if l.close(err) && l.m.cfg.Data != nil {
			l.m.cfg.Data.LinkDown(l.Rank, err)
		}
	}
	ls.work.Wait()
}

// noteUnarmed tells the ticker that a link was left without a wake-up. While the ticker is awake,
// as it is in a busy program, noteUnarmed costs one atomic load.
func (ls *links) noteUnarmed() {
	if !ls.ticking.Load() && ls.ticking.CompareAndSwap(false, true) {
		ls.wakeTicker.raise()
	}
}

// tickLoop arms links that nobody has polled for restInterval, so that the transport's goroutine
// makes their Conns progress. It checks the links every restInterval while an unarmed link is in
// use. Otherwise it waits, without a timer, for noteUnarmed.
func (ls *links) tickLoop(ctx context.Context) {
	seen := make([]uint32, len(ls.peer))
	timer := time.NewTimer(restInterval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ls.wakeTicker:
			timer.Reset(restInterval)
			continue
		case <-timer.C:
		}
		// ticking is cleared before the check, so that noteUnarmed wakes the ticker again for a
		// link that is left unarmed during the check.
		ls.ticking.Store(false)
		if ls.armResting(seen) && ls.ticking.CompareAndSwap(false, true) {
			timer.Reset(restInterval)
		}
	}
}

// armResting arms every link that is up, unarmed, and was not polled since the last call. It
// returns true if an unarmed link was polled since then, so that the ticker must check again. The
// slice seen holds each link's count of polls at the last call. A waiter raises the count when it
// leaves a link, so an unchanged count means that nobody has polled the link for restInterval.
func (ls *links) armResting(seen []uint32) (again bool) {
	for r, l := range ls.peer {
		if l.conn.Load() == nil || l.armed.Load() || l.closed.Load() {
			continue
		}
		if polls := l.polls.Load(); polls != seen[r] {
			seen[r] = polls
			again = true
			continue
		}
		l.arm()
	}
	return again
}

// stallEvery is the time between two checks for stalled data Conns.
const stallEvery = time.Second

// checkStall fails a link, or opens it again, if its peer has read nothing for longer than
// Config.Stall while bytes waited. It asks the peers about bytes that are on their way. The control
// goroutine calls it in each of its turns.
//
// A Conn learns only in Progress what the peer has read. A suspended process calls no Progress, so
// the time before c.resumed does not count. A sleeping sender calls no Progress either, so
// checkStall calls it in the last two intervals before the limit.
func (ls *links) checkStall(c *control, now time.Time) {
	if now.Sub(ls.lastCheck) < stallEvery {
		return
	}
	ls.lastCheck = now
	limit := c.m.cfg.Stall
	var unacknowledged []int
	for _, l := range ls.peer {
		conn := l.wire()
		if conn == nil || l.closed.Load() {
			continue
		}
		n, since := conn.Unsent()
		switch age := now.Sub(later(since, c.resumed)); {
		case n == 0:
		case age > limit:
			l.failStalled(conn, fault.New(fault.LinkLost, "send", l.m.Rank(), "rank %d has read none of %d bytes for %v", l.Rank, n, limit))
			continue
		case age > limit-2*stallEvery:
			ls.spawn(func(context.Context) { l.Progress() })
		}
		if t, ok := conn.(meter); ok && l.acks.of(conn).check(t, now, c.resumed) {
			unacknowledged = append(unacknowledged, l.Rank)
		}
	}
	ls.askTraffic(c, unacknowledged)
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// Addr returns the address at which a rank is dialled, or "" while the address is unknown.
func (m *Mesh) Addr(rank int) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.peers[rank].addr
}
