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
	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/p2p"
)

// collectiveFailed turns the error that ended a collective on this rank into the
// caller's, and sees to it that no other rank waits for this one in vain, nor
// blames it for leaving because of that error.
func (c *Comm) collectiveFailed(cl *call, err error) error {
	err = c.collectiveError(cl, err)
	c.w.lastWords()
	return err
}

func (c *Comm) collectiveError(cl *call, err error) error {
	if by := c.revokedBy(); by != nil {
		return c.revokedIn(cl, by)
	}
	var f *fault.Error
	switch {
	case !errors.As(err, &f):
		f = c.gaveUp(cl, err)
		f.Peers = c.missing(cl)
		// Nobody is missing when this rank itself was: stopped, say, until its time
		// was over. What the others made of that comes before their answers.
		if by := c.revokedBy(); by != nil && len(f.Peers) == 0 {
			return c.revokedIn(cl, by)
		}
	case f.Kind == fault.Mismatch && len(f.Peers) > 0:
		f = c.mismatchWith(cl, f.Peers[0].Rank, f.Err)
		// The rank that was asked may have left, but not before it told all of us why.
		if by := c.revokedBy(); by != nil {
			return c.revokedIn(cl, by)
		}
	case f.Kind == fault.PeerLost, f.Kind == fault.LinkLost:
		return c.relabel(cl.String(), err) // every rank hears the verdict
	default:
		f = c.relabel(cl.String(), err).(*fault.Error)
	}
	c.revokeAll(f)
	return f
}

// lastWordsLimit bounds how long a failed call stays for others to hear why.
const lastWordsLimit = 100 * time.Millisecond

// lastWords returns when the ranks around this one have heard, and told on, what
// it has said so far: the program may end as soon as it has its error.
func (w *world) lastWords() {
	ctx, cancel := context.WithTimeout(w.ctx, lastWordsLimit)
	defer cancel()
	w.mesh.Fence(ctx)
}

// revokedBy is what revoked the communicator, or nil.
func (c *Comm) revokedBy() *fault.Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.revoked
}

// revokedIn is what a call gets that was under way when another rank revoked the
// communicator: a mismatch concerns it itself, everything else came from there.
func (c *Comm) revokedIn(cl *call, cause *fault.Error) error {
	if cause.Kind == fault.Mismatch {
		return c.relabel(cl.String(), cause)
	}
	return &fault.Error{Kind: fault.Revoked, Op: cl.String(), Rank: c.w.rank, Peers: cause.Peers, Err: cause}
}

// gaveUp is the error of a call whose own time was over.
func (c *Comm) gaveUp(cl *call, err error) *fault.Error {
	f := &fault.Error{Kind: fault.Ending(err), Op: cl.String(), Rank: c.w.rank, Err: err}
	if errors.Is(err, errTimeout) {
		f.Kind = fault.Timeout
	}
	return f
}

// missing are the members that have not begun collective cl, as they say, or as
// their neighbours heard from them last.
func (c *Comm) missing(cl *call) []fault.Peer { return c.missingIn(c.w.ctx, cl.seq) }

func (c *Comm) missingIn(ctx context.Context, seq uint32) []fault.Peer {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	var ranks []int
	for i := range c.Size() {
		if i != c.Rank() {
			ranks = append(ranks, c.g.World(i))
		}
	}
	var peers []fault.Peer
	for _, a := range c.w.ask(ctx, ranks, question{Comm: c.id, Seq: seq}) {
		if !a.Entered {
			peers = append(peers, a.peer(c.w))
		}
	}
	return peers
}

// A question is asked over the control links; an answer comes back.
type question struct {
	Comm uint64
	Seq  uint32
	Past bool // what was collective Seq? Otherwise: what are you doing?
}

type answer struct {
	rank    int
	Entered bool   // collective Seq has begun there
	Print   uint64 // of collective Seq, when that was asked
	Call    string // the call under way, or the last one
	How     string // what.how of collective Seq, when that was asked
	At      string // where
	Waits   int    // the job's rank that it waits for, -1 when it is none in particular
}

func (a answer) peer(w *world) fault.Peer {
	p := w.peer(a.rank)
	p.Call, p.At = a.Call, a.At
	return p
}

// ask puts q to ranks. For a rank that says nothing, its last heartbeat speaks.
func (w *world) ask(ctx context.Context, ranks []int, q question) []answer {
	text, _ := json.Marshal(q) // cannot fail: plain fields
	var out []answer
	for _, got := range w.mesh.Ask(ctx, ranks, text) {
		a := answer{Waits: -1}
		if got.Body == nil || json.Unmarshal(got.Body, &a) != nil {
			a = answer{Call: silent(got), Waits: -1}
		}
		a.rank = got.Rank
		out = append(out, a)
	}
	return out
}

func silent(a mesh.Answer) string {
	s := a.Last
	if s == "" {
		s = "no call that others know of"
	}
	if a.Silent > 0 {
		s += fmt.Sprintf(" (silent for %.1f s)", a.Silent.Seconds())
	}
	return s
}

// maxWords bounds the texts in an answer.
const maxWords = 512

// Question implements mesh.Events.
func (w *world) Question(_ int, text []byte) []byte {
	var q question
	if json.Unmarshal(text, &q) != nil {
		return nil
	}
	a := answer{Waits: -1}
	if c := w.find(q.Comm); c != nil {
		c.mu.Lock()
		a.Entered = int32(c.seq-q.Seq) >= 0
		p := c.history[q.Seq%historySize]
		c.mu.Unlock()
		if q.Past && p.seq == q.Seq {
			a.Call, a.At, a.Print, a.How = p.String(), p.site.String(), p.fprint, p.how()
		}
	}
	if !q.Past {
		w.doing(&a)
	}
	a.Call, a.At = a.Call[:min(len(a.Call), maxWords)], a.At[:min(len(a.At), maxWords)]
	out, _ := json.Marshal(a)
	return out
}

// doing says what this rank is in, or was in last, and where.
func (w *world) doing(a *answer) {
	cs := &w.calls
	cs.mu.Lock()
	cl, last := cs.oldest(), cs.recent()
	switch {
	case cl != nil:
		last, a.Waits = *cl.past, cl.waits()
	case last.name != "":
		a.Waits = cs.stuck
	}
	cs.mu.Unlock()
	if last.name != "" {
		a.Call = last.String()
	}
	a.At = w.where(last.site, cl != nil || a.Waits >= 0)
}

// A told is a fingerprint on its way to the other ranks.
type told struct {
	Comm     uint64
	Seq      uint32
	Print    uint64
	Call, At string
	How      string
}

// tellPrint tells all ranks what this one waits in.
func (c *Comm) tellPrint(cl *call) {
	text, _ := json.Marshal(told{c.id, cl.seq, cl.fprint, cl.String(), cl.site.String(), cl.how()})
	c.w.mesh.Flood(floodPrint, text)
}

// printHeard compares another rank's fingerprint with ours of the same number,
// now or when this rank gets there.
func (w *world) printHeard(from int, text []byte) {
	var t told
	if json.Unmarshal(text, &t) != nil {
		return
	}
	c := w.find(t.Comm)
	if c == nil {
		return
	}
	other := w.peer(from)
	other.Call, other.At = t.Call, t.At
	c.mu.Lock()
	p := c.history[t.Seq%historySize]
	switch {
	case int32(c.seq-t.Seq) < 0:
		if c.expected.seq != t.Seq {
			c.expected = expectation{t.Seq, t.Print, other, t.How}
		}
		c.mu.Unlock()
		return
	case p.seq != t.Seq:
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	if p.fprint == t.Print {
		w.calls.agreed(c, t.Seq)
		return
	}
	c.revokeAll(c.mismatch(&p, other, t.How))
}

// stray compares the fingerprint of a collective's message that nobody awaits
// with what this rank did, or does, under the same number: without it a root that
// only sends would never learn that others took themselves for the root.
func (c *Comm) stray(world int, seq uint32, print uint64) {
	c.mu.Lock()
	p := c.history[seq%historySize]
	c.mu.Unlock()
	if p.seq != seq || p2p.Same(print, p.fprint) {
		return
	}
	if c.doubt.CompareAndSwap(nil, &doubt{p, world}) {
		c.w.spawn(func(context.Context) { c.resolve() })
	}
}

// A doubt is a collective of this rank's that another rank has contradicted.
type doubt struct {
	own  past
	rank int
}

// resolve makes a doubt a mismatch on all ranks.
func (c *Comm) resolve() *fault.Error {
	d := c.doubt.Load()
	f := c.mismatchOf(&d.own, d.rank, nil)
	c.revokeAll(f)
	return f
}

// agreed notes that somebody has told the fingerprint of a call under way.
func (cs *calls) agreed(c *Comm, seq uint32) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for cl := cs.first; cl != nil; cl = cl.next {
		if cl.c == c && cl.collective && cl.seq == seq && cl.underWay() {
			cl.mu.Lock()
			cl.heard = true
			cl.mu.Unlock()
		}
	}
}

// mismatch names both sides' calls, the other's and this rank's; where these read
// alike, with how they are carried out there, and here.
func (c *Comm) mismatch(own *past, other fault.Peer, how string) *fault.Error {
	me := c.w.peer(c.w.rank)
	me.Call, me.At = own.String(), own.site.String()
	if me.Call == other.Call && how != "" {
		other.Call += " " + how[:min(len(how), maxWords)]
		me.Call += " " + own.how()
	}
	return &fault.Error{Kind: fault.Mismatch, Op: own.String(), Rank: c.w.rank, Peers: []fault.Peer{other, me}}
}

// mismatchWith is mismatchOf for a call under way. Ranks that disagree may notice
// some collectives later, when those between moved nothing: then it is the one
// they disagree about that is named.
func (c *Comm) mismatchWith(cl *call, rank int, cause error) *fault.Error {
	for _, back := range [...]uint32{1, 0, 2, 3, 4, 5, 6, 7, 8} {
		c.mu.Lock()
		own := c.history[(cl.seq-back)%historySize]
		c.mu.Unlock()
		if own.seq == 0 || own.seq != cl.seq-back {
			continue
		}
		if a := c.pastOf(rank, own.seq); a.Print != 0 && a.Print != own.fprint {
			f := c.mismatch(&own, a.peer(c.w), a.How)
			f.Err = cause
			return f
		}
	}
	return c.mismatchOf(cl.past, rank, cause)
}

// mismatchOf asks a rank, whose message had another fingerprint, for its call.
func (c *Comm) mismatchOf(own *past, rank int, cause error) *fault.Error {
	a := c.pastOf(rank, own.seq)
	f := c.mismatch(own, a.peer(c.w), a.How)
	f.Err = cause
	return f
}

// pastOf is what a rank says of one of its collectives; its fingerprint is 0 when it
// says nothing.
func (c *Comm) pastOf(rank int, seq uint32) answer {
	ctx, cancel := context.WithTimeout(c.w.ctx, askLimit)
	defer cancel()
	for _, a := range c.w.ask(ctx, []int{rank}, question{Comm: c.id, Seq: seq, Past: true}) {
		return a
	}
	return answer{rank: rank, Waits: -1}
}

// revoke ends this rank's calls on the communicator, now and later, and runs
// before first, which may be nil; neither when that was done before.
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
	c.g.Revoke(e)
}

// revokeAll revokes the communicator on every rank. The first cause stays. The
// others are told before anything here can find it revoked, and leave.
func (c *Comm) revokeAll(e *fault.Error) {
	body := binary.LittleEndian.AppendUint64(nil, c.id)
	wire := e.AppendWire(nil)
	if len(wire)+8 > mesh.MaxFlood {
		short := *e
		short.Peers, short.Err = e.Peers[:min(len(e.Peers), 4)], nil
		wire = short.AppendWire(nil)
	}
	c.revoke(e, func() { c.w.mesh.Flood(floodRevoke, append(body, wire...)) })
}

// revokeHeard acts on another rank's revokeAll.
func (w *world) revokeHeard(body []byte) {
	if len(body) < 8 {
		return
	}
	e, err := fault.ParseWire(body[8:])
	if err != nil {
		return
	}
	id := binary.LittleEndian.Uint64(body)
	w.mu.Lock()
	c := w.comms[id]
	if c == nil {
		w.early.add(id, e)
	}
	w.mu.Unlock()
	if c != nil {
		c.revoke(e, nil)
	}
}

// messageFailed turns the error that ended a message call into the caller's.
func (c *Comm) messageFailed(cl *call, err error) error {
	var f *fault.Error
	if errors.As(err, &f) {
		c.mu.Lock()
		revoked := c.revoked
		c.mu.Unlock()
		if revoked != nil && f == revoked {
			return c.revokedIn(cl, revoked)
		}
		return c.relabel(cl.String(), err)
	}
	f = c.gaveUp(cl, err)
	c.w.calls.gaveUp(cl)
	peers, cycle := cl.report().chain(c.w.ctx)
	if f.Peers = peers; cycle != "" {
		f.Err = fmt.Errorf("%w; %s", err, cycle)
	}
	return f
}

// chain follows who waits for whom from a message call on, and says so when it
// comes back to this rank: a deadlock of the program's.
func (r report) chain(ctx context.Context) (peers []fault.Peer, cycle string) {
	c := r.c
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	path := []string{fmt.Sprintf("rank %d in %s at %s", c.w.rank, r.text, r.site)}
	for next := r.waits; next >= 0 && len(peers) < c.w.size; {
		as := c.w.ask(ctx, []int{next}, question{Comm: c.id, Seq: 0})
		if len(as) == 0 {
			break
		}
		a := as[0]
		peers = append(peers, a.peer(c.w))
		path = append(path, fmt.Sprintf("rank %d in %s at %s", a.rank, a.Call, a.At))
		if a.Waits == c.w.rank {
			return peers, "the ranks wait in a cycle: " + strings.Join(path, ", waits for ")
		}
		if a.Waits == next {
			break
		}
		next = a.Waits
	}
	return peers[:min(1, len(peers))], ""
}

// A report is what a stall warning needs of its call, which may have ended by
// the time the other ranks have answered.
type report struct {
	c          *Comm
	text       string
	site       callsite.Site
	collective bool
	seq        uint32
	waits      int // the job's rank that a message call waits for; -1: none in particular
}

func (cl *call) report() report {
	return report{cl.c, cl.String(), cl.site, cl.collective, cl.seq, cl.waits()}
}

// warn logs one line that says who is missing and where.
func (r report) warn(ctx context.Context) {
	var peers []fault.Peer
	var cycle string
	if r.collective {
		peers = r.c.missingIn(ctx, r.seq)
	} else {
		peers, cycle = r.chain(ctx)
	}
	missing := "nobody in particular"
	if len(peers) > 0 {
		missing = names(peers)
	}
	if cycle != "" {
		missing += "; " + cycle
	}
	r.c.w.log.Warn(fmt.Sprintf("tutti: rank %d waits in %s at %s for %v; missing: %s",
		r.c.w.rank, r.text, r.site, r.c.w.opt.stallWarning, missing))
}

// names is peers as people read them.
func names(peers []fault.Peer) string {
	texts := make([]string, len(peers))
	for i, p := range peers {
		texts[i] = p.String()
	}
	return strings.Join(texts, "; ")
}
