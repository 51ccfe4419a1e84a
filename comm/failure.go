package comm

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/callsite"
	"github.com/tutti-go/tutti/p2p"
)

// collectiveFailed converts the error that ended a collective on this rank to the error that the
// caller gets. It notifies the other ranks before it returns, so that they neither keep waiting for
// this rank nor blame it for leaving.
func (c *Comm) collectiveFailed(cl *call, err error) error {
	err = c.collectiveError(cl, c.rt.blame(err))
	c.rt.reportLoss(err)
	c.rt.fence()
	return err
}

// collectiveError converts an error of a lower layer to the error that the caller gets:
//
//	the error                        what the caller gets
//	any, a member is lost            the error of the mesh, which is the same on all ranks
//	revoked by another rank          the cause if Mismatch, a loss or Closed; else Revoked with the cause
//	deadline, cancellation, Timeout  the same kind, with the ranks that have not begun the call
//	another fingerprint (Mismatch)   Mismatch with both calls; the other rank is asked for its call
//	PeerLost, LinkLost               the error of the mesh, which is the same on all ranks
//	anything else                    the error with the name of the call
//
// In all cases except a loss and a revoke, this rank revokes the communicator on every rank,
// because a collective that is half done cannot be undone. A lost member is checked first, because
// the behaviour of other ranks after a loss must not look like a mismatch.
func (c *Comm) collectiveError(cl *call, err error) error {
	if loss := c.currentLoss(); loss != nil {
		return c.withOp(cl.String(), loss)
	}
	if by := c.revokedBy(); by != nil {
		return c.revokedError(cl, by)
	}
	var f *fault.Error
	switch {
	case !errors.As(err, &f):
		// The context or the Timeout ended the wait. The error names the ranks that have not
		// begun the collective.
		f = c.waitError(cl, err)
		f.Peers = c.missing(cl)
		// No rank is missing if this rank itself was suspended until its deadline passed. The other
		// ranks may have revoked the communicator meanwhile. In that case the revoke has arrived before
		// their answers.
		if by := c.revokedBy(); by != nil && len(f.Peers) == 0 {
			return c.revokedError(cl, by)
		}
	case f.Kind == fault.Mismatch && len(f.Peers) > 0:
		// A message had a different fingerprint, so this rank asks the sender which call the sender
		// made.
		f = c.mismatchWith(cl, f.Peers[0].Rank, f.Err)
		if loss := c.currentLoss(); loss != nil {
			return c.withOp(cl.String(), loss)
		}
		// The rank that was asked may have closed. It revoked the communicator before it closed.
		if by := c.revokedBy(); by != nil {
			return c.revokedError(cl, by)
		}
	case isLoss(f.Kind) && c.hasAll(f.Peers):
		return c.withOp(cl.String(), err) // every rank gets this error from the mesh
	default:
		f = c.withOp(cl.String(), err).(*fault.Error)
	}
	c.revokeAll(f)
	return f
}

// fenceLimit bounds how long a failed call waits for the other ranks to receive its error. A rank
// that is gone never answers, so the limit must be too short for a user to notice.
const fenceLimit = 100 * time.Millisecond

// fence waits until the neighbours of this rank have received and forwarded everything that it has
// sent over the control links, but at most fenceLimit. The program may then exit.
func (rt *rankRuntime) fence() {
	ctx, cancel := context.WithTimeout(rt.ctx, fenceLimit)
	defer cancel()
	rt.mesh.Fence(ctx)
}

// revokedBy returns what revoked the communicator, or nil.
func (c *Comm) revokedBy() *fault.Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.revoked
}

// revokedError returns the error of a call that was under way when another rank revoked the
// communicator. If the cause is a mismatch, a lost rank or a closed rank, the call gets the cause
// itself. Otherwise it gets Revoked with the cause.
func (c *Comm) revokedError(cl *call, cause *fault.Error) error {
	if cause.Kind == fault.Mismatch || cause.Kind == fault.Closed || isLoss(cause.Kind) {
		return c.withOp(cl.String(), cause)
	}
	return &fault.Error{Kind: fault.Revoked, Op: cl.String(), Rank: c.rt.rank, Peers: cause.Peers, Err: cause}
}

// waitError returns the error of a call that its context or the Timeout ended.
func (c *Comm) waitError(cl *call, err error) *fault.Error {
	f := &fault.Error{Kind: fault.ContextKind(err), Op: cl.String(), Rank: c.rt.rank, Err: err}
	if errors.Is(err, errTimeout) {
		f.Kind = fault.Timeout
	}
	return f
}

// missing returns the members that have not begun collective cl, according to their answers. It
// includes a rank that does not answer. It does not include a rank that waits inside the
// collective.
func (c *Comm) missing(cl *call) []fault.Peer { return c.missingIn(c.rt.ctx, cl.seq) }

// missingIn asks all other members at once, and returns those that have not begun collective
// seq. It waits at most askLimit.
func (c *Comm) missingIn(ctx context.Context, seq uint32) []fault.Peer {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	var ranks []int
	for i := range c.Size() {
		if i != c.Rank() {
			ranks = append(ranks, c.group.WorldRank(i))
		}
	}
	var peers []fault.Peer
	for _, a := range c.rt.ask(ctx, ranks, question{Comm: c.id, Seq: seq}) {
		if !a.Begun {
			peers = append(peers, a.peer(c.rt))
		}
	}
	return peers
}

// A question is one of the six kinds of messages that runtimes exchange over the control links,
// besides those of the mesh itself. These messages are small, because a heartbeat must not wait for
// them. All except the last three are JSON:
//
//	message          to         content                     sent when
//	question         some       Comm, Seq, Record           an error or warning needs others' calls
//	answer           asker      see answer                  a question came
//	'f' fingerprint  all ranks  see fingerprintNotice       a rank has waited 100 ms in a collective
//	'r' revoke       all ranks  8 bytes id, then the error  a communicator is revoked
//	'l' loss         all ranks  the error                   the program is about to learn of a loss
//	'a' agreement    all ranks  see agreementNotice         a rank is in Agree or Shrink
//
// A question is about one communicator. A rank also answers if it has not made the communicator yet
// or has closed it.
type question struct {
	Comm   uint64
	Seq    uint32
	Record bool // asks for the record of collective Seq; if false, asks for the call under way
}

// An answer is a rank's reply to a question. It contains no times, because the clocks of ranks
// differ.
type answer struct {
	rank        int
	silent      bool   // the rank did not answer; Call is from its last heartbeat
	Begun       bool   // collective Seq has begun on that rank
	Fingerprint uint64 // the fingerprint of collective Seq, if the question asked for its record; else 0
	Call        string // the recorded call if the question asked for it; else the call under way or the last one
	Details     string // signature.details of collective Seq, if the question asked for its record
	Site        string // the file and line of Call
	WaitsFor    int    // the rank, numbered in the job, that Call waits for; -1 if it waits for no particular rank
}

// peer returns the answering rank in the form that errors use.
func (a answer) peer(rt *rankRuntime) fault.Peer {
	p := rt.peer(a.rank)
	p.Call, p.At = a.Call, a.Site
	return p
}

// ask sends q to all the given ranks at once and returns their answers. For a rank that does not
// answer before ctx ends, ask makes an answer from the rank's last heartbeat.
func (rt *rankRuntime) ask(ctx context.Context, ranks []int, q question) []answer {
	text, _ := json.Marshal(q) // cannot fail, because all fields are plain
	var out []answer
	for _, got := range rt.mesh.Ask(ctx, ranks, text) {
		a := answer{WaitsFor: -1}
		if got.Body == nil || json.Unmarshal(got.Body, &a) != nil {
			a = answer{silent: true, Call: lastKnownCall(got), WaitsFor: -1}
		}
		a.rank = got.Rank
		out = append(out, a)
	}
	return out
}

// lastKnownCall returns the call in the last heartbeat of a rank that did not answer, and how long
// that rank has been silent.
func lastKnownCall(a meshAnswer) string {
	s := a.Last
	if s == "" {
		s = "an unknown call"
	}
	if a.Silent > 0 {
		s += fmt.Sprintf(" (silent for %.1f s)", a.Silent.Seconds())
	}
	return s
}

// maxText bounds the texts in an answer, in bytes.
const maxText = 512

// Question implements mesh.Events: it answers another rank's question. It runs on the control
// goroutine, so it only reads what is recorded and never waits.
func (rt *rankRuntime) Question(_ int, text []byte) []byte {
	var q question
	if json.Unmarshal(text, &q) != nil {
		return nil
	}
	a := answer{WaitsFor: -1}
	if c := rt.comm(q.Comm); c != nil {
		c.mu.Lock()
		a.Begun = int32(c.seq-q.Seq) >= 0 // numbers may wrap around
		p := c.history[q.Seq%historySize]
		c.mu.Unlock()
		if q.Record && p.seq == q.Seq {
			a.Call, a.Site, a.Fingerprint, a.Details = p.String(), p.site.String(), p.fingerprint, p.details()
		}
	}
	if !q.Record {
		rt.describeCurrentCall(&a)
	}
	// An answer must fit into one message of a control link.
	a.Call, a.Site = a.Call[:min(len(a.Call), maxText)], a.Site[:min(len(a.Site), maxText)]
	out, _ := json.Marshal(a)
	return out
}

// describeCurrentCall fills a with this rank's current or last call, and its file and line. For a
// message call it also reports the rank that the call waits for. If the call has given up, it
// reports the rank that the call waited for. Ranks need this to find cycles of waits.
func (rt *rankRuntime) describeCurrentCall(a *answer) {
	cs := &rt.calls
	cs.mu.Lock()
	cl, last := cs.oldestActive(), cs.lastRecord()
	switch {
	case cl != nil:
		last, a.WaitsFor = *cl.callRecord, cl.waitsFor()
	case last.callName != "":
		a.WaitsFor = cs.stuckOn
	}
	cs.mu.Unlock()
	if last.callName != "" {
		a.Call = last.String()
	}
	a.Site = rt.location(last.site, cl != nil || a.WaitsFor >= 0)
}

// A fingerprintNotice carries a fingerprint to the other ranks. It contains the text of the call,
// so that a rank that disagrees can name both calls without a question.
type fingerprintNotice struct {
	Comm        uint64
	Seq         uint32
	Fingerprint uint64
	Call, Site  string
	Details     string
}

// sendFingerprint sends the collective that this rank waits in, with its fingerprint, to all ranks.
// Two ranks that exchange no message in the algorithm, as in a tree barrier, can detect a mismatch
// only by this notice.
func (c *Comm) sendFingerprint(cl *call) {
	text, _ := json.Marshal(fingerprintNotice{c.id, cl.seq, cl.fingerprint, cl.String(), cl.site.String(), cl.details()})
	c.rt.mesh.Flood(floodFingerprint, text)
}

// handleFingerprint compares another rank's fingerprint with the fingerprint of this rank's
// collective of the same number. If this rank has not begun that collective, handleFingerprint
// keeps the fingerprint for begin. If this rank began that collective more than historySize
// collectives ago, handleFingerprint ignores the notice.
func (rt *rankRuntime) handleFingerprint(from int, text []byte) {
	var t fingerprintNotice
	if json.Unmarshal(text, &t) != nil {
		return
	}
	c := rt.comm(t.Comm)
	if c == nil {
		rt.answerClosed(t)
		return
	}
	other := rt.peer(from)
	other.Call, other.At = t.Call, t.Site
	c.mu.Lock()
	p := c.history[t.Seq%historySize]
	switch {
	case c.lost != nil: // ranks that know of the loss may have gone on to a different collective
		c.mu.Unlock()
		return
	case int32(c.seq-t.Seq) < 0:
		if c.expected.seq != t.Seq {
			c.expected = expectation{t.Seq, t.Fingerprint, other, t.Details}
		}
		c.mu.Unlock()
		return
	case p.seq != t.Seq:
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	if p.fingerprint == t.Fingerprint {
		rt.calls.markAgreed(c, t.Seq)
		return
	}
	c.revokeAll(c.mismatch(&p, other, t.Details))
}

// answerClosed handles the fingerprint of a collective on a communicator that this rank has closed.
// If this rank closed without having carried out that collective, the ranks that wait in the
// collective get fault.Closed.
func (rt *rankRuntime) answerClosed(t fingerprintNotice) {
	rt.mu.Lock()
	c, closed := rt.closedComms.comms[t.Comm]
	rt.mu.Unlock()
	if !closed || int32(t.Seq-c.last) <= 0 {
		return
	}
	e := &fault.Error{Kind: fault.Closed, Op: "close", Rank: rt.rank, Peers: []fault.Peer{rt.peer(rt.rank)},
		Err: errors.New("this rank has closed the communicator")}
	rt.mesh.Flood(floodRevoke, revokeBody(t.Comm, e))
}

// unexpected handles a collective's message that matches no receive. It compares the message's
// fingerprint with the fingerprint of this rank's collective of the same number. Without this
// check, a root that only sends would not learn that another rank also acts as root. unexpected
// runs on a goroutine that moves messages and must not wait, so a new goroutine asks the sender for
// its call.
func (c *Comm) unexpected(rank int, seq uint32, fingerprint uint64) {
	c.mu.Lock()
	r, lost := c.history[seq%historySize], c.lost
	c.mu.Unlock()
	if lost != nil || r.seq != seq || p2p.SameFingerprint(fingerprint, r.fingerprint) {
		return
	}
	if c.conflict.CompareAndSwap(nil, &conflict{r, rank}) {
		c.rt.spawn(func(context.Context) { c.resolve() })
	}
}

// A conflict is a collective of this rank for which another rank sent a different fingerprint.
type conflict struct {
	record callRecord
	rank   int
}

// resolve revokes the communicator on all ranks with the mismatch of its conflict. It does nothing
// if a loss has ended the communicator's collectives meanwhile. resolve may run twice; only the
// first revoke takes effect.
func (c *Comm) resolve() *fault.Error {
	cf := c.conflict.Load()
	f := c.mismatchOf(&cf.record, cf.rank, nil)
	if loss := c.currentLoss(); loss != nil {
		return loss
	}
	c.revokeAll(f)
	return f
}

// markAgreed records that another rank has sent the same fingerprint as a call under way.
func (cs *calls) markAgreed(c *Comm, seq uint32) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for cl := cs.oldestListed; cl != nil; cl = cl.next {
		if cl.c == c && cl.collective && cl.seq == seq && cl.active() {
			cl.mu.Lock()
			cl.agreed = true
			cl.mu.Unlock()
		}
	}
}

// mismatch returns the error of two ranks that made different calls. It names the calls of both
// ranks with their files and lines. If the texts of the calls are equal, it adds the details in
// which they can still differ: the algorithm, the segment size, and the hash of the counts.
//
// Every rank of the communicator reports the same mismatch: the rank that finds it first
// revokes the communicator with it, and the first revoke wins.
func (c *Comm) mismatch(own *callRecord, other fault.Peer, details string) *fault.Error {
	me := c.rt.peer(c.rt.rank)
	me.Call, me.At = own.String(), own.site.String()
	if me.Call == other.Call && details != "" {
		other.Call += " " + details[:min(len(details), maxText)]
		me.Call += " " + own.details()
	}
	return &fault.Error{Kind: fault.Mismatch, Op: own.String(), Rank: c.rt.rank, Peers: []fault.Peer{other, me}}
}

// mismatchWith does the same as mismatchOf for a call under way. If the collectives that differ
// exchange no messages between two ranks, these ranks detect the mismatch only some collectives
// later. mismatchWith therefore searches the history for the first collective that differs. It
// starts with the previous collective, because most often one rank has left out a collective. It
// stops if the other rank does not answer.
func (c *Comm) mismatchWith(cl *call, rank int, cause error) *fault.Error {
	for _, back := range [...]uint32{1, 0, 2, 3, 4, 5, 6, 7, 8} {
		c.mu.Lock()
		own := c.history[(cl.seq-back)%historySize]
		c.mu.Unlock()
		if own.seq == 0 || own.seq != cl.seq-back {
			continue
		}
		a := c.askRecord(rank, own.seq)
		if a.silent || a.Fingerprint != 0 && a.Fingerprint != own.fingerprint {
			if a.silent {
				own = *cl.callRecord
			}
			f := c.mismatch(&own, a.peer(c.rt), a.Details)
			f.Err = cause
			return f
		}
	}
	return c.mismatchOf(cl.callRecord, rank, cause)
}

// mismatchOf asks a rank whose fingerprint differed for its call, and returns the mismatch error.
func (c *Comm) mismatchOf(own *callRecord, rank int, cause error) *fault.Error {
	a := c.askRecord(rank, own.seq)
	f := c.mismatch(own, a.peer(c.rt), a.Details)
	f.Err = cause
	return f
}

// askRecord asks a rank for the record of its collective seq. If the rank has no such record, or
// does not answer, the fingerprint in the result is 0. If a loss has ended the communicator's
// collectives, askRecord returns this result without asking.
func (c *Comm) askRecord(rank int, seq uint32) answer {
	if c.currentLoss() == nil {
		ctx, cancel := context.WithTimeout(c.rt.ctx, askLimit)
		defer cancel()
		for _, a := range c.rt.ask(ctx, []int{rank}, question{Comm: c.id, Seq: seq, Record: true}) {
			return a
		}
	}
	return answer{rank: rank, WaitsFor: -1, silent: true}
}

// revoke makes this rank's collectives and messages on the communicator fail with e, now and later.
// If the communicator is revoked or closed already, revoke does nothing, so the first cause stays.
// The function before, if not nil, runs before the calls fail, under c.mu. Other communicators,
// including the parent of this communicator, are not affected.
func (c *Comm) revoke(e *fault.Error, before func()) {
	c.mu.Lock()
	if c.revoked != nil || c.closed {
		c.mu.Unlock()
		return
	}
	if before != nil {
		before()
	}
	c.revoked = e
	c.mu.Unlock()
	c.group.Revoke(e)
}

// revokeAll revokes the communicator on every rank. If the communicator is revoked already, the
// first cause stays. revokeAll notifies the other ranks before any call of this rank can return
// with the revoke; otherwise the program might exit while the other ranks wait. If the error is too
// large for a flood, the flood omits its cause and all but four of its peers.
func (c *Comm) revokeAll(e *fault.Error) {
	c.revoke(e, func() {
		// The ranks may still have to agree on the abort. A revoke would arrive earlier and hide
		// the abort's cause.
		if !c.rt.aborted.Load() {
			c.rt.mesh.Flood(floodRevoke, revokeBody(c.id, e))
		}
	})
}

// revokeBody returns the body of a revoke. The flood also reaches ranks that are not members. They
// keep the revoke for a while, because they may make the communicator later.
func revokeBody(id uint64, e *fault.Error) []byte {
	body := binary.LittleEndian.AppendUint64(nil, id)
	wire := e.AppendWire(nil)
	if len(wire)+8 > maxFlood {
		short := *e
		short.Peers, short.Err = e.Peers[:min(len(e.Peers), 4)], nil
		wire = short.AppendWire(nil)
	}
	return append(body, wire...)
}

// handleRevoke handles the revokeAll of another rank. If this rank does not have the communicator,
// handleRevoke keeps the revoke, because this rank may make the communicator later.
func (rt *rankRuntime) handleRevoke(body []byte) {
	if len(body) < 8 {
		return
	}
	e, err := fault.ParseWire(body[8:])
	if err != nil {
		return
	}
	id := binary.LittleEndian.Uint64(body)
	rt.mu.Lock()
	c := rt.comms[id]
	if c == nil {
		rt.earlyRevokes.add(id, e)
	}
	rt.mu.Unlock()
	if c != nil {
		c.revoke(e, nil)
	}
}

// messageFailed converts the error that ended a message call to the error that the caller gets. If
// the context or the Timeout ended the call, it searches for a cycle of waiting ranks.
func (c *Comm) messageFailed(cl *call, err error) error {
	err = c.rt.blame(err)
	var f *fault.Error
	if errors.As(err, &f) {
		c.mu.Lock()
		revoked := c.revoked
		c.mu.Unlock()
		if revoked != nil && f == revoked {
			err = c.revokedError(cl, revoked)
		} else {
			err = c.withOp(cl.String(), err)
		}
		c.rt.reportLoss(err)
		return err
	}
	f = c.waitError(cl, err)
	c.rt.calls.recordTimeout(cl)
	peers, cycle := cl.report().waitChain(c.rt.ctx)
	if f.Peers = peers; cycle != "" {
		f.Err = fmt.Errorf("%w; %s", err, cycle)
	}
	return f
}

// messageError adds the name of the call to the error of a message call that does not wait.
func (c *Comm) messageError(call string, err error) error {
	err = c.withOp(call, c.rt.blame(err))
	c.rt.reportLoss(err)
	return err
}

// waitChain follows the chain of waiting ranks that begins with a message call. It asks each rank
// in turn which rank it waits for. If the chain returns to this rank, the program is deadlocked,
// and cycle describes the deadlock. Otherwise peers holds at most the rank that this call waits
// for. The search ends at a rank that waits for no particular rank, and after as many steps as the
// job has ranks.
func (r report) waitChain(ctx context.Context) (peers []fault.Peer, cycle string) {
	c := r.c
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	path := []string{fmt.Sprintf("rank %d in %s at %s", c.rt.rank, r.call, r.site)}
	for next := r.waitsFor; next >= 0 && len(peers) < c.rt.size; {
		as := c.rt.ask(ctx, []int{next}, question{Comm: c.id, Seq: 0})
		if len(as) == 0 {
			break
		}
		a := as[0]
		peers = append(peers, a.peer(c.rt))
		path = append(path, fmt.Sprintf("rank %d in %s at %s", a.rank, a.Call, a.Site))
		if a.WaitsFor == c.rt.rank {
			return peers, "the ranks wait in a cycle: " + strings.Join(path, ", waits for ")
		}
		if a.WaitsFor == next {
			break
		}
		next = a.WaitsFor
	}
	return peers[:min(1, len(peers))], ""
}

// A report is a copy of what a stall warning needs of its call. It is a copy because the call may
// end before the other ranks have answered.
type report struct {
	c          *Comm
	call       string
	site       callsite.Site
	collective bool
	seq        uint32
	waitsFor   int // the rank, numbered in the job, that a message call waits for; -1 if it waits for no particular rank
}

// report returns the report of cl.
func (cl *call) report() report {
	return report{cl.c, cl.String(), cl.site, cl.collective, cl.seq, cl.waitsFor()}
}

// warn logs one line that names the missing ranks, with the call that each is in.
func (r report) warn(ctx context.Context) {
	var peers []fault.Peer
	var cycle string
	if r.collective {
		peers = r.c.missingIn(ctx, r.seq)
	} else {
		peers, cycle = r.waitChain(ctx)
	}
	missing := "no rank in particular"
	if len(peers) > 0 {
		missing = peerList(peers)
	}
	if cycle != "" {
		missing += "; " + cycle
	}
	r.c.rt.log.Warn(fmt.Sprintf("tutti: rank %d waits in %s at %s for %v; missing: %s",
		r.c.rt.rank, r.call, r.site, r.c.rt.opt.stallWarning, missing))
}

// peerList formats peers for a line in the log.
func peerList(peers []fault.Peer) string {
	texts := make([]string, len(peers))
	for i, p := range peers {
		texts[i] = p.String()
	}
	return strings.Join(texts, "; ")
}
