package mesh

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/mesh/membership"
	"github.com/tutti-go/tutti/transport"
)

// Bounds of the control goroutine's queues.
const (
	maxTasks         = 4096      // posted functions; beyond it, floods are dropped and logged
	maxQueuedBytes   = 512 << 10 // bytes queued for one peer; beyond it, messages are dropped
	maxFramesPerTurn = 64        // frames read from one link before the other links have their turn
)

// drainTimeout bounds how long a retired link stays open for its queued messages. A rank that was
// marked dead may only be suspended. When it resumes, it learns from these messages that it was
// marked dead.
const drainTimeout = 30 * time.Second

// abortTimeout is how long a start that failed waits for all ranks to agree on the reason.
const abortTimeout = 600 * time.Millisecond

// A control runs the control goroutine, which knows who belongs to the job. This goroutine owns the
// membership machine and the control links. It never waits for a Conn or for the layer above. Other
// goroutines reach it only through post.
//
//	state     running  stopped  posted functions
//	new       no       no       kept until run
//	running   yes      no       run in the next turn
//	stopped   any      yes      dropped; done is closed when the goroutine has ended
//
// Start waits for one of ready, failed and done; Close waits for left or done.
type control struct {
	m     *Mesh
	start time.Time
	wake  wakeup
	quit  chan struct{} // closed by stop
	done  chan struct{} // closed when the goroutine has ended; if it never ran, by stop

	mu      sync.Mutex // guards the next five
	posted  []func(*control)
	running bool
	stopped bool
	dials   []*controlDial // by rank: this process is dialling the control link to it; nil: it is not
	opening []int          // by rank: how many control links to it are being opened, from either end

	ready  chan struct{}     // closed when all ranks have started
	failed chan *fault.Error // the first failure before ready; one slot
	left   chan struct{}     // closed when all neighbours have acknowledged the goodbye
	lastID atomic.Uint64     // of questions and fences

	// Owned by the goroutine.
	lastTurn time.Time // when detectSuspend ran last
	resumed  time.Time // when this process resumed after it was suspended, or started
	state    *membership.Machine
	inputs   []membership.Input // Inputs that arrived within step
	stepping bool               // step is running
	links    []*controlLink     // by rank; nil: no link
	closing  []*controlLink     // links that are cut and not yet drained
	short    lasting            // how long file descriptors for control links
	// have been short
	questions map[uint64]chan []membership.RankAnswer // by ID; each has one slot
	fences    map[uint64]chan struct{}                // by ID
}

// newControl returns a control that accepts posts and has not started.
func newControl(m *Mesh) *control {
	return &control{
		m: m, start: time.Now(),
		wake: newWakeup(), quit: make(chan struct{}), done: make(chan struct{}),
		ready: make(chan struct{}), failed: make(chan *fault.Error, 1), left: make(chan struct{}),
		dials: make([]*controlDial, m.cfg.Size), opening: make([]int, m.cfg.Size), links: make([]*controlLink, m.cfg.Size),
		questions: make(map[uint64]chan []membership.RankAnswer), fences: make(map[uint64]chan struct{}),
	}
}

// run starts the control goroutine, which first runs the functions that were posted earlier. If
// joined is set, all ranks are known to have started.
func (c *control) run(joined bool) {
	cfg := &c.m.cfg
	c.state = membership.New(membership.Config{
		Me: cfg.Rank, Size: cfg.Size, Host: cfg.Host, Joined: joined,
		Heartbeat: membership.Span(cfg.Heartbeat), Silence: membership.Span(cfg.Silence),
		Redial: cfg.Redial > 0,
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.stopped {
		c.running = true
		go c.loop()
	}
}

// stop ends the goroutine and waits for it. It must not be called from the goroutine itself.
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

// post queues a function that the control goroutine runs. The functions run in the order of the
// calls of post. post never blocks, because the queue has no limit. Only floods are limited: the
// layer above starts them, and Flood calls the method full before it posts one.
func (c *control) post(do func(*control)) {
	c.mu.Lock()
	c.posted = append(c.posted, do)
	c.mu.Unlock()
	c.wake.raise()
}

// full reports whether the queue of posted functions is full, so that floods must be dropped.
func (c *control) full() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.posted) >= maxTasks
}

// loop runs a turn when something was posted, when a control link has something to read, when a
// timer of the machine is due, and at least once per maxIdle.
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
			c.expectAll()
		}
		c.turn()
		timer.Reset(c.idleTime())
	}
}

// expectAll makes the next turn read all links, also those that have not reported anything to read.
// A process that gets little processor time may run its timers several times before Go's poller
// reports what has arrived. Then the machine would count peers as silent whose messages wait here.
func (c *control) expectAll() {
	for _, l := range c.links {
		if l != nil {
			l.ready.Store(true)
		}
	}
}

// maxIdle bounds the time between two turns. A longer pause than suspendThreshold shows that the
// process was suspended.
const (
	maxIdle          = stallEvery
	suspendThreshold = 2 * maxIdle
)

// detectSuspend records when the process resumed after it was suspended. The checks for peers that
// read nothing use that time. The goroutine runs a turn at least once per maxIdle, so a gap of more
// than suspendThreshold means that the process did not run. Causes are SIGSTOP, a debugger, a
// closed laptop lid, or a paused virtual machine.
func (c *control) detectSuspend() {
	now := time.Now()
	if now.Sub(c.lastTurn) > suspendThreshold {
		c.resumed = now
	}
	c.lastTurn = now
}

// idleTime returns how long the goroutine can wait for its next turn. It is never 0: the race
// detector of Go 1.26 crashes when several goroutines of a synctest bubble wait at the same moment
// for timers that have already expired.
func (c *control) idleTime() time.Duration {
	return min(max(time.Duration(c.state.Next()), time.Nanosecond), maxIdle)
}

// turn runs everything that is due, in this order:
//
// 1. posted functions, in the order of the posts; 2. messages of all links, up to maxFramesPerTurn
// of each; 3. a Tick, so that the machine acts on the time; 4. dials of ranks that have ended; 5. the
// queues of all links, and the links that drain; 6. stalls of data Conns, about once a second.
//
// Messages are handled before the Tick. A rank that was suspended therefore first reads the waiting
// heartbeats, and does not suspect the peers that sent them.
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
	c.endDialsOfEnded()
	for _, l := range c.links {
		if l != nil {
			l.checkQueue()
		}
	}
	c.closing = slices.DeleteFunc(c.closing, (*controlLink).closeIfDrained)
	c.m.links.checkStall(c, c.lastTurn)
}

// closeLinks closes every link, including the links that are draining.
func (c *control) closeLinks() {
	for _, l := range slices.Concat(c.links, c.closing) {
		if l != nil {
			l.conn.Close()
		}
	}
}

// now returns the machine's time, which starts at 0 when the control is made.
func (c *control) now() membership.Time { return membership.Time(time.Since(c.start)) }

// step passes one Input to the machine and executes the machine's Outputs. A nested call of step
// only queues its Input, and the outer call handles that Input next. So the machine is never
// entered twice.
//
// Nested calls happen when a method of Events calls Flood, when a send finds that its link is
// broken, and when the layer above answers a question.
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

// execute carries out one Output of the machine. The methods of Events run here, on the control
// goroutine, so they must not block.
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
		c.answer(o)
	case membership.Answered:
		if ch := c.questions[o.ID]; ch != nil {
			delete(c.questions, o.ID)
			ch <- o.Answers // never blocks: the channel has a slot
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

// answer answers a question of another rank, or passes it to the part of the Mesh that can answer
// it. A question with an unknown Code comes from another version, and answer declines it.
func (c *control) answer(o membership.Asked) {
	switch o.Code {
	case askEvents:
		body := c.m.cfg.Events.Question(o.From, o.Body)
		c.step(membership.Reply{To: o.From, Ref: o.Ref, Body: body[:min(len(body), MaxFlood)]})
	case askTraffic:
		c.m.links.reportTraffic(o.From, func(body []byte) {
			c.post(func(c *control) { c.step(membership.Reply{To: o.From, Ref: o.Ref, Body: body}) })
		})
	default:
		c.step(membership.Reply{To: o.From, Ref: o.Ref})
	}
}

// report passes a failure to the layer above and, before all ranks have started, to Start. It first
// records the lost ranks in m.peers, so that a dial of the layer above to a lost rank fails.
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

// fail makes Start fail with the error e, unless Start already has a reason to fail.
func (c *control) fail(e *fault.Error) {
	select {
	case c.failed <- e:
	default:
	}
}

// updatePeer holds m.mu and calls the function change with the peer of a rank.
func (m *Mesh) updatePeer(rank int, change func(*peer)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.peers[rank])
}

// countLocalRanks returns the number of ranks that run on this host.
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

// await returns when all ranks have started. If some ranks do not start, await makes all ranks
// report the same reason, so that they do not blame each other:
//
//	Start is ended by             await returns
//	all ranks have started        nil
//	a failure of the job          that failure, which all ranks have
//	a peer that refused this rank what the ranks agree on, after announcing the refusal
//	ctx                           what the ranks agree on, after announcing the missing ranks
//	a shutdown                    fault.Closed
func (c *control) await(ctx context.Context) error {
	var e *fault.Error
	select {
	case <-c.ready:
		return nil
	case e := <-c.failed:
		if e.Kind != fault.Refused || e.Rank != c.m.cfg.Rank {
			return e // it was reported to all ranks
		}
		return c.abortStart(e)
	case <-c.done:
		return c.m.failure(fault.Closed, nil)
	case <-ctx.Done():
		e = c.m.startTimeout(ctx, c.missing())
	}
	return c.abortStart(e)
}

// abortStart announces the failure e and waits up to abortTimeout for the failure that the ranks
// agree on. It returns the agreed failure, or e if no failure has come. Without the announcement,
// each rank would only report that another rank has exited, and the first reason would be lost.
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

// missing returns the ranks that have not started.
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

// lateness returns how much silence a rank is allowed beyond Config.Silence. A rank whose
// heartbeats say that it runs late is allowed more.
func (c *control) lateness(rank int) time.Duration {
	ch := make(chan membership.Span, 1)
	c.post(func(c *control) { ch <- c.state.Limit(rank) })
	select {
	case limit := <-ch:
		return time.Duration(limit) - c.m.cfg.Silence
	case <-c.done:
		return 0
	}
}

// departJob says goodbye and waits until all neighbours have acknowledged it, or ctx ends.
func (c *control) departJob(ctx context.Context) error {
	c.post(func(c *control) { c.step(membership.Goodbye{}) })
	select {
	case <-c.left:
		return nil
	case <-c.done:
		return nil
	case <-ctx.Done():
	}
	return fault.New(fault.ContextKind(ctx.Err()), "close", c.m.cfg.Rank, "some ranks with a control link to this one have not acknowledged that it closes, and may report it as lost: %w; give Close more time", ctx.Err())
}

// A controlDial is a dial of a control link by this process. The mu of the control guards it.
type controlDial struct {
	began    time.Time
	answered bool // the connection is up, and the handshake follows
	givenUp  bool // the peer's dial was accepted instead
	cancel   context.CancelFunc
}

// keepsDial reports whether this rank is dialling its control link to a higher rank, and keeps this
// dial although that rank has dialled, too. With Config.Redial, this rank gives up a dial that has
// not been answered for Config.Silence/16, because the network may drop the dials of one of the two
// ranks. The caller then accepts the higher rank's dial. The LinkUp of that connection also ends
// the dial that was given up.
func (c *control) keepsDial(rank int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.dials[rank]
	if d == nil || d.givenUp {
		return false
	}
	if d.answered || c.m.cfg.Redial == 0 || time.Since(d.began) < c.m.cfg.Silence/16 {
		return true
	}
	d.givenUp = true
	d.cancel()
	return false
}

// dialAnswered records that the connection of a dial is up. It reports false if this rank has given
// up the dial.
func (c *control) dialAnswered(rank int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.dials[rank]
	if d == nil {
		return true
	}
	d.answered = true
	return !d.givenUp
}

// endDial removes the record of a dial, and reports whether this rank has given up the dial.
func (c *control) endDial(rank int, d *controlDial) (givenUp bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dials[rank] == d {
		c.dials[rank] = nil
	}
	return d.givenUp
}

// isOpening reports whether a control link to the given rank is being opened, from either end.
func (c *control) isOpening(rank int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.opening[rank] > 0
}

// beginOpening records that a control link to the rank is being opened. The control goroutine later
// calls endOpening, which removes the record.
func (c *control) beginOpening(rank int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.opening[rank]++
}

// endOpening removes the record that beginOpening has made. If the link to the rank broke
// meanwhile, and no new link has replaced it, endOpening reports the break.
func (c *control) endOpening(rank int) {
	c.mu.Lock()
	c.opening[rank]--
	c.mu.Unlock()
	if l := c.links[rank]; l != nil && l.brokenBecause != "" {
		c.linkDown(l, l.brokenBecause)
	}
}

// dial opens a control link to the given rank, on a new goroutine.
func (c *control) dial(rank int) {
	ctx, cancel := context.WithTimeout(c.m.ctx, c.dialTimeout(rank))
	d := &controlDial{began: time.Now(), cancel: cancel}
	c.mu.Lock()
	c.dials[rank] = d
	c.mu.Unlock()
	c.beginOpening(rank)
	c.m.spawn(func() {
		defer cancel()
		conn, _, err := c.m.dialChannel(ctx, rank, channelControl)
		givenUp := c.endDial(rank, d)
		if err == nil {
			c.linkUp(rank, conn)
			return
		}
		c.post(func(c *control) {
			if !givenUp {
				c.dialFailed(rank, err)
			}
			c.endOpening(rank)
		})
	})
}

// dialTimeout bounds one attempt to dial a control link.
func (c *control) dialTimeout(rank int) time.Duration {
	if limit := c.state.DialTimeout(rank); limit > 0 {
		return time.Duration(limit)
	}
	return handshakeTimeout
}

// dialFailed reports a failed dial to the machine, which retries later. During the start, a
// permanent refusal also makes Start fail with an error that names the peer. Once all ranks have
// started, a permanent refusal is only logged, because the job may go on without this link.
//
// dialFailed announces a lack of file descriptors as this rank's failure. During the start it does
// so at once. Once all ranks have started, it does so only when the lack has lasted for
// shortageTime, because the job may go on if the lack is short.
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
	if !lacksDescriptors(err) {
		c.short = lasting{}
	} else if c.short.observe(time.Now()) > shortageTime || !c.started() {
		c.step(membership.Announce{Err: c.m.shortage(err)})
	}
	c.step(membership.DialFailed{
		Rank: rank, Gone: no != nil && no.reason == reasonGone,
		NoProcess: errors.Is(err, syscall.ECONNREFUSED) || c.m.cfg.hasExited(rank), Cause: err.Error(),
	})
}

// endDialsOfEnded ends the dials of ranks whose processes are known to have ended. Otherwise the
// dial of a rank whose address is gone, such as the address of a container that was removed, would
// run until its timeout.
func (c *control) endDialsOfEnded() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for r, d := range c.dials {
		if d != nil && c.m.cfg.hasExited(r) {
			d.cancel()
		}
	}
}

// started reports whether all ranks have started.
func (c *control) started() bool {
	select {
	case <-c.ready:
		return true
	default:
		return false
	}
}

// linkUp passes a Conn whose handshake is complete to the control goroutine, and calls endOpening
// there. The Conn replaces an earlier link to the same rank. Either that link is broken, even if
// this side has not noticed it yet, or both ranks have dialled.
func (c *control) linkUp(rank int, conn transport.Conn) {
	c.post(func(c *control) {
		defer c.endOpening(rank)
		if old := c.links[rank]; old != nil {
			old.conn.Close()
		}
		c.links[rank] = newControlLink(c, rank, conn)
		c.short = lasting{}
		c.step(membership.LinkUp{Rank: rank})
	})
}

// retireLink closes a link once its queue is empty, or after drainTimeout. The last messages must
// reach the peer: the acknowledgement of a goodbye, or the failure that explains why the link
// closes.
func (c *control) retireLink(rank int) {
	if l := c.links[rank]; l != nil {
		c.links[rank] = nil
		l.deadline = time.Now().Add(drainTimeout)
		c.closing = append(c.closing, l)
	}
}

// linkDown closes a link that broke. While another connection to that rank is being opened, the
// break may only mean that the link was replaced. The peer closes the old connection when it has
// the new connection, and this rank may get the new connection later. So linkDown reports the break
// only if the new connection does not come up; see endOpening. The limit on silence bounds the wait
// for the new connection, too.
func (c *control) linkDown(l *controlLink, cause string) {
	if l.brokenBecause = cause; c.isOpening(l.rank) && c.links[l.rank] == l {
		l.conn.Close()
		return
	}
	c.closeLink(l, membership.LinkDown{Rank: l.rank, Cause: cause})
}

// closeLink closes a link and reports the reason to the machine. It does nothing when the link has
// been replaced or retired.
func (c *control) closeLink(l *controlLink, why membership.LinkDown) {
	if c.links[l.rank] != l {
		return
	}
	c.links[l.rank] = nil
	l.conn.Close()
	c.step(why)
}
