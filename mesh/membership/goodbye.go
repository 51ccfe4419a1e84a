package membership

// apply floods the goodbye:
//
//	this rank                     neighbours                   other ranks
//	Bye, flooded            ->    departed, forward      ->    departed
//	wait for all ByeAcks    <-    ByeAck
//	Left, closes its links
//
// Every neighbour whose link is up must acknowledge, so that no neighbour reports the closed link
// as a failure. This rank does not wait for a neighbour whose link breaks or falls silent
// meanwhile.
//
// With Config.Redial, a neighbour whose link breaks may be alive. Such a neighbour could no longer
// get the goodbye once this rank had ended. So this rank dials the neighbour again until the limit
// on silence, once more at the limit, and leaves dialGrace later; see DialTimeout. If the link
// broke before Goodbye, the flood waits for the dials. If it breaks later, the dials go on, and a
// link that comes up carries the goodbye.
func (in Goodbye) apply(s *Machine) {
	s.ending = true
	s.sendGoodbye()
}

// sendGoodbye floods the goodbye once Goodbye has been applied and no rank must be dialled first.
func (s *Machine) sendGoodbye() {
	if !s.ending || s.closing || len(s.ranksThat(s.redials)) > 0 {
		return
	}
	s.closing = true
	s.flood(Message{Kind: Bye})
	for r := range s.ranks {
		s.ranks[r].link.byePending = s.ranks[r].link.up()
	}
}

// handleBye records the orderly close of rank r.
//
// While an epoch is open, the layer above gets the failure first and then the goodbye. The rank may
// have closed because it has already reported that failure, and calls on this rank must fail
// because of the failure, not because of the goodbye.
func (s *Machine) handleBye(r int) {
	k := &s.ranks[r]
	if k.gone() {
		return
	}
	k.status = departed
	k.link.byePending = false
	s.clearSuspicions(r)
	s.deferOverlay()
	s.changed = true
	if len(s.failures.candidates) > 0 {
		s.failures.departed = append(s.failures.departed, r)
		return
	}
	s.emit(Departed{r})
}

// checkLeft reports, once, that every neighbour has acknowledged this rank's goodbye, or is gone.
func (s *Machine) checkLeft() {
	if !s.closing || s.left {
		return
	}
	for r := range s.ranks {
		l := &s.ranks[r].link
		if !l.open && (s.evicted || s.reached(l.receivedAt+Time(s.Limit(r)+s.dialGrace(r)))) {
			l.byePending = false
		}
		if l.byePending {
			return
		}
	}
	s.left = true
	s.emit(Left{})
}
