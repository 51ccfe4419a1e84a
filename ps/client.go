package ps

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/ps/internal/message"
)

// A Client is a worker's access to the servers. Any number of goroutines may use it.
type Client struct {
	n     *node
	links map[int]*link // by the rank of the server, also of those that are lost
	ids   atomic.Uint64 // of requests

	// With replicas, routes guards lead, paused and the links of parts: a request is submitted with
	// RLock held. A hand-over holds Lock. Without replicas these fields do not change.
	routes sync.RWMutex
	lead   *link
	paused bool // between two epochs: requests are kept, and sent in the next one

	declaring chan struct{} // serializes declarations: a lock whose holder has put an element in
	mu        sync.Mutex    // guards the fields below
	tensors   map[string]*declared
	closed    bool
	closing   chan struct{} // closed when Close has ended; nil before Close
	closeErr  error
	failed    bool
	unacked   int           // pushes that remote servers have not acknowledged
	acked     chan struct{} // closed when unacked is 0, or failed set; nil unless abandon waits
	inFlight  int           // Handles that are not done
	idle      chan struct{} // closed when inFlight is 0; nil unless Close waits

	pushes, pulls, sent, received atomic.Uint64
}

// A link is a client's connection to one server, which may be this rank's own.
type link struct {
	cl   *Client
	rank int
	out  *outlet // nil for the own server; only a hand-over replaces it

	mu    sync.Mutex
	calls map[uint64]*call // by the ID of the request; nil if err is set
	err   error            // why the server cannot be reached
	lost  bool             // err is the loss of the server in an earlier epoch; a Close need not reach it
}

// A call is a request to one server, and its reply.
type call struct {
	outgoing
	link *link
	part *clientPart // of a request about a part, with replicas
	q    message.Request
	dst  []byte // where the body of the reply goes
	// allocate says that dst is allocated for the reply, whose size is not known before.
	allocate bool
	// done runs once, when the reply is complete and the body of the request is no longer used.
	done func(error)

	mu    sync.Mutex
	sends bool // the body is still in use, or the own server uses body and dst
	waits bool // the reply is not complete
	err   error
	free  bool // its credit has been returned
	// counted says that Client.unacked counts the call.
	counted bool
}

func newClient(n *node) *Client {
	cl := &Client{n: n, links: make(map[int]*link), declaring: make(chan struct{}, 1), tensors: make(map[string]*declared)}
	for _, r := range n.servers() {
		l := &link{cl: cl, rank: r, calls: make(map[uint64]*call)}
		l.connect(n.epoch)
		cl.links[r] = l
		if cl.lead == nil {
			cl.lead = l
		}
	}
	return cl
}

// connect makes the outlet for an epoch.
func (l *link) connect(e *epoch) {
	if n := l.cl.n; l.rank != n.c.Rank() {
		l.out = e.outlet(l.rank, tagRequest, tagRequestBody, int64(n.opts.credit))
	}
}

// leader returns the link to the server that knows all tensors, and places new ones.
func (cl *Client) leader() *link {
	cl.routes.RLock()
	defer cl.routes.RUnlock()
	return cl.lead
}

// start starts the goroutines of all links.
func (cl *Client) start() {
	for _, l := range cl.links {
		l.start(cl.n.epoch)
	}
}

// start starts the goroutines of a link for an epoch.
func (l *link) start(e *epoch) {
	if l.out == nil {
		return
	}
	e.send(l.out, func(err error) { l.ended(e, err) })
	e.tasks.Go(func() {
		in := inlet[*call]{comm: e.wires, from: e.ranks[l.rank], headTag: tagReply, bodyTag: tagReplyBody, head: l.replyHead, done: l.replyDone}
		l.ended(e, in.run(e.ctx))
	})
}

// ended handles the end of the messages to or from the server. The error is nil if the client has
// closed.
func (l *link) ended(e *epoch, err error) {
	switch {
	case err == nil:
	case l.cl.n.replicated():
		e.end(err)
	default:
		l.cl.fail(err)
	}
}

// replyHead handles the head of a reply. The call is nil for an acknowledgement.
func (l *link) replyHead(msg []byte) (*call, []byte, error) {
	p, inline, ok := message.ParseReply(msg)
	if !ok {
		return nil, nil, l.protocolError("a reply that cannot be read")
	}
	l.mu.Lock()
	c := l.calls[p.ID]
	if c != nil && p.Kind != message.Acknowledged {
		delete(l.calls, p.ID)
	}
	l.mu.Unlock()
	if c == nil {
		return nil, nil, l.protocolError("a reply to request %d, which does not exist", p.ID) // or the link has failed, and ignores it
	}
	c.grant()
	if p.Kind != message.Acknowledged {
		c.times.mark(answered)
	}
	switch {
	case p.Kind == message.Acknowledged:
		return nil, nil, nil
	case p.Kind == message.Refused:
		e, err := fault.ParseWire(inline)
		if err != nil {
			return nil, nil, l.protocolError("a refusal that cannot be read: %w", err)
		}
		c.err = e
		return c, nil, nil
	case c.allocate && p.Size <= maxPlacement:
		c.dst = make([]byte, p.Size)
	case p.Size != len(c.dst):
		c.err = l.protocolError("%d bytes for request %d, which wants %d", p.Size, p.ID, len(c.dst))
		c.replied(nil)
		return nil, nil, c.err
	}
	l.cl.received.Add(uint64(p.Size))
	if p.Size > message.Inline {
		return c, c.dst, nil
	}
	copy(c.dst, inline)
	return c, nil, nil
}

// maxPlacement bounds the bodies of a Declare and a Create, and the reply to a Declare.
const maxPlacement = 64 << 20

// replyDone ends a call.
func (l *link) replyDone(c *call, err error) bool {
	if c == nil {
		return true
	}
	if err != nil && l.keep(c) {
		return true
	}
	c.replied(err)
	return c.q.Kind != message.Close
}

// keep keeps a call whose reply the end of the epoch has cut off, so that it is sent again in the next
// one. It returns false if there is no next one.
func (l *link) keep(c *call) bool {
	if !l.cl.n.replicated() {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.calls[c.q.ID] = c
	}
	return l.err == nil
}

// protocolError returns the error of a message that no server of this version sends.
func (l *link) protocolError(format string, args ...any) error {
	n := l.cl.n
	e := fault.New(fault.Mismatch, "ps", n.worldRank(n.c.Rank()), "message of server rank %d: got "+format, append([]any{n.worldRank(l.rank)}, args...)...)
	return &fault.Error{Kind: e.Kind, Op: e.Op, Rank: e.Rank, Peers: []fault.Peer{{Rank: n.worldRank(l.rank)}}, Err: e.Err}
}

// fail ends all calls, now and later. Without replicas each tensor needs all of its servers, so the
// loss of one ends the client. Only the first error counts.
func (cl *Client) fail(err error) {
	if cl.n.replicated() {
		cl.routes.Lock()
		defer cl.routes.Unlock()
	}
	cl.mu.Lock()
	if cl.failed {
		cl.mu.Unlock()
		return
	}
	cl.failed = true
	cl.wakeAcked()
	cause := err
	err = cl.withLostParts(err)
	cl.mu.Unlock()
	for _, l := range cl.links {
		l.fail(err)
	}
	if cl.n.replicated() {
		return // the own server has dropped its calls, or has ended
	}
	if s := cl.n.server; s != nil {
		s.detach(cl.n.c.Rank(), cause) // ends the calls that the own server has
	}
}

// fail ends all calls to the server, now and later. A call to the own server ends when the server no
// longer uses its buffers.
func (l *link) fail(err error) {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return
	}
	l.err = err
	left := l.calls
	l.calls = nil
	l.mu.Unlock()
	if l.out != nil {
		l.out.fail(err)
	}
	for _, c := range left {
		if l.cl.paused {
			c.unsent()
		}
		c.replied(err)
	}
}

// submit sends a request to a server. The call's fields q, body, dst, priority and done are set.
func (cl *Client) submit(l *link, c *call) {
	if cl.n.replicated() {
		cl.routes.RLock()
		defer cl.routes.RUnlock()
	}
	l.submit(c)
}

// submit sends a request. With replicas, cl.routes is held.
func (l *link) submit(c *call) {
	c.q.ID, c.waits = l.cl.ids.Add(1), true
	l.send(c)
}

// send sends a request, maybe again in another epoch.
func (l *link) send(c *call) {
	l.mu.Lock()
	c.link = l
	if l.err != nil {
		err := l.err
		if l.lost && c.q.Kind == message.Close {
			err = nil
		}
		l.mu.Unlock()
		c.replied(err)
		return
	}
	l.calls[c.q.ID] = c
	c.sends = !l.cl.paused
	l.mu.Unlock()
	if l.cl.paused {
		return
	}
	if l.out == nil {
		l.cl.n.server.submitLocal(c)
		return
	}
	if c.q.Kind.Pushes() && !c.counted {
		c.counted = true
		l.cl.mu.Lock()
		l.cl.unacked++
		l.cl.mu.Unlock()
	}
	c.q.Size = c.bodySize()
	c.headSize = len(c.q.Append(c.head[:0]))
	if c.q.Kind != message.Pull {
		// A pull may wait for other workers before it is answered. It uses no credit, because the pushes
		// for which the other workers wait may need that credit.
		c.cost = int64(c.q.Size)
	}
	c.sent = c.bodySent
	l.cl.sent.Add(uint64(c.q.Size))
	l.out.add(&c.outgoing)
}

// unsent notes, between two epochs, that neither an outlet nor the own server uses the body of the
// request any more.
func (c *call) unsent() {
	c.mu.Lock()
	c.sends, c.free = false, false
	c.mu.Unlock()
}

// bodySent is called when the body of the request may be used again.
func (c *call) bodySent(err error) {
	c.times.mark(clientSent)
	if err != nil && !c.link.cl.n.replicated() {
		c.link.cl.fail(err)
	}
	c.mu.Lock()
	c.sends = false
	over := !c.waits
	c.mu.Unlock()
	if over {
		c.done(c.err)
	}
}

// replied is called when the reply is complete, or will not come.
func (c *call) replied(err error) {
	c.mu.Lock()
	if !c.waits { // the own server has replied meanwhile
		c.mu.Unlock()
		return
	}
	if c.err == nil {
		c.err = err
	}
	c.waits = false
	over := !c.sends
	c.mu.Unlock()
	if over {
		c.done(c.err)
	}
}

// served is called when the own server has replied, and uses body and dst no longer.
func (c *call) served(err error) {
	c.link.mu.Lock()
	delete(c.link.calls, c.q.ID)
	c.link.mu.Unlock()
	c.mu.Lock()
	if !c.sends && !c.waits { // it has ended with its epoch
		c.mu.Unlock()
		return
	}
	if c.err == nil {
		c.err = err
	}
	c.sends, c.waits = false, false
	err = c.err
	c.mu.Unlock()
	c.done(err)
}

// grant returns the credit of the call, once.
func (c *call) grant() {
	if c.link.out == nil || c.free {
		return
	}
	c.free = true
	c.link.out.grant(c.cost)
	if cl := c.link.cl; c.counted {
		c.counted = false
		cl.mu.Lock()
		defer cl.mu.Unlock()
		if cl.unacked--; cl.unacked == 0 {
			cl.wakeAcked()
		}
	}
}

// wakeAcked ends the wait of abandon. cl.mu is held.
func (cl *Client) wakeAcked() {
	if cl.acked != nil {
		close(cl.acked)
		cl.acked = nil
	}
}

// allAcked returns a channel that is closed when remote servers have acknowledged all pushes, or the
// client has failed.
func (cl *Client) allAcked() <-chan struct{} {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	all := make(chan struct{})
	cl.acked = all
	if cl.unacked == 0 || cl.failed {
		cl.wakeAcked()
	}
	return all
}

// roundTrip sends a request and waits for the reply, whose body it returns.
func (cl *Client) roundTrip(ctx context.Context, op string, l *link, q message.Request, body []byte) ([]byte, error) {
	if err := cl.begin(op); err != nil {
		return nil, err
	}
	h := newHandle(cl, op, 1)
	c := &call{q: q, allocate: true, done: h.partDone}
	c.body = body
	cl.submit(l, c)
	if err := h.Wait(ctx); err != nil {
		return nil, err
	}
	return c.dst, nil
}

// begin counts an operation. It returns an error if the client is closed.
func (cl *Client) begin(op string) error {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.closed {
		return fault.New(fault.Closed, op, cl.n.worldRank(cl.n.c.Rank()), "the client is closed")
	}
	cl.inFlight++
	return nil
}

// end counts the end of an operation.
func (cl *Client) end() {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.inFlight--; cl.inFlight == 0 && cl.idle != nil {
		close(cl.idle)
		cl.idle = nil
	}
}

// Servers returns the number of ranks that serve.
func (cl *Client) Servers() int { return len(cl.n.servers()) }

// Workers returns a communicator of the workers in the order of their ranks, for collectives beside
// pushes and pulls. Close closes it.
func (cl *Client) Workers() *comm.Comm { return cl.n.workers }

// Close waits until all operations are done, and then leaves: later rounds do without this worker.
// A client that serves, too, then waits until all workers have closed. Only ctx bounds that wait, not
// the communicator's Timeout. If ctx or the Timeout ends first, the error is fault.Timeout or
// fault.Canceled. The client is closed nevertheless, and all calls of other ranks
// that are connected with it fail. So do they after the loss of a server, which Close returns. A
// second Close waits for the first and returns the same, unless its own ctx ends first.
func (cl *Client) Close(ctx context.Context) error {
	return cl.close(ctx, true)
}

// abandon closes the client of a worker that has failed. It does not wait for pulls. A push that some
// parts of a tensor have and others do not would tear a version, so abandon waits until all pushes are
// acknowledged. If that takes longer than abandonLimit, it ends the job's calls instead. The parts of a
// worker that serves are lost, and their versions with them.
func (cl *Client) abandon() {
	cl.close(context.Background(), false)
}

func (cl *Client) close(ctx context.Context, orderly bool) error {
	const op = "ps close"
	cl.mu.Lock()
	if cl.closed {
		cl.mu.Unlock()
		return cl.n.waitSame(ctx, op, cl.closing, &cl.closeErr)
	}
	cl.closed, cl.closing = true, make(chan struct{})
	idle := make(chan struct{})
	if cl.inFlight == 0 {
		close(idle)
	} else {
		cl.idle = idle
	}
	cl.mu.Unlock()
	defer close(cl.closing)

	caller := ctx
	ctx, cancel := cl.n.waitContext(caller)
	defer cancel()
	priority := lowest
	if orderly {
		select {
		case <-idle:
		case <-ctx.Done():
			cl.closeErr = cl.n.waitError(op, ctx)
		}
	} else {
		priority = highest
		limited, cancel := context.WithTimeout(ctx, abandonLimit)
		defer cancel()
		ctx = limited
		if cl.n.server == nil {
			select {
			case <-cl.allAcked():
			case <-ctx.Done():
				cl.closeErr = cl.n.waitError(op, ctx)
			}
		}
	}
	if cl.closeErr == nil {
		cl.closeErr = cl.detach(ctx, op, priority)
	}
	if cl.closeErr != nil {
		// Some server may not know that this client is closed.
		cl.n.revoke()
	}
	if s := cl.n.server; s != nil {
		s.detach(cl.n.c.Rank(), nil) // if the message to it was not sent
		if orderly {
			// Other workers may go on for as long as they like.
			cl.closeErr = cmp.Or(cl.closeErr, s.wait(caller, op))
			limited, cancel := cl.n.waitContext(caller)
			defer cancel()
			ctx = limited
		}
		cl.closeErr = cmp.Or(cl.closeErr, s.end(ctx, op))
	}
	cl.fail(fault.New(fault.Closed, op, cl.n.worldRank(cl.n.c.Rank()), "the client is closed"))
	cl.closeErr = cmp.Or(cl.closeErr, cl.n.stop())
	return cl.closeErr
}

// detach tells all servers that this client sends nothing more.
func (cl *Client) detach(ctx context.Context, op string, priority int) error {
	var hs []*Handle
	for _, r := range cl.n.servers() { // WaitAll returns the error of the first one
		l := cl.links[r]
		h := newHandle(cl, op, 1)
		c := &call{q: message.Request{Kind: message.Close}, allocate: true, done: h.partDone}
		c.priority = priority
		cl.mu.Lock()
		cl.inFlight++
		cl.mu.Unlock()
		cl.submit(l, c)
		hs = append(hs, h)
	}
	return WaitAll(ctx, hs...)
}

// lowest and highest are the priorities of a Close, which follows or precedes all other messages.
const (
	lowest  = -1 << 62
	highest = 1 << 62
)

// abandonLimit is how long a worker that has failed waits for the servers to notice that it leaves.
const abandonLimit = time.Second
