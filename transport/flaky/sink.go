package flaky

import "github.com/tutti-go/tutti/transport"

// A sink stands between the inner Conn and the caller's Sink. It cuts within an arriving frame or
// after it. The goroutine in Progress owns it.
//
// It lives as long as its Conn, and sees each arriving frame in one of these orders:
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

// Progress moves the inner Conn. After a cut it returns the cut's error, unless the inner Conn has
// reported an error before.
func (c *conn) Progress(in transport.Sink, spins int) (transport.State, error) {
	if !c.reading.CompareAndSwap(false, true) {
		return transport.Busy, nil
	}
	defer c.reading.Store(false)
	if err := c.failed(nil); err != nil {
		return transport.Idle, err
	}
	// The Sink may be another one in each call.
	c.sink.c, c.sink.in = c, in
	state, err := c.inner.Progress(&c.sink, spins)
	c.sink.in = nil
	if err != nil {
		err = c.failed(err)
	}
	return state, err
}

// failed returns the first error of this Conn, which err becomes if there is none.
//
// A dead node's Conns fail with the death, unless they had failed or were closed before.
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

// begin counts a frame that has begun, and looks up the rule for it.
//
// Frames with NoNotify are not counted, at neither end.
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

// Buffer implements transport.Sink. A cut within an empty body happens here, since no part of it
// arrives before the whole.
func (s *sink) Buffer(h transport.Header) []byte {
	if s.ended {
		return nil // the wire still held frames of a dead node
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

// Arrived implements transport.Sink. Of a frame to be cut within, half is passed on.
//
// After the cut nothing is passed on. The buffer of the frame stays with the Conn until Progress
// has returned the error, as the contract allows.
func (s *sink) Arrived(h transport.Header, n int) {
	if s.ended {
		return
	}
	if !s.open {
		if h.ID == transport.NoNotify {
			s.in.Arrived(h, n) // neither end numbers it
			return
		}
		s.begin() // it skips Buffer
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

// Copy implements transport.CopySink. A frame with a rule, or for a Sink without Copy, is passed on
// in two calls.
//
// A Within cut passes half of the body on, which only Buffer and Arrived can express.
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

// is reports whether a rule cuts this frame at that moment.
func (s *sink) is(m Moment) bool {
	return s.rule >= 0 && s.c.node.script.rules[s.rule].moment == m
}

// apply applies the rule to the sender, whose step the frame was.
func (s *sink) apply() {
	s.ended = true
	script, c := s.c.node.script, s.c
	c.mu.Lock()
	from := c.to
	c.mu.Unlock()
	script.apply(s.rule, from, c)
}
