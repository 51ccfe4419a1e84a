package membership

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tutti-go/tutti/fault"
)

// A candidate is a failure that was announced in the current epoch, and the rank that announced it.
type candidate struct {
	err *fault.Error
	by  int
}

// A proposal is a failure that this rank will announce, but not before a certain time. A rank with
// better knowledge may announce the failure first, and then the proposal is stale.
type proposal struct {
	err       *fault.Error
	notBefore Time
	exiting   bool // this rank exits right after the announcement
}

// A failureLog holds past failures, the candidates of the current epoch, and the failures still to
// be announced. A failure moves from left to right:
//
//	proposals --announceNext--> candidates --closeEpoch--> reported
//	     ^                          |
//	     +------- the others -------+
type failureLog struct {
	epoch      uint32 // how many epochs have been resolved
	candidates []candidate
	openedAt   Time  // when the first candidate arrived
	departed   []int // ranks whose goodbye arrived in this epoch
	proposals  []proposal
	reported   []string  // the keys of failures reported before, so that none is reported twice
	messages   []Message // for links that come up later
}

// The bounds of a failureLog. A failure ends a job, so few failures occur in a job.
const (
	maxProposals  = 16
	maxFailures   = 16
	maxReported   = 256
	maxCandidates = 1024
)

// remember keeps the message of a failure, so that sync can send it over links that come up later.
func (v *failureLog) remember(m Message) {
	if len(v.messages) == maxFailures {
		v.messages = slices.Delete(v.messages, 0, 1)
	}
	v.messages = append(v.messages, m)
}

// failureKey returns a key that is equal for failures that report the same event about the same
// ranks. The key of a detected failure has only the kind and the ranks, because each rank that
// detects the failure words the cause differently. The key of an announced failure, such as an
// abort, also has the text.
func failureKey(e *fault.Error) string {
	ranks := make([]int, len(e.Peers))
	for i, p := range e.Peers {
		ranks[i] = p.Rank
	}
	slices.Sort(ranks)
	if detected(e) {
		return fmt.Sprint(uint8(e.Kind), ranks)
	}
	return fmt.Sprint(uint8(e.Kind), ranks, e)
}

// detected reports whether the kind of e is one that this package detects itself.
func detected(e *fault.Error) bool { return e.Kind == fault.PeerLost || e.Kind == fault.LinkLost }

// lowestBlamed returns the lowest rank that a failure blames. If the failure blames no rank, it
// returns the rank that reports the failure.
func lowestBlamed(e *fault.Error) int {
	if len(e.Peers) == 0 {
		return e.Rank
	}
	return slices.MinFunc(e.Peers, func(a, b fault.Peer) int { return cmp.Compare(a.Rank, b.Rank) }).Rank
}

// names reports whether the failure e blames rank r.
func names(e *fault.Error, r int) bool {
	return slices.ContainsFunc(e.Peers, func(p fault.Peer) bool { return p.Rank == r })
}

// compare orders the candidates of one epoch. The first candidate in this order is reported. A lost
// rank comes before a lost link, because the lost rank explains the broken link. The next criteria
// are the lowest blamed rank, the lowest announcer, the kind and the text. So no two different
// candidates are equal.
//
// The order depends only on the candidates, so all ranks that have the same candidates agree.
func compare(a, b candidate) int {
	links := func(c candidate) int {
		if c.err.Kind == fault.LinkLost {
			return 1
		}
		return 0
	}
	return cmp.Or(
		cmp.Compare(links(a), links(b)),
		cmp.Compare(lowestBlamed(a.err), lowestBlamed(b.err)),
		cmp.Compare(a.by, b.by),
		cmp.Compare(a.err.Kind, b.err.Kind),
		cmp.Compare(a.err.Error(), b.err.Error()),
	)
}

// propose queues a failure that this rank has detected, or one that was not chosen in its epoch.
func (s *Machine) propose(e *fault.Error, notBefore Time) {
	s.enqueueProposal(proposal{err: e, notBefore: notBefore})
}

// enqueueProposal adds h unless h is stale or queued already. A full queue drops h, since the
// queued failures end the job anyway.
func (s *Machine) enqueueProposal(h proposal) {
	v := &s.failures
	same := func(o proposal) bool { return failureKey(o.err) == failureKey(h.err) }
	if s.stale(h.err) || len(v.proposals) == maxProposals || slices.ContainsFunc(v.proposals, same) {
		return
	}
	v.proposals = append(v.proposals, h)
	s.changed = true
}

// stale reports whether a failure adds no information: it was reported, it is a candidate, or it is
// a lost rank or link that blames a rank that is gone by now. In the last case, the rank that is
// gone explains the failure.
func (s *Machine) stale(e *fault.Error) bool {
	if slices.Contains(s.failures.reported, failureKey(e)) {
		return true
	}
	same := func(c candidate) bool { return failureKey(c.err) == failureKey(e) }
	if slices.ContainsFunc(s.failures.candidates, same) {
		return true
	}
	if !detected(e) {
		return false
	}
	// Once one of the blamed ranks is gone, the cause of a broken link is known. A rank that has
	// announced its exit is gone before its announcement is reported.
	return slices.ContainsFunc(e.Peers, func(p fault.Peer) bool {
		k := &s.ranks[p.Rank]
		return k.gone() && !(e.Kind == fault.PeerLost && k.exiting)
	})
}

// apply queues a failure of the layer above, such as an abort or a panic.
func (in Announce) apply(s *Machine) {
	if s.knownRanks(in.Err) {
		ends := in.Exiting || in.Err.Kind == fault.PeerLost && names(in.Err, s.cfg.Me)
		s.enqueueProposal(proposal{err: in.Err, notBefore: s.now, exiting: ends})
	}
}

// announceNext opens the next epoch with the first proposal whose time has come. It announces one
// failure per epoch, and none while an epoch is open, because the announced failure may explain all
// other proposals. A rank that was evicted announces nothing, because the other ranks count it as
// dead.
func (s *Machine) announceNext() {
	v := &s.failures
	if len(v.candidates) > 0 || s.evicted {
		return
	}
	v.proposals = slices.DeleteFunc(v.proposals, func(h proposal) bool { return s.stale(h.err) })
	for i, h := range v.proposals {
		if !s.reached(h.notBefore) {
			continue
		}
		v.proposals = slices.Delete(v.proposals, i, i+1)
		m := Message{Kind: Failure, Ref: v.epoch + 1, Body: h.err.AppendWire(nil)}
		if h.exiting {
			m.Code = 1
		}
		s.addCandidate(s.flood(m))
		return
	}
}

// addCandidate adds an announced failure to the candidates of the current epoch. The first
// candidate opens the epoch. addCandidate drops a failure that is malformed or blames ranks that do
// not exist, and any failure beyond maxCandidates.
//
// A rank parses the wire form of its own failure, too, so that all ranks report the same error with
// the same shortened texts.
//
// If the announcing rank exits (Code 1), the break of its link raises no suspicion. When the link
// breaks, this rank marks the announcing rank dead. If no link is open, it does so at once.
func (s *Machine) addCandidate(m Message) {
	e, err := fault.ParseWire(m.Body)
	v := &s.failures
	if err != nil || !s.knownRanks(e) || len(v.candidates) == maxCandidates {
		return
	}
	if len(v.candidates) == 0 {
		v.openedAt = s.now
	}
	v.candidates = append(v.candidates, candidate{e, m.Origin})
	s.changed = true
	if o := &s.ranks[m.Origin]; m.Code == 1 && m.Origin != s.cfg.Me && o.present() {
		o.exiting = true
		if !o.link.open {
			s.markDead(m.Origin)
		}
	}
}

// knownRanks reports whether a failure blames only ranks that exist.
func (s *Machine) knownRanks(e *fault.Error) bool {
	return !slices.ContainsFunc(e.Peers, func(p fault.Peer) bool { return p.Rank < 0 || p.Rank >= len(s.ranks) })
}

// handleFailure handles a failure that another rank has announced. If the failure belongs to a
// later epoch, the current epoch is over elsewhere, so handleFailure closes that epoch here. It
// drops a failure of an earlier epoch, which comes too late.
func (s *Machine) handleFailure(m Message) {
	v := &s.failures
	switch {
	case m.Ref <= v.epoch || m.Ref == 0:
		return
	case m.Ref > v.epoch+1:
		s.closeEpoch()
		v.epoch = max(v.epoch, m.Ref-1)
	}
	s.addCandidate(m)
}

// resolveEpoch closes the epoch ResolveDelay after its first candidate. By then concurrent
// candidates have arrived, since a flood crosses the overlay in O(log n) hops of a few
// milliseconds. If links are about to come up, resolveEpoch waits up to OverlayWait longer, because
// the peers of these links may know candidates that this rank has missed.
func (s *Machine) resolveEpoch() {
	v := &s.failures
	if len(v.candidates) == 0 || !s.reached(v.openedAt+Time(ResolveDelay)) {
		return
	}
	if s.overlayPending() && !s.reached(v.openedAt+Time(ResolveDelay+OverlayWait)) {
		return
	}
	s.closeEpoch()
}

// closeEpoch reports the best candidate of the epoch, then the goodbyes that waited for it, and
// proposes the other candidates again. A candidate of another rank is proposed with a delay, so
// that its announcer can repeat it first.
func (s *Machine) closeEpoch() {
	v := &s.failures
	if len(v.candidates) == 0 {
		return
	}
	slices.SortFunc(v.candidates, compare)
	all := v.candidates
	v.candidates = nil
	v.epoch++
	s.report(all[0].err)
	for _, r := range v.departed {
		s.emit(Departed{r})
	}
	v.departed = nil
	for _, c := range all[1:] {
		notBefore := s.now
		if c.by != s.cfg.Me {
			// If the announcer is still alive, it repeats the failure first.
			notBefore += Time(ResolveDelay + secondhandDelay)
		}
		s.propose(c.err, notBefore)
	}
	s.changed = true
}

// report passes a failure to the layer above, and marks the blamed ranks dead or the blamed link
// given up. If the failure blames this rank, this rank is evicted. From then on it still reports
// failures, but suspects no rank and announces nothing.
func (s *Machine) report(e *fault.Error) {
	v := &s.failures
	if len(v.reported) == maxReported {
		v.reported = slices.Delete(v.reported, 0, 1)
	}
	v.reported = append(v.reported, failureKey(e))
	s.emit(Report{e})
	switch e.Kind {
	case fault.PeerLost:
		for _, p := range e.Peers {
			if p.Rank == s.cfg.Me {
				s.evicted = true
			} else if !s.ranks[p.Rank].gone() {
				s.markDead(p.Rank)
			}
		}
	case fault.LinkLost:
		s.giveUpLink(e)
	}
}

// giveUpLink gives up the control link between two ranks that cannot reach each other: the link is
// not dialled any more, and the overlay does not wait for it. If the control link works, only the
// data connection broke, and the control link stays.
func (s *Machine) giveUpLink(e *fault.Error) {
	if !names(e, s.cfg.Me) {
		return
	}
	for _, p := range e.Peers {
		if l := &s.ranks[p.Rank].link; p.Rank != s.cfg.Me && !l.up() {
			l.givenUp = true
		}
	}
}

// markDead marks a rank as gone for good, and lets the overlay close around it.
func (s *Machine) markDead(r int) {
	s.ranks[r].status = dead
	s.cut(r)
	s.clearSuspicions(r)
	s.overlayAt = s.now
	s.changed = true
}

// beingEvicted reports whether the other ranks have marked this rank dead, or are about to.
func (s *Machine) beingEvicted() bool {
	return s.evicted || slices.ContainsFunc(s.failures.candidates, func(c candidate) bool {
		return c.err.Kind == fault.PeerLost && names(c.err, s.cfg.Me)
	})
}

// evict reports that another rank has refused this rank, because this rank has been marked dead.
// This happens to a rank that was suspended for longer than Silence.
func (s *Machine) evict(by int, cause string) {
	if s.beingEvicted() {
		return
	}
	e := fault.New(fault.PeerLost, "mesh", by, "rank %d has marked this rank dead: %s", by, cause)
	e.Peers = []fault.Peer{{Rank: s.cfg.Me, Host: s.cfg.Host}}
	s.report(e)
}
