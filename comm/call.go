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

// A signature describes a call: everything that ranks must agree on, and everything that errors
// report. Fields that do not apply are zero; ranks and tags that do not apply are -1.
type signature struct {
	callName   string // "allreduce", "send"
	dtype      tensor.DType
	count      int // elements; -1 where ranks may pass different counts
	root       int // the root, numbered in the job
	peer       int // the destination or source of a message, numbered in the job
	tag        int
	lists      int    // the number of vectors whose lengths add up to count; 0 for a single vector
	operator   string // the name of the operator
	operatorID uint64
	algorithm  string
	// segment is the size in bytes of one segment of a collective's messages.
	segment int
	callID  uint64 // for a collective: a number made of its name, its algorithm and noSharedFlag
}

// String returns text such as "allreduce float32 x1000 sum".
func (sig signature) String() string { return string(sig.appendTo(nil, 0)) }

// appendTo appends the text of String to b. If seq is not 0, it adds seq, the collective's number,
// after the name: "allreduce #41 float32 x1000 sum".
func (sig *signature) appendTo(b []byte, seq uint32) []byte {
	number := func(before string, n int) { b = strconv.AppendInt(append(b, before...), int64(n), 10) }
	b = append(b, sig.callName...)
	if seq != 0 {
		number(" #", int(seq))
	}
	if sig.dtype.Valid() {
		b = append(append(b, ' '), sig.dtype.String()...)
		if sig.count >= 0 {
			number(" x", sig.count)
		}
	}
	if sig.lists > 0 {
		number(" in ", sig.lists)
		b = append(b, " vectors"...)
	}
	if sig.operator != "" {
		b = append(append(b, ' '), sig.operator...)
	}
	switch {
	case sig.root >= 0:
		number(" root ", sig.root)
	case sig.peer >= 0:
		number(" with rank ", sig.peer)
		if sig.tag >= 0 {
			number(" tag ", sig.tag)
		}
	case sig.peer == anyPeer:
		b = append(b, " from any rank"...)
	}
	return b
}

// details returns the properties that ranks must agree on and that String leaves out. Errors add
// them when the texts of two calls are equal.
func (sig signature) details() string {
	var b strings.Builder
	fmt.Fprintf(&b, "by %s in segments of %d bytes", sig.algorithm, sig.segment)
	if strings.HasSuffix(sig.callName, "v") && sig.operatorID != 0 {
		fmt.Fprintf(&b, " with counts of hash %08x", uint32(sig.operatorID))
	}
	if sig.lists > 0 {
		fmt.Fprintf(&b, " with lengths of hash %08x", uint32(sig.operatorID))
	}
	if _, err := collective.ParseVerb(sig.callName); err == nil && sig.callID&noSharedFlag != 0 {
		b.WriteString(", without shared memory")
	}
	return b.String()
}

// Values of signature.peer that are not the number of a rank.
const (
	noPeer  = -1
	anyPeer = -2 // AnySource
)

// hash returns the fingerprint of a collective. Ranks that agree have equal fingerprints; ranks
// that disagree have different ones with high probability. The result is never 0, because 0 means
// "not checked". It does not become 0 when p2p marks it for a last segment either; see
// p2p.SameFingerprint. hash runs in every call, so it uses a few multiplications instead of a
// cryptographic hash: it detects mistakes, not attacks.
func (sig *signature) hash() uint64 {
	// The products do not depend on each other, so they overlap. Their odd factors come from
	// fractional parts of square roots.
	h := sig.callID*0x6a09e667f3bcc909 + (uint64(sig.dtype)<<32^uint64(uint32(sig.root)))*0xbb67ae8584caa73b +
		uint64(sig.count)*0x3c6ef372fe94f82b + sig.operatorID*0xa54ff53a5f1d36f1 + uint64(sig.segment)*0x510e527fade682d1
	h = (h ^ h>>32) * 0x9e3779b97f4a7c15
	return (h ^ h>>29) | 3
}

// A call is a blocking call of the program, or a non-blocking collective, while it is under way. It
// is also the mesh.WaitPolicy of its own waits: it decides when a wait sends the fingerprint, logs
// a warning, and gives up.
//
// The owner is the goroutine that begins the call, and then the goroutine that carries it out. The
// goroutine that begins the call writes the fields before the call is listed. After that, only the
// owner and goroutines that hold calls.mu read the call. The stages of a long wait:
//
//	stage             after                           how often
//	stageFingerprint  100 ms, staggered by rank       each second, until another rank sends the same
//	stageWarn         the option StallWarning         once
//	stageTimeout      the option Timeout              once: the wait ends
type call struct {
	*callRecord // ownRecord, or for a blocking collective its entry in the history
	ownRecord   callRecord
	c           *Comm
	collective  bool
	hasLimit    bool   // the call's context has a deadline
	historyHash uint64 // the hash over all collectives up to and including this call
	admission   uint64 // the value of Comm.admitted when a blocking collective began

	listed     bool // the call is in the list of calls; calls.mu guards listed, prev and next
	prev, next *call

	// mu guards the fields below. A call has one wait at a time, but markAgreed runs concurrently.
	mu               sync.Mutex
	waitingSince     time.Time // when the caller first called NextCheck; it polls for a while before that
	stagesDone       stage     // the stages that are over, as a bit set
	fingerprintsSent int       // how often this call sent its fingerprint
	agreed           bool      // another rank sent the same fingerprint, so this rank need not send it
}

// A stage is an action that a call takes when it has waited for a certain time.
type stage uint8

const (
	stageFingerprint stage = 1 << iota // send this rank's fingerprint to the other ranks
	stageWarn                          // log the missing ranks
	stageTimeout                       // give up
)

// fingerprintAfter is how long a rank waits in a collective before it sends its fingerprint to the
// other ranks. fingerprintSpread staggers ranks that wait at the same time, because a rank that has
// received an equal fingerprint need not send its own.
const (
	fingerprintAfter    = 100 * time.Millisecond
	fingerprintSpread   = 100 * time.Millisecond
	fingerprintInterval = time.Second // between repetitions, for ranks that make the communicator later than this one
)

// errTimeout is the cause when the limit of WithTimeout ends a call whose context has no deadline.
// The caller gets fault.Timeout.
var errTimeout = errors.New("the time limit of WithTimeout or TUTTI_TIMEOUT has passed (10 minutes if neither is set)")

// NextCheck implements mesh.WaitPolicy.
func (cl *call) NextCheck() time.Time {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.waitingSince.IsZero() {
		cl.waitingSince = time.Now()
	}
	at, _ := cl.nextStage()
	return at
}

// nextStage returns the next stage and its time. The time is zero when no stage is left. cl.mu is
// held.
func (cl *call) nextStage() (at time.Time, s stage) {
	rt := cl.c.rt
	after := func(d time.Duration, next stage) {
		t := cl.waitingSince.Add(d)
		if cl.stagesDone&next == 0 && (at.IsZero() || t.Before(at)) {
			at, s = t, next
		}
	}
	if cl.collective && !cl.agreed {
		after(fingerprintAfter+stagger(cl.c.Rank(), cl.c.Size())+time.Duration(cl.fingerprintsSent)*fingerprintInterval, stageFingerprint)
	}
	if rt.opt.stallWarning > 0 {
		after(rt.opt.stallWarning, stageWarn)
	}
	if rt.opt.timeout > 0 && !cl.hasLimit {
		after(rt.opt.timeout, stageTimeout)
	}
	return at, s
}

// stagger returns how much later than rank 0 a rank sends its fingerprint. It spreads the
// ranks of a communicator evenly over fingerprintSpread.
func stagger(rank, size int) time.Duration {
	return fingerprintSpread * time.Duration(rank) / time.Duration(size)
}

// Check implements mesh.WaitPolicy. The mesh calls it at the time that NextCheck returned. Check
// carries out the stage that is due. At stageTimeout it returns an error, which ends the wait. A
// new goroutine logs the warning, because the warning needs answers from other ranks.
func (cl *call) Check() error {
	cl.mu.Lock()
	at, s := cl.nextStage()
	if at.IsZero() || time.Now().Before(at) {
		cl.mu.Unlock()
		return nil
	}
	if s == stageFingerprint {
		cl.fingerprintsSent++
	} else {
		cl.stagesDone |= s
	}
	cl.mu.Unlock()
	switch s {
	case stageFingerprint:
		cl.c.sendFingerprint(cl)
	case stageWarn:
		report := cl.report()
		cl.c.rt.spawn(func(ctx context.Context) { report.warn(ctx) })
	case stageTimeout:
		return errTimeout
	}
	return nil
}

// waitsFor returns the rank, numbered in the job, that a message call waits for. It returns -1 for
// a wildcard or a collective, which wait for no particular rank.
func (cl *call) waitsFor() int {
	if _, in := cl.c.group.RankOf(cl.peer); !in { // no rank, or a rank that the call is about to refuse
		return -1
	}
	return cl.peer
}

// String returns text such as "allreduce #41 float32 x1000 sum".
func (cl *call) String() string { return describeCall(cl.signature, cl.collective, cl.seq) }

// describeCall returns the text of a call. The text of a collective includes its number seq. A
// message, and a collective that was not admitted, has no number.
func describeCall(sig signature, collective bool, seq uint32) string {
	if !collective {
		seq = 0
	}
	return string(sig.appendTo(nil, seq))
}

// A callRecord records a call that has begun. The history of a communicator consists of
// callRecords, and answers to other ranks are made from them.
type callRecord struct {
	signature
	site        callsite.Site
	seq         uint32
	fingerprint uint64
	planNumber  uint64 // the number of its cached plan; 0 if its plan is not cached
}

// String returns the text of the recorded call. A record whose seq is 0 is a message, which has no
// number.
func (r *callRecord) String() string { return describeCall(r.signature, r.seq != 0, r.seq) }

// calls lists the calls of one rank: those under way, oldest first, and the last call that began.
// Heartbeats (LastCall), answers to questions and stall warnings read the list to report where this
// rank is.
//
//	call                        added by         removed by
//	blocking collective         Comm.admit       the communicator's next one, an error, or Close
//	non-blocking collective     Comm.admit       Comm.finish
//	message that waits          beginMessage     endMessage
//	message that does not wait  not listed; recordInline only records it
//
// Every collective takes the lock once, when it begins. A blocking collective ends without the
// lock. It therefore stays listed, and active reports whether it is still under way.
type calls struct {
	mu           sync.Mutex // guards all fields here, and in every Comm the fields below its mu
	oldestListed *call      // the call that has been listed longest
	newestListed *call      // the call that was listed last
	lastComm     *Comm      // the communicator of the call that began last, for heartbeats
	lastSeq      uint32     // the number of that call among lastComm's collectives; 0 for a message
	lastMessage  signature  // the signature of the last message call
	lastSite     callsite.Site
	latest       *call // the call that began last, while it is listed
	stuckOn      int   // the rank, numbered in the job, that latest waited for when it gave up; else -1
}

// beginMessage lists a message call that may wait. recordInline is the cheaper form for calls that
// do not wait.
func (cs *calls) beginMessage(cl *call) {
	cs.mu.Lock()
	cs.add(cl)
	cs.lastMessage, cs.lastSite, cs.lastSeq = cl.signature, cl.site, 0
	cs.mu.Unlock()
}

// add makes cl the newest call. A blocking call may still be listed from its last use; add removes
// it first. cs.mu is held.
func (cs *calls) add(cl *call) {
	if cs.newestListed != cl {
		if cl.listed {
			cs.remove(cl)
		}
		if cl.prev, cl.listed = cs.newestListed, true; cs.newestListed == nil {
			cs.oldestListed = cl
		} else {
			cs.newestListed.next = cl
		}
		cs.newestListed = cl
	}
	cs.latest, cs.stuckOn = cl, -1
	cs.lastComm, cs.lastSeq = cl.c, cl.seq
}

// recordInline records a message call that does not wait. Such a call ends before another rank
// could ask about it, so recordInline does not list it.
func (cs *calls) recordInline(c *Comm, sig *signature) {
	cs.mu.Lock()
	cs.lastComm, cs.lastSeq, cs.lastMessage = c, 0, *sig
	cs.lastSite.Capture()
	cs.latest, cs.stuckOn = nil, -1
	cs.mu.Unlock()
}

// remove takes a listed call off the list. cs.mu is held.
func (cs *calls) remove(cl *call) {
	if cl.prev == nil {
		cs.oldestListed = cl.next
	} else {
		cl.prev.next = cl.next
	}
	if cl.next == nil {
		cs.newestListed = cl.prev
	} else {
		cl.next.prev = cl.prev
	}
	if cs.latest == cl {
		cs.latest = nil
	}
	cl.prev, cl.next, cl.listed = nil, nil, false
}

// endMessage removes a message call from the list. It runs before the call returns to the program,
// which may make its next call at once.
func (cs *calls) endMessage(cl *call) {
	cs.mu.Lock()
	if cl.listed {
		cs.remove(cl)
	}
	cs.mu.Unlock()
}

// active reports whether a listed call is still under way. A blocking collective is under way if
// its admission is the communicator's latest and that admission has not exited. calls.mu is held.
func (cl *call) active() bool {
	c := cl.c
	return cl != &c.blocking || cl.admission == c.admitted && c.exited.Load() != cl.admission
}

// oldestActive returns the call that has been under way longest, or nil. The oldest call is the
// one most likely to hang. cs.mu is held.
func (cs *calls) oldestActive() *call {
	for cl := cs.oldestListed; cl != nil; cl = cl.next {
		if cl.active() {
			return cl
		}
	}
	return nil
}

// lastRecord returns the record of the call that began last, or the zero record before the first
// call. The record of a collective comes from its communicator's history, and the record of a
// message comes from cs. cs.mu is held.
func (cs *calls) lastRecord() callRecord {
	if cs.lastSeq == 0 {
		return callRecord{signature: cs.lastMessage, site: cs.lastSite}
	}
	return cs.lastComm.history[cs.lastSeq%historySize]
}

// recordTimeout records which rank a message call waited for when it gave up. The record stays
// until the next call. So when the ranks of a cycle give up one after the other, all of them
// report the cycle.
func (cs *calls) recordTimeout(cl *call) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.latest == cl {
		cs.stuckOn = cl.waitsFor()
	}
}

// callPool holds unused calls, so that a message that waits need not allocate one.
var callPool = sync.Pool{New: func() any { return new(call) }}

// newCall returns a call from the pool, and free puts it back. Blocking collectives use c.blocking
// instead, which is part of the communicator.
func newCall(c *Comm) *call {
	cl := callPool.Get().(*call)
	cl.callRecord, cl.c = &cl.ownRecord, c
	return cl
}

// free returns cl to the pool. No other goroutine refers to cl any more: cl is off the list, and a
// report has its own copy of the fields.
func (cl *call) free() {
	cl.reset()
	cl.callRecord, cl.ownRecord, cl.c, cl.collective = nil, callRecord{}, nil, false
	callPool.Put(cl)
}

// reset clears the wait state of the last call, before the next call uses cl.
func (cl *call) reset() {
	if !cl.waitingSince.IsZero() || cl.agreed {
		cl.waitingSince, cl.stagesDone, cl.agreed, cl.fingerprintsSent = time.Time{}, 0, false, 0
	}
}
