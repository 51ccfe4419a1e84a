package flaky

import "github.com/tutti-go/tutti/fault"

// Device counts a step of the device below a node: a Post or a Completion, with the
// head of the frame that it is for, if it has one. It returns when in it a cut or a
// death is due, and 0 when none is. A cut is the caller's to carry out, as what the
// device shows of a broken queue pair; a death is carried out here, and the queue
// pair of the step must break as if it were cut. Delays and corruptions do not
// concern devices.
//
// It may be called with the wrapped Conn's locks held: who has died is told at
// once, and their Conns are closed soon, on a goroutine that their Transports' Close
// waits for.
func (s *Script) Device(kind Kind, from, to int, head []byte) (at Moment) {
	for _, i := range s.count(Step{Kind: kind, From: from, To: to, Head: head}) {
		switch r := s.rules[i]; r.action {
		case cut:
			s.fire(i)
			at = r.moment
		case die:
			s.fire(i)
			s.killLater(from, failure(fault.LinkLost, r.String(), nil))
			at = r.moment
		}
	}
	return at
}

// killLater lets a node die now, and closes its Conns soon.
func (s *Script) killLater(from int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deathOf(from).Store(&err)
	s.pendingKills++
	go func() {
		s.kill(from, err)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.pendingKills--
		s.killsDone.Broadcast()
	}()
}

// awaitKills returns when all that have died are buried.
func (s *Script) awaitKills() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.pendingKills > 0 {
		s.killsDone.Wait()
	}
}
