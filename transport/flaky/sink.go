package flaky

import "github.com/tutti-go/tutti/transport"

// A sink passes arriving frames from the inner Conn to the Sink of the caller. It applies cuts
// within a frame or after a frame. The goroutine in Progress owns it.
//
// A sink exists as long as its Conn. For each arriving frame its methods are called in one of
// these orders:
//
//	Buffer, Arrived...   a frame without a To
//	Arrived...           a frame with a To
//	Copy                 a frame that the inner Conn delivers in one call
type sink struct {
	c       *conn
	in      transport.Sink
	open    bool // a frame is arriving
	arrived int  // frames begun
	rule    int  // the rule for this frame, or -1
	ended   bool // the rule was applied: nothing more is passed on
}

// Progress calls Progress of the inner Conn. After a cut it returns the error of the cut, unless
// the inner Conn has reported an error before.
func (c *conn) Progress(in transport.Sink, spins int) (transport.State, error) {
	if !c.reading.CompareAndSwap(false, true) {
		return transport.Busy, nil
	}
	defer c.reading.Store(false)
	if err := c.failed(nil); err != nil {
		return transport.Idle, err
	}
	// Each call may pass a different Sink.
	c.sink.c, c.sink.in = c, in
	state, err := c.inner.Progress(&c.sink, spins)
	c.sink.in = nil
	if err != nil {
		err = c.failed(err)
	}
	return state, err
}

// failed returns the first error of this Conn. If there is none yet, err becomes the first
// error.
//
// A Conn of a dead node fails with the death, unless it has failed or was closed before.
func (c *conn) failed(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	if died := c.node.death.Load(); died != nil && !c.closed {
		err = *died
	}
	c.err = err
	return err
}

// begin counts a frame that begins to arrive, and looks up the rule for this frame.
//
// Neither end counts frames with the ID NoNotify.
func (s *sink) begin() {
	s.open, s.rule = true, -1
	s.arrived++
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if i, ok := s.c.due[s.arrived]; ok {
		s.rule = i
		delete(s.c.due, s.arrived)
	}
}

// Buffer implements transport.Sink. It also applies a cut within a frame with an empty body,
// because Arrived is called only once for such a frame.
func (s *sink) Buffer(h transport.Header) []byte {
	if s.ended {
		return nil // the transport still delivers frames after the cut
	}
	s.begin()
	if s.is(Before) {
		s.apply()
		return nil
	}
	b := s.in.Buffer(h)
	if h.Size == 0 && s.is(Within) {
		s.apply()
	}
	return b
}

// Arrived implements transport.Sink. If a rule cuts within the frame, Arrived passes half of the
// body on.
//
// After the cut it passes nothing on. The Conn keeps the buffer of the frame until Progress has
// returned the error, as the contract of Sink allows.
func (s *sink) Arrived(h transport.Header, n int) {
	if s.ended {
		return
	}
	if !s.open {
		if h.ID == transport.NoNotify {
			s.in.Arrived(h, n) // such a frame has no number at either end
			return
		}
		s.begin() // the inner Conn does not call Buffer for a frame with a To
	}
	if s.is(Within) {
		if half := min(n, h.Size/2); half > 0 {
			s.in.Arrived(h, half)
		}
		s.apply()
		return
	}
	s.in.Arrived(h, n)
	if n < h.Size {
		s.chunk()
		return
	}
	s.open = false
	if s.rule >= 0 {
		s.apply()
	}
}

// Copy implements transport.CopySink. If a rule applies to the frame, or the Sink of the caller
// has no Copy, it calls Buffer and Arrived instead.
//
// A Within cut passes half of the body on, which needs Buffer and Arrived.
func (s *sink) Copy(h transport.Header, body []byte) {
	if s.ended {
		return
	}
	s.begin()
	t, ok := s.in.(transport.CopySink)
	switch {
	case s.is(Before):
		s.apply()
	case ok && s.rule < 0:
		t.Copy(h, body)
		s.open = false
	default:
		if b := s.in.Buffer(h); b != nil {
			copy(b, body)
		}
		if h.Size == 0 && s.is(Within) {
			s.apply()
			return
		}
		s.Arrived(h, h.Size)
	}
}

// is reports whether a rule cuts at the moment m of this frame.
func (s *sink) is(m Moment) bool {
	return s.rule >= 0 && s.c.node.script.rules[s.rule].moment == m
}

// apply applies the rule. The frame is a step of the sender, so a death kills the sender.
func (s *sink) apply() {
	s.ended = true
	script, c := s.c.node.script, s.c
	c.mu.Lock()
	from := c.to
	c.mu.Unlock()
	script.apply(s.rule, from, c)
}
