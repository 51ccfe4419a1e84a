package comm

import (
	"context"
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
// A rank that has noticed a loss calls Revoke, because other members may wait for a live rank that
// has given up. Any member may call Revoke, at any time, and more than once. Other communicators
// are not affected.
func (c *Comm) Revoke() {
	p := c.rt.peer(c.rt.rank)
	p.Call, p.At = "revoke", callsite.Here().String()
	c.revokeAll(&fault.Error{Kind: fault.Revoked, Op: "revoke", Rank: c.rt.rank, Peers: []fault.Peer{p}})
	c.rt.fence()
}

// Agree returns the AND of the bits of the remaining members. The result is equal on all of them
// (MPIX_Comm_agree). Agree works on a communicator that is revoked or has lost members. All
// remaining members must call it, and must make their calls of Agree and Shrink on the communicator
// in the same order. Ranks that make different calls get fault.Mismatch. The bits of a member that
// was lost meanwhile may count.
//
// Let the previous members be the members that the last Agree or Shrink of the communicator left.
// The remaining members may go on if one of these conditions holds:
//
//   - they are more than half of the previous members
//   - they are exactly half of the previous members, and include the lowest rank of these
//   - all other previous members are known to be dead: tuttirun saw their processes end, or they
//     have closed
//
// Otherwise another part of a broken network might go on, too. The call then ends with
// fault.NoQuorum on all ranks of this part, and so do later calls of Agree and Shrink on the
// communicator.
//
// If ctx ends before the result is known, this rank's bits may count nevertheless. The same holds
// for the communicator's Timeout, which applies if ctx has no deadline. The rank's next call then
// returns the result of that agreement, whatever bits it passes.
func (c *Comm) Agree(ctx context.Context, bits uint64) (uint64, error) {
	s, done, err := c.beginAgreement(ctx, "agree")
	if err != nil {
		return 0, err
	}
	defer done()
	ctx, cancel := c.rt.opt.limited(ctx)
	defer cancel()
	p, err := s.agree(ctx, "agree", agreement.Agree, bits)
	return p.Bits, err
}

// Shrink returns a communicator of the remaining members, in their order (MPIX_Comm_shrink). It
// works on a communicator that is revoked or has lost members, even if more members are lost during
// the call. All members that get the new communicator agree on its members. The conditions of Agree
// apply: who must call Shrink, how many members must remain, and what ends the call. If links
// between live members are lost, Shrink repeatedly excludes the member with the most lost links, or
// the highest of several, until no such link is left. An excluded member gets fault.LinkLost.
//
// The new communicator has its own messages, topology and shared memory. It may lose members as
// well; then call its Shrink. The old communicator stays unchanged until Close.
func (c *Comm) Shrink(ctx context.Context) (*Comm, error) {
	s, done, err := c.beginAgreement(ctx, "shrink")
	if err != nil {
		return nil, err
	}
	defer done()
	ctx, cancel := c.rt.opt.limited(ctx)
	defer cancel()
	// Each agreement fixes the members of the next communicator. It also decides whether all
	// members could set up the previous communicator: a member may have failed to set it up because
	// of a loss that came after other members had finished.
	for {
		ready := uint64(0)
		if s.isReady {
			ready = 1
		}
		p, err := s.agree(ctx, "shrink", agreement.Shrink, ready)
		if err != nil {
			s.dropMade(ctx)
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
		// Only this call advances the number, so the decided agreement has the number before it.
		s.made = newComm(c.rt, shrunkID(c.id, s.number-1), ranks, slices.Index(members, c.Rank()), c.table)
		if err = s.made.share(ctx, "shrink"); err == nil {
			s.isReady = true
			continue
		}
		// Members that have finished must not go on with a communicator that other members give up.
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

// dropMade closes the communicator of an unfinished Shrink, if no later Shrink can finish it.
func (s *survivors) dropMade(ctx context.Context) {
	s.mu.Lock()
	failed := s.failed != nil
	s.mu.Unlock()
	if !failed || s.made == nil {
		return
	}
	s.made.Close(ctx)
	s.made, s.isReady = nil, false
}

// shrunkID returns the id of the communicator that results from the agreement with the given
// number. The top bit of the number in the hash is set, and that of Split's and Dup's children is
// not, so their ids differ.
func shrunkID(parent uint64, number uint32) uint64 { return childID(parent, 1<<63|uint64(number), 0) }

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
	if closed || s == nil { // Close may run at the same time
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

// survivors is the state of a communicator's agreements on one rank. The agreements are numbered
// from 1. The state stays when the communicator is closed, because other members may still need
// this rank's States.
//
//	machine   its agreement            exists
//	previous  the one before current   from the second agreement on, for members that are undecided
//	current   that of the next call    always
//	next      the one after current    once current is decided, until a call returns the result
type survivors struct {
	c    *Comm
	me   int
	busy atomic.Bool // a call of Agree or Shrink is in progress

	// Only the call in progress uses the fields made and isReady.
	made    *Comm // the communicator of Shrink's last agreement, until all members have set it up
	isReady bool  // this rank has set up the communicator made

	mu                      sync.Mutex // guards the fields below; rankRuntime.mu may be taken while it is held
	number                  uint32     // the number of current; only the call in progress changes it
	previous, current, next *agreement.Machine
	early                   map[int]agreement.State // States for next, by member, that arrived before next existed
	decided                 *agreement.Proposal     // the decision of current
	failed                  *fault.Error            // the reason why this rank no longer takes part
	changed                 chan struct{}           // closed when decided or failed is set
}

// maxSurvivors bounds the number of communicators whose agreements a rank remembers after their
// Close.
const maxSurvivors = 256

// survivorsOf returns the survivors of a communicator, and makes them if necessary. It returns nil
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

// lossesChanged gives all agreements of this rank the losses that are known now. Every function
// that changes the known losses calls it.
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

// losses returns what s must know of the runtime: the losses as Inputs, and the reason why this
// rank takes no calls, or nil.
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

// update gives all machines the losses that are known now.
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

// step gives a machine an Input, and carries out the machine's output. s.mu is held.
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
			// Members that have counted this rank's vote may have made the communicator already,
			// and wait in it for this rank.
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

// signal wakes the Agree or Shrink that is in progress. s.mu is held.
func (s *survivors) signal() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// noQuorum returns the error of a rank whose part of the members may not go on. The parameter seen
// is the set of remaining members. s.mu is held.
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

// leftOut returns the error of a rank that the other ranks have excluded. s.mu is held.
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

// floodRevoke revokes, on all other ranks, a communicator that this rank does not have.
func (rt *rankRuntime) floodRevoke(id uint64, e *fault.Error) {
	rt.mesh.Flood(floodRevoke, revokeBody(id, e))
}

// handleAgreement handles another rank's notice. It drops a notice for a communicator that this
// rank has not made yet; the sender repeats the notice.
func (rt *rankRuntime) handleAgreement(from int, body []byte) {
	id, ok := parseAgreementID(body)
	if !ok {
		return
	}
	s := rt.survivorsOf(id)
	if s == nil {
		rt.answerClosedAgreement(id, body)
		return
	}
	r, in := s.c.group.RankOf(from)
	if n, ok := parseAgreement(body, s.c.Size()); ok && in {
		s.receive(r, n)
	}
}

// answerClosedAgreement answers a question about an agreement of a communicator that this rank has
// closed. This rank never took part in an agreement of it and never will, so the other ranks must
// not wait for it.
func (rt *rankRuntime) answerClosedAgreement(id uint64, body []byte) {
	rt.mu.Lock()
	c := rt.closedComms.comms[id]
	rt.mu.Unlock()
	if c.size == 0 {
		return
	}
	n, ok := parseAgreement(body, c.size)
	if !ok || !slices.Contains(n.ask, c.rank) {
		return
	}
	answer := agreementNotice{comm: id, number: n.number, state: agreement.State{Version: 1, Out: true}}
	rt.mesh.Flood(floodAgreement, answer.append(nil, c.size))
}

// receive passes member r's State to the machine of its agreement. If r has asked for this rank's
// State, receive sends it.
func (s *survivors) receive(r int, n agreementNotice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var m *agreement.Machine
	started := false // whether r had entered the notice's agreement before this notice
	switch n.number {
	case s.number - 1:
		m = s.previous
	case s.number:
		m = s.current
	case s.number + 1:
		started = s.early[r].Calls != 0
		if m = s.next; m == nil && s.failed == nil && n.state.Version > s.early[r].Version {
			if s.early == nil {
				s.early = make(map[int]agreement.State)
			}
			s.early[r] = n.state
		}
	}
	if m != nil {
		started = !slices.Contains(m.Absent(), r)
		s.step(m, n.number, agreement.Received{From: r, State: n.state})
	}
	// Only the first notice of r's entry shows that r goes on. A later notice may be an automatic
	// answer: r may have returned from its call, and may leave because of another loss.
	if !started && n.number >= s.number && n.state.Calls != 0 && !n.state.Out {
		s.c.rt.goesOn(s.c.group.WorldRank(r))
	}
	if !slices.Contains(n.ask, s.me) {
		return
	}
	switch {
	case m != nil && m.State().Calls != 0:
		s.flood(n.number, m.State(), nil)
	case s.failed != nil && n.number >= s.number:
		// This rank will not enter that agreement any more, so the other ranks must not wait for
		// it.
		s.flood(n.number, agreement.State{Version: 1, Out: true}, nil)
	}
}

// Times of an agreement.
const (
	firstAsk = 200 * time.Millisecond // the wait before a rank asks for missing States; doubles up to maxAsk
	maxAsk   = 2 * time.Second
	pollDead = 20 * time.Millisecond // the interval between two reads of the record of deaths, while there is no quorum
	newsWait = 2 * time.Second       // how long a rank without quorum waits for a death to be recorded; tuttirun needs milliseconds
)

// agree takes part in the current agreement, and returns its decision. A decision needs all
// remaining members to enter, so agree waits for them.
func (s *survivors) agree(ctx context.Context, op string, calls agreement.Calls, bits uint64) (agreement.Proposal, error) {
	recorded := s.c.rt.opt.exited != nil
	begun := time.Now()
	askAt, pause, next := begun.Add(firstAsk), firstAsk, 0
	var aloneSince time.Time // when this rank lost its quorum
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		s.update()
		s.mu.Lock()
		s.step(s.current, s.number, agreement.Enter{Calls: calls, Bits: bits}) // only the first Enter counts
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

// ask repeats this rank's State and asks members for the States that it misses. It asks
// maxQuestions of these members, and begins with the member at index first of the list. s.mu is
// held.
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

// result returns the decision or the error of the current agreement, and advances to the next
// agreement. It returns nil if the agreement is not over. s.mu is held.
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
		return nil, fault.New(fault.Mismatch, op, s.c.rt.rank, "call number %d of Agree and Shrink on this communicator: got Agree from some members and Shrink from others, want the same call from all", s.number-1)
	}
	return p, nil
}

// ended returns the error of a call that its context or the Timeout ended. It names the remaining
// members that have not entered.
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
