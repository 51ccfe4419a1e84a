package comm

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/internal/callsite"
	"github.com/tutti-go/tutti/tensor"
)

// what says what a call does: all that ranks must agree on, or are told about.
// Fields that do not apply are zero, or -1 for ranks and tags.
type what struct {
	name  string // "allreduce", "send"
	dtype tensor.DType
	count int // elements; -1 when ranks may differ
	root  int
	peer  int // the member that a message goes to or comes from
	tag   int
	lists int    // vectors that count is the sum of; 0: it is that of one
	op    string // the operator
	opID  uint64
	algo  string
	// segment is the bytes of a segment of a collective's messages.
	segment int
	kind    uint64 // of a collective: a number for its name and its algorithm
}

// String reads "allreduce float32 x1000 sum".
func (w what) String() string { return string(w.appendTo(nil, 0)) }

// appendTo appends what String returns to b, with a collective's number after its
// name unless that is 0: "allreduce #41 float32 x1000 sum".
func (w *what) appendTo(b []byte, seq uint32) []byte {
	number := func(before string, n int) { b = strconv.AppendInt(append(b, before...), int64(n), 10) }
	b = append(b, w.name...)
	if seq != 0 {
		number(" #", int(seq))
	}
	if w.dtype.Valid() {
		b = append(append(b, ' '), w.dtype.String()...)
		if w.count >= 0 {
			number(" x", w.count)
		}
	}
	if w.lists > 0 {
		number(" in ", w.lists)
		b = append(b, " vectors"...)
	}
	if w.op != "" {
		b = append(append(b, ' '), w.op...)
	}
	switch {
	case w.root >= 0:
		number(" root ", w.root)
	case w.peer >= 0:
		number(" with rank ", w.peer)
		if w.tag >= 0 {
			number(" tag ", w.tag)
		}
	case w.peer == anyPeer:
		b = append(b, " from any rank"...)
	}
	return b
}

// how says what String leaves out, and ranks must agree on all the same: it is for
// calls that read alike.
func (w what) how() string {
	var b strings.Builder
	fmt.Fprintf(&b, "by %s in segments of %d bytes", w.algo, w.segment)
	if strings.HasSuffix(w.name, "v") && w.opID != 0 {
		fmt.Fprintf(&b, " with counts of hash %08x", uint32(w.opID))
	}
	if w.lists > 0 {
		fmt.Fprintf(&b, " with lengths of hash %08x", uint32(w.opID))
	}
	if _, err := collective.ParseVerb(w.name); err == nil && w.kind&besideOthers != 0 {
		b.WriteString(", beside other calls")
	}
	return b.String()
}

const (
	noPeer  = -1
	anyPeer = -2
)

// print is the fingerprint of a collective: equal on ranks that agree. It is
// never 0, which stands for "not checked", also in the form of last segments; see
// p2p.Same.
func (w *what) print() uint64 {
	// Products that do not wait for each other, with odd numbers that are taken from
	// the fractions of square roots.
	h := w.kind*0x6a09e667f3bcc909 + (uint64(w.dtype)<<32^uint64(uint32(w.root)))*0xbb67ae8584caa73b +
		uint64(w.count)*0x3c6ef372fe94f82b + w.opID*0xa54ff53a5f1d36f1 + uint64(w.segment)*0x510e527fade682d1
	h = (h ^ h>>32) * 0x9e3779b97f4a7c15
	return (h ^ h>>29) | 3
}

// A call is one blocking call of the program's, or one non-blocking collective,
// while it is under way. It is also the Patience of the call's waits.
//
// Its owner writes it before it is listed; who reads it later holds calls.mu,
// or is the owner.
type call struct {
	*past      // what it is: kept, or the entry of its communicator's history, where no other can take that meanwhile
	kept       past
	c          *Comm
	collective bool
	hasLimit   bool   // its context has a deadline
	trail      uint64 // of all collectives up to this one
	entry      uint64 // of a communicator's own call: what entered was

	listed     bool // in calls, which guard it and its neighbours there
	prev, next *call

	mu     sync.Mutex // guards the rest: waits of one call follow each other, but a report may run beside
	since  time.Time  // it was first asked, having polled for a while
	raised stage      // those that were due, as bits
	told   int        // how often the fingerprint was told
	heard  bool       // another rank told the same one: no need to tell ours
}

// A stage is what a call that waits long does next.
type stage uint8

const (
	stagePrint stage = 1 << iota // tell the others our fingerprint
	stageWarn                    // log who is missing
	stageEnd                     // give up
)

// printAfter is when a rank that waits in a collective tells the others its
// fingerprint; printSpread keeps ranks that wait together from all doing so.
const (
	printAfter  = 100 * time.Millisecond
	printSpread = 100 * time.Millisecond
	printAgain  = time.Second // for ranks that have made the communicator only meanwhile
)

// errTimeout is the communicator's own limit, where the context has none.
var errTimeout = errors.New("the communicator's Timeout has passed")

// Until implements mesh.Patience.
func (cl *call) Until() time.Time {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.since.IsZero() {
		cl.since = time.Now()
	}
	at, _ := cl.upcoming()
	return at
}

// upcoming is the next stage and its moment; zero when there is none.
func (cl *call) upcoming() (at time.Time, s stage) {
	w := cl.c.w
	after := func(d time.Duration, next stage) {
		t := cl.since.Add(d)
		if cl.raised&next == 0 && (at.IsZero() || t.Before(at)) {
			at, s = t, next
		}
	}
	if cl.collective && !cl.heard {
		after(printAfter+spread(cl.c.Rank(), cl.c.Size())+time.Duration(cl.told)*printAgain, stagePrint)
	}
	if w.opt.stallWarning > 0 {
		after(w.opt.stallWarning, stageWarn)
	}
	if w.opt.timeout > 0 && !cl.hasLimit {
		after(w.opt.timeout, stageEnd)
	}
	return at, s
}

func spread(rank, size int) time.Duration {
	return printSpread * time.Duration(rank) / time.Duration(size)
}

// Due implements mesh.Patience.
func (cl *call) Due() error {
	cl.mu.Lock()
	at, s := cl.upcoming()
	if at.IsZero() || time.Now().Before(at) {
		cl.mu.Unlock()
		return nil
	}
	if s == stagePrint {
		cl.told++
	} else {
		cl.raised |= s
	}
	cl.mu.Unlock()
	switch s {
	case stagePrint:
		cl.c.tellPrint(cl)
	case stageWarn:
		report := cl.report()
		cl.c.w.spawn(func(ctx context.Context) { report.warn(ctx) })
	case stageEnd:
		return errTimeout
	}
	return nil
}

// waits is the job's rank that a message call waits for; -1: none in particular.
func (cl *call) waits() int {
	if cl.peer < 0 || cl.peer >= cl.c.Size() { // it is about to be refused
		return -1
	}
	return cl.c.g.World(cl.peer)
}

// String reads "allreduce #41 float32 x1000 sum".
func (cl *call) String() string { return describe(cl.what, cl.collective, cl.seq) }

func describe(w what, collective bool, seq uint32) string {
	if !collective { // one that was not admitted has no number either
		seq = 0
	}
	return string(w.appendTo(nil, seq))
}

// A past is what is remembered of a collective that has begun.
type past struct {
	what
	site   callsite.Site
	seq    uint32
	fprint uint64
	known  uint64 // the number of what the communicator remembers of it; 0: nothing
}

func (p *past) String() string { return describe(p.what, p.seq != 0, p.seq) }

// calls are the calls of one rank: those under way, and the last that began. Every
// collective takes the lock once. It ends without: a communicator's own call, the
// blocking one, stays listed until its next, or until the communicator is closed, and
// underWay tells whether it is.
type calls struct {
	mu    sync.Mutex // guards all of it, and what it says in Comm
	first *call      // the one listed longest
	last  *call      // the youngest
	comm  *Comm      // of the call that began last, for heartbeats
	seq   uint32     // which of the communicator's collectives it was; 0: a message
	text  what       // of the last message call
	site  callsite.Site
	begun *call // the call that began last, while it is listed
	stuck int   // when it gave up: the job's rank that it had waited for; else -1
}

// begin lists a call that has no place among its communicator's collectives.
func (cs *calls) begin(cl *call) {
	cs.mu.Lock()
	cs.list(cl)
	cs.text, cs.site, cs.seq = cl.what, cl.site, 0
	cs.mu.Unlock()
}

// list makes cl the youngest call. cs.mu is held.
func (cs *calls) list(cl *call) {
	if cs.last != cl {
		if cl.listed {
			cs.unlist(cl)
		}
		if cl.prev, cl.listed = cs.last, true; cs.last == nil {
			cs.first = cl
		} else {
			cs.last.next = cl
		}
		cs.last = cl
	}
	cs.begun, cs.stuck = cl, -1
	cs.comm, cs.seq = cl.c, cl.seq
}

// pass is begin and end of a message call that does not wait. It is remembered as
// the one that began last, but not listed: it is over before anyone could ask.
func (cs *calls) pass(c *Comm, w *what) {
	cs.mu.Lock()
	cs.comm, cs.seq, cs.text = c, 0, *w
	cs.site.Set()
	cs.begun, cs.stuck = nil, -1
	cs.mu.Unlock()
}

// unlist takes cl out, which is listed. cs.mu is held.
func (cs *calls) unlist(cl *call) {
	if cl.prev == nil {
		cs.first = cl.next
	} else {
		cl.prev.next = cl.next
	}
	if cl.next == nil {
		cs.last = cl.prev
	} else {
		cl.next.prev = cl.prev
	}
	if cs.begun == cl {
		cs.begun = nil
	}
	cl.prev, cl.next, cl.listed = nil, nil, false
}

// end takes a call out.
func (cs *calls) end(cl *call) {
	cs.mu.Lock()
	if cl.listed {
		cs.unlist(cl)
	}
	cs.mu.Unlock()
}

// underWay reports whether a listed call has not left yet. calls.mu is held.
func (cl *call) underWay() bool {
	c := cl.c
	return cl != &c.own || cl.entry == c.entered && c.left.Load() != cl.entry
}

// oldest is the call that is under way for longest, or nil. cs.mu is held.
func (cs *calls) oldest() *call {
	for cl := cs.first; cl != nil; cl = cl.next {
		if cl.underWay() {
			return cl
		}
	}
	return nil
}

// recent is the call that began last; the zero past when there was none. cs.mu is
// held.
func (cs *calls) recent() past {
	if cs.seq == 0 {
		return past{what: cs.text, site: cs.site}
	}
	return cs.comm.history[cs.seq%historySize]
}

// gaveUp remembers whom a message call waited for in vain, until the next call:
// ranks in a cycle that give up one after the other are all to see the cycle.
func (cs *calls) gaveUp(cl *call) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.begun == cl {
		cs.stuck = cl.waits()
	}
}

var callPool = sync.Pool{New: func() any { return new(call) }}

func newCall(c *Comm) *call {
	cl := callPool.Get().(*call)
	cl.past, cl.c = &cl.kept, c
	return cl
}

// free gives cl back; nobody but its owner may know it any more.
func (cl *call) free() {
	cl.clear()
	cl.past, cl.kept, cl.c, cl.collective = nil, past{}, nil, false
	callPool.Put(cl)
}

// clear forgets how long the last call waited, for the next.
func (cl *call) clear() {
	if !cl.since.IsZero() || cl.heard {
		cl.since, cl.raised, cl.heard, cl.told = time.Time{}, 0, false, 0
	}
}
