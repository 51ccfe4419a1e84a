package flaky

import "github.com/tutti-go/tutti/fault"

// Device counts a step of the RDMA device that a node uses: a Post or a Completion. The argument
// head is the head of the frame to which the step belongs, if any. Device returns the moment of the
// step at which a cut or a death is due, or 0 if none is due. For a cut, the caller breaks the
// queue pair. For a death, Device kills the node, and the caller breaks the queue pair as for a
// cut. Delays and corruptions do not apply to devices.
//
// The caller may hold locks of the wrapped Conns. A death takes effect at once. Another goroutine
// closes the node's Conns soon afterwards. Close of their Transports waits for that goroutine.
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

// killLater marks a node as dead now, and closes its Conns on another goroutine.
//
// The Conns cannot be closed here, because the caller may hold locks of the wrapped Conns.
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
