package comm

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tutti-go/tutti/comm/agreement"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/callsite"
)

// Revoke ends every call of every member on the communicator, under way or later, with
// fault.Revoked, which names this rank (MPIX_Comm_revoke). Only Agree, Shrink and Close still work.
// A rank that has noticed a loss calls it, because other members may wait for messages of ranks that
// are alive and have given up. Any member may call Revoke, at any time, and more than once. Other
// communicators are not affected.
func (c *Comm) Revoke() {
	p := c.rt.peer(c.rt.rank)
	p.Call, p.At = "revoke", callsite.Here().String()
	c.revokeAll(&fault.Error{Kind: fault.Revoked, Op: "revoke", Rank: c.rt.rank, Peers: []fault.Peer{p}})
	c.rt.fence()
}

// Agree returns the AND of the bits of all members that are left, the same on all of them
// (MPIX_Comm_agree). It works on a communicator that is revoked or has lost members. All members that
// are left call it, as the same of their calls of Agree and Shrink on the communicator. Ranks that
// make different calls get fault.Mismatch. The bits of a member that was lost meanwhile may count.
//
// The members that are left must be more than half of those that the last Agree or Shrink of the
// communicator left, or exactly half with the lowest rank of these, or all others must be known to be
// dead: their processes were seen to end by tuttirun, or have closed. Otherwise another part of a
// broken network might go on, too. The call then ends with fault.NoQuorum on all ranks of this part,
// and so do later calls of Agree and Shrink on the communicator.
//
// If ctx ends, or the communicator's Timeout where ctx has no deadline, this rank has contributed
// bits nevertheless. Its next call then returns the result of that agreement, whatever bits it gives.
func (c *Comm) Agree(ctx context.Context, bits uint64) (uint64, error) {
	s, done, err := c.beginAgreement(ctx, "agree")
	if err != nil {
		return 0, err
	}
	defer done()
	ctx, cancel := c.limited(ctx)
	defer cancel()
	p, err := s.agree(ctx, "agree", agreement.Agree, bits)
	return p.Bits, err
}

// Shrink returns a communicator of the members that are left, in their order (MPIX_Comm_shrink). It
// works on a communicator that is revoked or has lost members, and also when more members are lost
// meanwhile: the members that get the communicator all agree on who they are. They must be enough;
// see Agree, also for who calls Shrink, when, and what ends the call. If two members that are alive
// have lost their link, the higher one is left out, and gets fault.LinkLost.
//
// The new communicator has its own messages, topology and shared memory. It may lose members as
// well; then call its Shrink. The old communicator stays as it is, until Close.
func (c *Comm) Shrink(ctx context.Context) (*Comm, error) {
	s, done, err := c.beginAgreement(ctx, "shrink")
	if err != nil {
		return nil, err
	}
	defer done()
	ctx, cancel := c.limited(ctx)
	defer cancel()
	// Each agreement fixes the members of the next communicator. It also tells whether all of them
	// could set up the one before, because some may have lost a member meanwhile when others had
	// finished already.
	for {
		ready := uint64(0)
		if s.isReady {
			ready = 1
		}
		p, err := s.agree(ctx, "shrink", agreement.Shrink, ready)
		if err != nil {
			return nil, err
		}
		made := s.made
		s.made, s.isReady = nil, false
		if made != nil && p.Bits == 1 && made.Size() == p.Members.Len() {
			return made, nil
		}
		if made != nil {
			made.Close(ctx)
		}
		members := p.Members.Ranks()
		ranks := make([]int, len(members))
		for i, r := range members {
			ranks[i] = c.group.WorldRank(r)
		}
		// Only this call advances the number. The decided agreement is the one before.
		s.made = newComm(c.rt, shrunkID(c.id, s.number-1), ranks, slices.Index(members, c.Rank()), c.table)
		if err = s.made.share(ctx, "shrink"); err == nil {
			s.isReady = true
			continue
		}
		// Members that have finished must not go on with a communicator that others give up.
		var f *fault.Error
		if !errors.As(err, &f) {
			f = &fault.Error{Kind: fault.Revoked, Op: "shrink", Rank: c.rt.rank, Err: err}
		}
		s.made.revokeAll(f)
		switch f.Kind {
		case fault.PeerLost, fault.LinkLost, fault.Revoked, fault.Closed:
			if ctx.Err() == nil {
				continue
			}
		}
		s.made.Close(ctx)
		s.made = nil
		return nil, c.withOp("shrink", err)
	}
}

// shrunkID returns the id of the communicator that agreement number of a communicator leads to. The
// numbers of other children are smaller.
func shrunkID(parent uint64, number uint32) uint64 { return childID(parent, 1<<63|uint64(number), 0) }

// limited returns ctx, limited by the communicator's Timeout if it has no deadline.
func (c *Comm) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, limited := ctx.Deadline(); limited || c.rt.opt.timeout == 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, c.rt.opt.timeout, errTimeout)
}

// beginAgreement lists a call of Agree or Shrink, so that errors of other ranks can name it, and
// returns the communicator's survivors. The caller calls done at the end.
func (c *Comm) beginAgreement(ctx context.Context, name string) (s *survivors, done func(), err error) {
	if ctx == nil {
		return nil, nil, c.misuse(name, "context: got nil, want one; context.Background() waits without a limit")
	}
	if c.Size() > maxAgreement {
		return nil, nil, fault.New(fault.Exhausted, name, c.rt.rank, "members: got %d, want at most %d", c.Size(), maxAgreement)
	}
	s = c.rt.survivorsOf(c.id)
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed || s == nil { // Close may run beside this call
		return nil, nil, fault.New(fault.Closed, name, c.rt.rank, "this communicator has been closed on this rank")
	}
	if !s.busy.CompareAndSwap(false, true) {
		return nil, nil, c.misuse(name, "another goroutine is in Agree or Shrink of this communicator; call them one after the other")
	}
	cl := c.beginMessage(ctx, signature{callName: name, count: -1, root: -1, peer: noPeer, tag: -1})
	return s, func() {
		c.rt.calls.endMessage(cl)
		cl.free()
		s.busy.Store(false)
	}, nil
}

// survivors is what one rank knows of a communicator's agreements, which are numbered from 1. It
// stays when the communicator is closed, because other members may still need this rank's States.
//
//	machine   of the agreement     exists
//	previous  before the current   from the second on; other members may not have decided yet
//	current   of the next call     always
//	next      after the current    once the current is decided, until a call returns its result
type survivors struct {
	c    *Comm
	me   int
	busy atomic.Bool // a call is inside

	// Only the call that is inside uses these.
	made    *Comm // of the last agreement of a Shrink, until all members have set it up
	isReady bool  // this rank has set it up

	mu                      sync.Mutex // guards the rest; rankRuntime.mu may be taken while it is held
	number                  uint32     // of current; only the call inside changes it
	previous, current, next *agreement.Machine
	early                   map[int]agreement.State // of next, by member, before next exists
	decided                 *agreement.Proposal     // of current
	failed                  *fault.Error            // why this rank takes part no more
	changed                 chan struct{}           // closed when decided or failed is set
}

// maxSurvivors bounds the communicators whose agreements a rank remembers after their Close.
const maxSurvivors = 256

// survivorsOf returns the survivors of a communicator, which it makes if necessary. It returns nil
// if this rank does not have the communicator.
func (rt *rankRuntime) survivorsOf(id uint64) *survivors {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if s := rt.survivors[id]; s != nil {
		return s
	}
	c := rt.comms[id]
	if c == nil {
		return nil
	}
	if len(rt.survivors) >= maxSurvivors {
		for old := range rt.survivors {
			if rt.comms[old] == nil {
				delete(rt.survivors, old)
				break
			}
		}
	}
	s := &survivors{c: c, me: c.Rank(), number: 1, changed: make(chan struct{})}
	s.current = agreement.New(s.me, c.Size(), agreement.All(c.Size()))
	if rt.survivors == nil {
		rt.survivors = make(map[uint64]*survivors)
	}
	rt.survivors[id] = s
	return s
}

// lossesChanged tells all agreements of this rank of the losses that are known by now. Everything
// that changes these calls it.
func (rt *rankRuntime) lossesChanged() {
	rt.mu.Lock()
	all := make([]*survivors, 0, len(rt.survivors))
	for _, s := range rt.survivors {
		all = append(all, s)
	}
	rt.mu.Unlock()
	for _, s := range all {
		s.update()
	}
}

// losses returns what s must know of the runtime: the losses as Inputs, and why this rank takes no
// calls, or nil.
func (s *survivors) losses() (ins []agreement.Input, ended *fault.Error) {
	rt := s.c.rt
	rt.mu.Lock()
	defer rt.mu.Unlock()
	for job, why := range rt.lostRanks {
		r, in := s.c.group.RankOf(job)
		if !in {
			continue
		}
		if why.Kind == fault.Closed || rt.opt.exited != nil && rt.opt.exited(job) {
			ins = append(ins, agreement.Dead{Rank: r})
		} else {
			ins = append(ins, agreement.Lost{Rank: r})
		}
	}
	for _, e := range rt.lostLinks {
		if len(e.Peers) == 2 && s.c.hasAll(e.Peers) {
			a, _ := s.c.group.RankOf(e.Peers[0].Rank)
			b, _ := s.c.group.RankOf(e.Peers[1].Rank)
			ins = append(ins, agreement.LinkLost{A: a, B: b})
		}
	}
	if rt.ended != nil && !errors.As(rt.ended, &ended) {
		ended = fault.New(fault.Closed, "agreement", rt.rank, "%w", rt.ended)
	}
	return ins, ended
}

// update gives all machines the losses that are known by now.
func (s *survivors) update() {
	ins, ended := s.losses()
	s.mu.Lock()
	defer s.mu.Unlock()
	if ended != nil {
		s.fail(ended)
	}
	for i, m := range []*agreement.Machine{s.previous, s.current, s.next} {
		for _, in := range ins {
			if m != nil {
				s.step(m, s.number+uint32(i)-1, in)
			}
		}
	}
}

// step gives a machine an Input, and carries out what it says. s.mu is held.
func (s *survivors) step(m *agreement.Machine, number uint32, in agreement.Input) {
	for _, o := range slices.Clone(m.Step(in)) {
		switch o := o.(type) {
		case agreement.Flood:
			s.flood(number, o.State, nil)
		case agreement.Decided:
			if number == s.number {
				s.decide(o.Proposal)
			}
		case agreement.Failed:
			s.fail(s.noQuorum(o.Seen))
			// Members that have counted this rank's vote may be waiting for it.
			s.c.rt.floodRevoke(shrunkID(s.c.id, number), s.failed)
		}
	}
}

// flood sends this rank's State to all ranks. s.mu is held.
func (s *survivors) flood(number uint32, st agreement.State, ask []int) {
	n := agreementNotice{s.c.id, number, st, ask[:min(len(ask), maxQuestions)]}
	s.c.rt.mesh.Flood(floodAgreement, n.append(nil, s.c.Size()))
}

// decide ends the current agreement, and prepares the next one. s.mu is held.
func (s *survivors) decide(p agreement.Proposal) {
	if !p.Members.Has(s.me) {
		s.fail(s.leftOut(p))
		return
	}
	s.decided = &p
	s.signal()
	s.next = agreement.New(s.me, s.c.Size(), p.Members)
	early := s.early
	s.early = nil
	for r, st := range early {
		s.step(s.next, s.number+1, agreement.Received{From: r, State: st})
	}
}

// fail makes this and all later agreements of this rank fail; the first reason stays. s.mu is held.
func (s *survivors) fail(e *fault.Error) {
	if s.failed == nil {
		s.failed = e
		s.signal()
	}
}

// close ends the agreements of a communicator that this rank has closed.
func (s *survivors) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail(fault.New(fault.Closed, "close", s.c.rt.rank, "this communicator has been closed on this rank"))
}

// signal wakes the call that is inside. s.mu is held.
func (s *survivors) signal() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// noQuorum is the error of a rank whose side may not go on; seen are the members that are left. s.mu
// is held.
func (s *survivors) noQuorum(seen agreement.Set) *fault.Error {
	rt, base := s.c.rt, s.current.Base()
	e := fault.New(fault.NoQuorum, "agreement", rt.rank,
		"members left: got %d of %d, want more than half, or half with rank %d, or all others known to be dead; others may go on without this rank, so end this process",
		seen.Len(), base.Len(), s.c.group.WorldRank(base.Lowest()))
	for _, r := range base.Minus(seen).Ranks() {
		e.Peers = append(e.Peers, rt.peer(s.c.group.WorldRank(r)))
	}
	return e
}

// leftOut is the error of a rank that the others go on without. s.mu is held.
func (s *survivors) leftOut(p agreement.Proposal) *fault.Error {
	rt := s.c.rt
	e := fault.New(fault.NoQuorum, "agreement", rt.rank, "%d of %d members have agreed to go on without this rank, so end this process",
		p.Members.Len(), s.current.Base().Len())
	rt.mu.Lock()
	defer rt.mu.Unlock()
	for _, l := range rt.lostLinks {
		if rt.blamed(l, rt.rank) {
			e.Kind, e.Peers = fault.LinkLost, l.Peers
		}
	}
	return e
}

// floodRevoke revokes a communicator that this rank does not have on all other ranks.
func (rt *rankRuntime) floodRevoke(id uint64, e *fault.Error) {
	rt.mesh.Flood(floodRevoke, e.AppendWire(binary.LittleEndian.AppendUint64(nil, id)))
}

// handleAgreement handles another rank's notice. A notice for a communicator that this rank does not
// have, or not yet, is dropped: its sender repeats it.
func (rt *rankRuntime) handleAgreement(from int, body []byte) {
	id, ok := parseAgreementID(body)
	if !ok {
		return
	}
	s := rt.survivorsOf(id)
	if s == nil {
		return
	}
	r, in := s.c.group.RankOf(from)
	if n, ok := parseAgreement(body, s.c.Size()); ok && in {
		s.receive(r, n)
	}
}

// receive passes member r's State to the machine that it is for, and answers with this rank's own if
// r has asked for it.
func (s *survivors) receive(r int, n agreementNotice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var m *agreement.Machine
	switch n.number {
	case s.number - 1:
		m = s.previous
	case s.number:
		m = s.current
	case s.number + 1:
		if m = s.next; m == nil && s.failed == nil && n.state.Version > s.early[r].Version {
			if s.early == nil {
				s.early = make(map[int]agreement.State)
			}
			s.early[r] = n.state
		}
	}
	if m != nil {
		s.step(m, n.number, agreement.Received{From: r, State: n.state})
	}
	if !slices.Contains(n.ask, s.me) {
		return
	}
	switch {
	case m != nil && m.State().Calls != 0:
		s.flood(n.number, m.State(), nil)
	case s.failed != nil && n.number >= s.number:
		// This rank will not enter that agreement any more, and the others must not wait for it.
		s.flood(n.number, agreement.State{Version: 1, Out: true}, nil)
	}
}

// Times of an agreement.
const (
	firstAsk = 200 * time.Millisecond // before a rank asks for the States that it misses; doubles up to maxAsk
	maxAsk   = 2 * time.Second
	pollDead = 20 * time.Millisecond // between two looks at the record of deaths, while there is no quorum
	newsWait = 2 * time.Second       // for the record of deaths, which tuttirun writes within milliseconds
)

// agree takes part in the current agreement, and returns what it decides. It waits until all members
// that are left have entered, too.
func (s *survivors) agree(ctx context.Context, op string, calls agreement.Calls, bits uint64) (agreement.Proposal, error) {
	recorded := s.c.rt.opt.exited != nil
	begun := time.Now()
	askAt, pause, next := begun.Add(firstAsk), firstAsk, 0
	var aloneSince time.Time // since when this rank has had no quorum
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		s.update()
		s.mu.Lock()
		s.step(s.current, s.number, agreement.Enter{Calls: calls, Bits: bits}) // only the first counts
		now := time.Now()
		if s.current.Quorum() {
			aloneSince = time.Time{}
		} else if aloneSince.IsZero() {
			aloneSince = now
		}
		alone := !aloneSince.IsZero()
		if alone && (!recorded || now.Sub(aloneSince) >= newsWait) {
			s.step(s.current, s.number, agreement.GiveUp{})
		}
		if p, err := s.result(op, calls); p != nil || err != nil {
			s.mu.Unlock()
			if err != nil {
				return agreement.Proposal{}, err
			}
			return *p, nil
		}
		if !now.Before(askAt) {
			s.ask(next)
			next += maxQuestions
			pause = min(2*pause, maxAsk)
			askAt = now.Add(pause)
		}
		changed := s.changed
		s.mu.Unlock()
		wait := askAt.Sub(now)
		if alone {
			wait = min(wait, pollDead)
		}
		timer.Reset(wait)
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			return agreement.Proposal{}, s.ended(ctx, op)
		}
	}
}

// ask repeats this rank's State and asks maxQuestions of the members whose States it misses, from the
// first-th on. s.mu is held.
func (s *survivors) ask(first int) {
	missing := s.current.Waiting()
	if len(missing) == 0 {
		return
	}
	var some []int
	for i := range min(maxQuestions, len(missing)) {
		some = append(some, missing[(first+i)%len(missing)])
	}
	s.flood(s.number, s.current.State(), some)
}

// result returns the end of the current agreement, or nil, and goes on to the next one. s.mu is held.
func (s *survivors) result(op string, calls agreement.Calls) (*agreement.Proposal, error) {
	if s.failed != nil {
		return nil, s.c.withOp(op, s.failed)
	}
	p := s.decided
	if p == nil {
		return nil, nil
	}
	s.previous, s.current, s.next, s.decided = s.current, s.next, nil, nil
	s.number++
	if p.Calls != calls {
		return nil, fault.New(fault.Mismatch, op, s.c.rt.rank, "call number %d of Agree and Shrink on this communicator: got both from its members, want the same call", s.number-1)
	}
	return p, nil
}

// ended is the error of a call that its context or the Timeout ended. It names the members that are
// left and have not entered.
func (s *survivors) ended(ctx context.Context, op string) error {
	cause := context.Cause(ctx)
	e := &fault.Error{Kind: fault.ContextKind(ctx.Err()), Op: op, Rank: s.c.rt.rank, Err: cause}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.current.Absent() {
		e.Peers = append(e.Peers, s.c.rt.peer(s.c.group.WorldRank(r)))
	}
	return e
}
