package flaky

import "github.com/tutti-go/tutti/fault"

// Device counts a step of the device below a node: a Post or a Completion, with the head of the
// frame that it is for, if any. It returns at which moment of the step a cut or a death is due, and
// 0 for none. The caller carries out a cut, as what the device shows of a broken queue pair. Device
// itself carries out a death; the caller breaks the queue pair of the step as for a cut. Delays and
// corruptions do not apply to devices.
//
// Device may be called with the wrapped Conn's locks held: the death takes effect at once, and the
// node's Conns are closed soon, on a goroutine that the Close of their Transports waits for.
func (s *Script) Device(kind StepKind, from, to int, head []byte) (at Moment) {
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

// killLater lets a node die now, and closes its Conns on another goroutine.
//
// The Conns cannot be closed here: the caller may hold locks of the wrapped Conns.
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

// awaitKills waits until the Conns of all dead nodes are closed.
func (s *Script) awaitKills() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.pendingKills > 0 {
		s.killsDone.Wait()
	}
}
