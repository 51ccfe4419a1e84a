package mesh

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/mesh/membership"
	"github.com/tutti-go/tutti/transport"
)

// Bounds of the control goroutine's queues.
const (
	maxTasks         = 4096      // things asked of it; floods beyond are dropped, with a warning
	maxQueuedBytes   = 512 << 10 // bytes on their way to one peer; more is dropped until it takes some
	maxFramesPerTurn = 64        // frames taken from one link before the others have their turn
)

// drainTimeout is how long the link to a rank that was given up stays, for it to
// learn of that: it may only have been stopped.
const drainTimeout = 30 * time.Second

// abortTimeout is how long a start that failed waits for all ranks to agree why.
const abortTimeout = 600 * time.Millisecond

// A control is the one goroutine that knows who belongs to the job. It owns the
// membership State and the control links, never waits for a Conn or for the layer
// above, and is reached through post only.
type control struct {
	m     *Mesh
	start time.Time
	wake  wakeup
	quit  chan struct{} // closed by stop
	done  chan struct{} // closed when the goroutine has ended, or never was

	mu      sync.Mutex // guards the next four
	posted  []func(*control)
	running bool
	stopped bool
	dialing []bool // by rank: a dial of ours is under way

	ready  chan struct{}     // closed when all ranks have started
	failed chan *fault.Error // the first verdict before that; one slot
	left   chan struct{}     // closed when the goodbye was heard
	lastID atomic.Uint64     // the last question's or fence's

	// The goroutine's own.
	lastTurn  time.Time // when noticeStop was called last
	resumed   time.Time // when this process went on after it was stopped, or began
	state     *membership.Machine
	inputs    []membership.Input // what is to be stepped next
	stepping  bool               // in step
	links     []*controlLink     // by rank
	closing   []*controlLink
	questions map[uint64]chan []membership.RankAnswer // by the question's ticket
	fences    map[uint64]chan struct{}                // by theirs
}

func newControl(m *Mesh) *control {
	return &control{
		m: m, start: time.Now(),
		wake: newWakeup(), quit: make(chan struct{}), done: make(chan struct{}),
		ready: make(chan struct{}), failed: make(chan *fault.Error, 1), left: make(chan struct{}),
		dialing: make([]bool, m.cfg.Size), links: make([]*controlLink, m.cfg.Size),
		questions: make(map[uint64]chan []membership.RankAnswer), fences: make(map[uint64]chan struct{}),
	}
}

// run starts the goroutine. What was posted before waits for it.
func (c *control) run(joined bool) {
	cfg := &c.m.cfg
	c.state = membership.New(membership.Config{
		Me: cfg.Rank, Size: cfg.Size, Host: cfg.Host, Joined: joined,
		Heartbeat: membership.Span(cfg.Heartbeat), Silence: membership.Span(cfg.Silence),
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.stopped {
		c.running = true
		go c.loop()
	}
}

// stop ends the goroutine and waits for it. It must not be called from there.
func (c *control) stop() {
	c.mu.Lock()
	first, running := !c.stopped, c.running
	c.stopped = true
	c.mu.Unlock()
	if first {
		close(c.quit)
		if !running {
			close(c.done)
		}
	}
	<-c.done
}

// post has do run on the control goroutine. It never blocks.
func (c *control) post(do func(*control)) {
	c.mu.Lock()
	c.posted = append(c.posted, do)
	c.mu.Unlock()
	c.wake.raise()
}

// full reports whether so much is posted that floods are to be dropped.
func (c *control) full() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.posted) >= maxTasks
}

func (c *control) loop() {
	defer close(c.done)
	timer := time.NewTimer(time.Nanosecond)
	defer timer.Stop()
	for {
		select {
		case <-c.quit:
			c.closeLinks()
			return
		case <-c.wake:
		case <-timer.C:
		}
		c.turn()
		timer.Reset(c.idleTime())
	}
}

// maxRest is how long the goroutine rests at most, and stopLeast from which pause
// between two turns on this process counts as one that was stopped.
const (
	maxIdle          = stallEvery
	suspendThreshold = 2 * maxIdle
)

// detectSuspend is called in each turn, before anybody is judged by how long it took nothing.
func (c *control) detectSuspend() {
	now := time.Now()
	if now.Sub(c.lastTurn) > suspendThreshold {
		c.resumed = now
	}
	c.lastTurn = now
}

// idleTime is how long the goroutine can wait for its next turn. It is never 0: in a synctest
// bubble goroutines that come to timers which are due already, several at the same moment,
// crash the race detector of Go 1.26.
func (c *control) idleTime() time.Duration {
	return min(max(time.Duration(c.state.Next()), time.Nanosecond), maxIdle)
}

// turn does what is due. What has arrived comes before the clock: a rank that was
// stopped first learns what happened meanwhile.
func (c *control) turn() {
	c.mu.Lock()
	posted := c.posted
	c.posted = nil
	c.mu.Unlock()
	for _, do := range posted {
		do(c)
	}
	for _, l := range c.links {
		if l != nil {
			l.receive()
		}
	}
	c.step(membership.Tick{})
	c.detectSuspend()
	for _, l := range c.links {
		if l != nil {
			l.checkQueue()
		}
	}
	c.closing = slices.DeleteFunc(c.closing, (*controlLink).closeIfDrained)
	c.m.links.checkStall(c.lastTurn, c.m.cfg.Stall, c.resumed)
}

// closeLinks closes every link.
func (c *control) closeLinks() {
	for _, l := range slices.Concat(c.links, c.closing) {
		if l != nil {
			l.conn.Close()
		}
	}
}

func (c *control) now() membership.Time { return membership.Time(time.Since(c.start)) }

// step takes one input and all that follow from carrying out its outputs.
func (c *control) step(in membership.Input) {
	c.inputs = append(c.inputs, in)
	if c.stepping {
		return
	}
	c.stepping = true
	for i := 0; i < len(c.inputs); i++ {
		for _, o := range c.state.Step(c.now(), c.inputs[i]) {
			c.execute(o)
		}
	}
	clear(c.inputs)
	c.inputs, c.stepping = c.inputs[:0], false
}

func (c *control) execute(o membership.Output) {
	events := c.m.cfg.Events
	switch o := o.(type) {
	case membership.Send:
		if l := c.links[o.To]; l != nil {
			l.send(o.Msg)
		}
	case membership.Dial:
		c.dial(o.Rank)
	case membership.Cut:
		c.retireLink(o.Rank)
	case membership.Report:
		c.report(o.Err)
	case membership.Departed:
		c.m.updatePeer(o.Rank, func(p *peer) { p.departed = true })
		events.Goodbye(o.Rank)
	case membership.Joined:
		c.m.updatePeer(o.Rank, func(p *peer) { p.host = sanitize([]byte(o.Host)) })
	case membership.Complete:
		c.m.oversubscribed = c.m.countLocalRanks() > cores()
		close(c.ready)
	case membership.Deliver:
		events.Flooded(o.From, o.Code, o.Body)
	case membership.Asked:
		body := events.Question(o.From, o.Body)
		c.step(membership.Reply{To: o.From, Ref: o.Ref, Body: body[:min(len(body), MaxFlood)]})
	case membership.Answered:
		if ch := c.questions[o.ID]; ch != nil {
			delete(c.questions, o.ID)
			ch <- o.Answers // has a slot
		}
	case membership.Fenced:
		if ch := c.fences[o.ID]; ch != nil {
			delete(c.fences, o.ID)
			close(ch)
		}
	case membership.Left:
		close(c.left)
	}
}

// report tells the layer above, and whoever waits in Start.
func (c *control) report(e *fault.Error) {
	if e.Kind == fault.PeerLost {
		for _, p := range e.Peers {
			c.m.updatePeer(p.Rank, func(p *peer) { p.lost = e })
		}
	}
	select {
	case <-c.ready:
	default:
		c.fail(e)
	}
	c.m.cfg.Events.Failed(e)
}

// fail tells Start why it fails; the first reason holds.
func (c *control) fail(e *fault.Error) {
	select {
	case c.failed <- e:
	default:
	}
}

// updatePeer changes what dials and handshakes know of a rank.
func (m *Mesh) updatePeer(rank int, change func(*peer)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.peers[rank])
}

// countLocalRanks is the number of ranks that run on this host.
func (m *Mesh) countLocalRanks() (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for r := range m.peers {
		if m.peers[r].host == m.cfg.Host {
			n++
		}
	}
	return n
}

// await returns when all ranks have started. When that fails, it tells the others
// why, so that all ranks name the same reason rather than each other.
func (c *control) await(ctx context.Context) error {
	var e *fault.Error
	select {
	case <-c.ready:
		return nil
	case e := <-c.failed:
		if e.Kind != fault.Refused || e.Rank != c.m.cfg.Rank {
			return e // a verdict: everybody knows
		}
		return c.abortStart(e)
	case <-c.done:
		return c.m.failure(fault.Closed, nil)
	case <-ctx.Done():
		e = c.m.startTimeout(ctx, c.missing())
	}
	return c.abortStart(e)
}

// abortStart announces e, and returns what the ranks agree on.
func (c *control) abortStart(e *fault.Error) *fault.Error {
	c.post(func(c *control) { c.step(membership.Announce{Err: e, Exiting: true}) })
	select {
	case agreed := <-c.failed:
		return agreed
	case <-c.done:
	case <-time.After(abortTimeout):
	}
	return e
}

// missing are the ranks that have not come.
func (c *control) missing() []int {
	ch := make(chan []int, 1)
	c.post(func(c *control) { ch <- c.state.Missing() })
	select {
	case ranks := <-ch:
		return ranks
	case <-c.done:
		return nil
	}
}

// departJob says goodbye and waits until it was heard, or ctx has ended.
func (c *control) departJob(ctx context.Context) error {
	c.post(func(c *control) { c.step(membership.Goodbye{}) })
	select {
	case <-c.left:
		return nil
	case <-c.done:
		return nil
	case <-ctx.Done():
	}
	return fault.New(fault.ContextKind(ctx.Err()), "close", c.m.cfg.Rank, "not all neighbours have acknowledged the goodbye: %w", ctx.Err())
}

// isDialing reports whether a dial of ours to rank is under way.
func (c *control) isDialing(rank int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dialing[rank]
}

func (c *control) setDialing(rank int, on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dialing[rank] = on
}

// dial opens a control link, on a goroutine of its own.
func (c *control) dial(rank int) {
	c.setDialing(rank, true)
	c.m.spawn(func() {
		ctx, cancel := context.WithTimeout(c.m.ctx, handshakeTimeout)
		defer cancel()
		conn, err := c.m.dialChannel(ctx, rank, channelControl)
		c.setDialing(rank, false)
		if err == nil {
			c.linkUp(rank, conn)
			return
		}
		c.post(func(c *control) { c.dialFailed(rank, err) })
	})
}

// dialFailed has the State try again later. A peer that will never have us fails
// Start, and is worth a line afterwards.
func (c *control) dialFailed(rank int, err error) {
	var no *refusal
	if errors.As(err, &no) && no.permanent(c.m.id.incarnation) {
		select {
		case <-c.ready:
			c.m.log.Warn("control link refused", "by", rank, "because", no.text)
		default:
			e := c.m.failure(fault.Refused, no)
			e.Peers = []fault.Peer{{Rank: rank, Host: c.m.Host(rank)}}
			c.fail(e)
		}
	}
	c.step(membership.DialFailed{Rank: rank, Cause: err.Error()})
}

// linkUp hands over a Conn whose handshake is done.
func (c *control) linkUp(rank int, conn transport.Conn) {
	c.post(func(c *control) {
		if old := c.links[rank]; old != nil {
			old.conn.Close()
		}
		c.links[rank] = newControlLink(c, rank, conn)
		c.step(membership.LinkUp{Rank: rank})
	})
}

// retireLink closes a link once what was sent on it is out, or lastWordTime has passed.
func (c *control) retireLink(rank int) {
	if l := c.links[rank]; l != nil {
		c.links[rank] = nil
		l.deadline = time.Now().Add(drainTimeout)
		c.closing = append(c.closing, l)
	}
}

// linkDown ends a link that broke.
func (c *control) linkDown(l *controlLink, cause string) {
	if c.links[l.rank] != l {
		return
	}
	c.links[l.rank] = nil
	l.conn.Close()
	c.step(membership.LinkDown{Rank: l.rank, Cause: cause})
}
