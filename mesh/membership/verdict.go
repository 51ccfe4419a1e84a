package membership

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tutti-go/tutti/fault"
)

// A candidate is a verdict that was announced in the present epoch.
type candidate struct {
	err *fault.Error
	by  int
}

// A held verdict waits to be announced.
type held struct {
	err     *fault.Error
	due     Time
	leaving bool
}

// verdicts are those past, the ones that compete now, and those to come.
type verdicts struct {
	epoch    uint32 // how many have settled
	compete  []candidate
	since    Time  // when the first of them was heard
	departed []int // who has said goodbye meanwhile
	waiting  []held
	reported []string  // what was reported, by its key
	kept     []Message // for links that come up later
}

// Bounds: verdicts end jobs, and a job has few.
const (
	maxWaiting  = 16
	maxKept     = 16
	maxReported = 256
	maxCompete  = 1024
)

func (v *verdicts) keep(m Message) {
	if len(v.kept) == maxKept {
		v.kept = slices.Delete(v.kept, 0, 1)
	}
	v.kept = append(v.kept, m)
}

// key is the same for verdicts that say the same of the same ranks. What a rank
// announces itself is told apart by its words.
func key(e *fault.Error) string {
	ranks := make([]int, len(e.Peers))
	for i, p := range e.Peers {
		ranks[i] = p.Rank
	}
	slices.Sort(ranks)
	if observed(e) {
		return fmt.Sprint(uint8(e.Kind), ranks)
	}
	return fmt.Sprint(uint8(e.Kind), ranks, e)
}

// observed reports whether e is of the kinds that this package finds out itself.
func observed(e *fault.Error) bool { return e.Kind == fault.PeerLost || e.Kind == fault.LinkLost }

// blamed is the lowest rank that a verdict is about.
func blamed(e *fault.Error) int {
	if len(e.Peers) == 0 {
		return e.Rank
	}
	return slices.MinFunc(e.Peers, func(a, b fault.Peer) int { return cmp.Compare(a.Rank, b.Rank) }).Rank
}

func names(e *fault.Error, r int) bool {
	return slices.ContainsFunc(e.Peers, func(p fault.Peer) bool { return p.Rank == r })
}

// compare orders verdicts of one epoch: the first is reported.
func compare(a, b candidate) int {
	links := func(c candidate) int {
		if c.err.Kind == fault.LinkLost {
			return 1
		}
		return 0
	}
	return cmp.Or(
		cmp.Compare(links(a), links(b)),
		cmp.Compare(blamed(a.err), blamed(b.err)),
		cmp.Compare(a.by, b.by),
		cmp.Compare(a.err.Kind, b.err.Kind),
		cmp.Compare(a.err.Error(), b.err.Error()),
	)
}

// hold queues a verdict of this rank's own, or one that lost its epoch.
func (s *State) hold(e *fault.Error, due Time) { s.holdFor(held{err: e, due: due}) }

func (s *State) holdFor(h held) {
	v := &s.verdicts
	same := func(o held) bool { return key(o.err) == key(h.err) }
	if s.stale(h.err) || len(v.waiting) == maxWaiting || slices.ContainsFunc(v.waiting, same) {
		return
	}
	v.waiting = append(v.waiting, h)
	s.changed = true
}

// stale reports whether a verdict has nothing new to say.
func (s *State) stale(e *fault.Error) bool {
	if slices.Contains(s.verdicts.reported, key(e)) {
		return true
	}
	same := func(c candidate) bool { return key(c.err) == key(e) }
	if slices.ContainsFunc(s.verdicts.compete, same) {
		return true
	}
	if !observed(e) {
		return false
	}
	// Which of the two it was is known once one of them is gone.
	return slices.ContainsFunc(e.Peers, func(p fault.Peer) bool { return s.ranks[p.Rank].gone() })
}

func (in Announce) apply(s *State) {
	if s.known(in.Err) {
		ends := in.Leaving || in.Err.Kind == fault.PeerLost && names(in.Err, s.cfg.Me)
		s.holdFor(held{err: in.Err, due: s.now, leaving: ends})
	}
}

// announce begins the next epoch with the first verdict that is due, unless
// somebody else has begun it.
func (s *State) announce() {
	v := &s.verdicts
	if len(v.compete) > 0 || s.disowned {
		return
	}
	v.waiting = slices.DeleteFunc(v.waiting, func(h held) bool { return s.stale(h.err) })
	for i, h := range v.waiting {
		if !s.due(h.due) {
			continue
		}
		v.waiting = slices.Delete(v.waiting, i, i+1)
		m := Message{Kind: Verdict, Ref: v.epoch + 1, Body: h.err.AppendWire(nil)}
		if h.leaving {
			m.Code = 1
		}
		s.enter(s.flood(m))
		return
	}
}

// enter adds a verdict to those that compete in its epoch. All ranks read it from
// its wire form, so that all report the same.
func (s *State) enter(m Message) {
	e, err := fault.ParseWire(m.Body)
	v := &s.verdicts
	if err != nil || !s.known(e) || len(v.compete) == maxCompete {
		return
	}
	if len(v.compete) == 0 {
		v.since = s.now
	}
	v.compete = append(v.compete, candidate{e, m.Origin})
	s.changed = true
	if o := &s.ranks[m.Origin]; m.Code == 1 && m.Origin != s.cfg.Me && o.present() {
		o.leaving = true
		if !o.link.open {
			s.bury(m.Origin)
		}
	}
}

// known reports whether a verdict names only ranks that exist.
func (s *State) known(e *fault.Error) bool {
	return !slices.ContainsFunc(e.Peers, func(p fault.Peer) bool { return p.Rank < 0 || p.Rank >= len(s.ranks) })
}

// hearVerdict takes another rank's verdict. One of a later epoch says that the
// present one is over elsewhere; one of an earlier epoch comes too late.
func (s *State) hearVerdict(m Message) {
	v := &s.verdicts
	switch {
	case m.Ref <= v.epoch || m.Ref == 0:
		return
	case m.Ref > v.epoch+1:
		s.close()
		v.epoch = max(v.epoch, m.Ref-1)
	}
	s.enter(m)
}

// settle reports the present epoch's verdict once the others have had time to
// cross, and links that are about to be have had time to bring theirs.
func (s *State) settle() {
	v := &s.verdicts
	if len(v.compete) == 0 || !s.due(v.since+Time(SettleWait)) {
		return
	}
	if s.knitting() && !s.due(v.since+Time(SettleWait+KnitWait)) {
		return
	}
	s.close()
}

// close ends the present epoch.
func (s *State) close() {
	v := &s.verdicts
	if len(v.compete) == 0 {
		return
	}
	slices.SortFunc(v.compete, compare)
	all := v.compete
	v.compete = nil
	v.epoch++
	s.report(all[0].err)
	for _, r := range v.departed {
		s.out(Departed{r})
	}
	v.departed = nil
	for _, c := range all[1:] {
		due := s.now
		if c.by != s.cfg.Me {
			due += Time(SettleWait + witnessLag) // its own announcer goes first, if it still can
		}
		s.hold(c.err, due)
	}
	s.changed = true
}

// report tells the layer above, and draws the consequences.
func (s *State) report(e *fault.Error) {
	v := &s.verdicts
	if len(v.reported) == maxReported {
		v.reported = slices.Delete(v.reported, 0, 1)
	}
	v.reported = append(v.reported, key(e))
	s.out(Report{e})
	switch e.Kind {
	case fault.PeerLost:
		for _, p := range e.Peers {
			if p.Rank == s.cfg.Me {
				s.disowned = true
			} else if !s.ranks[p.Rank].gone() {
				s.bury(p.Rank)
			}
		}
	case fault.LinkLost:
		s.sever(e)
	}
}

// sever gives up the control link of a pair that cannot reach each other, unless
// it works: then it was the data connection that broke.
func (s *State) sever(e *fault.Error) {
	if !names(e, s.cfg.Me) {
		return
	}
	for _, p := range e.Peers {
		if l := &s.ranks[p.Rank].link; p.Rank != s.cfg.Me && !l.up() {
			l.severed = true
		}
	}
}

// bury marks a rank as gone for good.
func (s *State) bury(r int) {
	s.ranks[r].status = lost
	s.cut(r)
	s.acquit(r)
	s.knitFrom = s.now
	s.changed = true
}

// accused reports whether this rank was given up by the others, or is about to be.
func (s *State) accused() bool {
	return s.disowned || slices.ContainsFunc(s.verdicts.compete, func(c candidate) bool {
		return c.err.Kind == fault.PeerLost && names(c.err, s.cfg.Me)
	})
}

// disown reports that a peer would not talk to this rank because it is taken for lost.
func (s *State) disown(by int, cause string) {
	if s.accused() {
		return
	}
	e := fault.New(fault.PeerLost, "mesh", by, "rank %d has given this one up: %s", by, cause)
	e.Peers = []fault.Peer{{Rank: s.cfg.Me, Host: s.cfg.Host}}
	s.report(e)
}
