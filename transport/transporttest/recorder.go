package transporttest

import (
	"bytes"
	"fmt"
	"sync/atomic"

	"github.com/tutti-go/tutti/transport"
)

// An arrival records a frame that the Sink has received.
type arrival struct {
	head, body []byte
	id         uint32
	direct     bool // the frame came into exposed memory
}

// A recorder is a Sink that keeps the frames that arrive, and reports every call that breaks the
// contract. It has no lock, because two calls at the same time break the contract, too. The race
// detector reports such calls.
type recorder struct {
	w       *cluster
	name    string
	buffer  func(h transport.Header) []byte // nil: new memory for each body
	partly  func(h transport.Header, n int) // called at each Arrived
	exposed map[uint32][]byte               // memory in which frames with a To may arrive
	got     []arrival

	open   bool // a frame is arriving
	now    arrival
	header transport.Header // the header of the frame's first call
	n      int              // the argument n of the last Arrived; -1 before the first call
}

// Buffer implements transport.Sink.
func (r *recorder) Buffer(h transport.Header) []byte {
	if r.open {
		r.w.errorf("%s: Buffer for a frame of %d bytes, while %d of %d bytes of another are in",
			r.name, h.Size, r.n, r.header.Size)
	}
	if h.Size < 0 || len(h.Head) > transport.MaxHead {
		r.w.errorf("%s: Buffer got a head of %d and a size of %d bytes", r.name, len(h.Head), h.Size)
	}
	r.begin(h)
	if r.buffer == nil {
		r.now.body = make([]byte, h.Size)
		return r.now.body
	}
	b := r.buffer(h)
	if b != nil {
		r.now.body = b[:h.Size]
	}
	return b
}

func (r *recorder) begin(h transport.Header) {
	r.open, r.n, r.header = true, -1, h
	r.now = arrival{head: bytes.Clone(h.Head), id: h.ID}
}

// Arrived implements transport.Sink.
func (r *recorder) Arrived(h transport.Header, n int) {
	if !r.open {
		r.beginDirect(h)
	}
	if err := r.check(h, n); err != nil {
		r.w.errorf("%s: %v", r.name, err)
	}
	r.n = n
	if n == h.Size {
		r.open = false
		r.got = append(r.got, r.now)
	}
	if r.partly != nil {
		r.partly(h, n)
	}
}

// beginDirect starts a frame that skips Buffer.
func (r *recorder) beginDirect(h transport.Header) {
	r.begin(h)
	mem, ok := r.exposed[h.ID]
	if !ok {
		r.w.errorf("%s: Arrived without Buffer, with ID %d under which nothing is exposed", r.name, h.ID)
		return
	}
	r.now.direct = true
	if h.Size <= len(mem) {
		r.now.body = mem[:h.Size]
	}
	if len(h.Head) > 0 {
		r.w.errorf("%s: a frame into exposed memory arrived with a head of %d bytes", r.name, len(h.Head))
	}
}

// check compares one Arrived with the earlier calls for the frame.
func (r *recorder) check(h transport.Header, n int) error {
	switch {
	case h.Size != r.header.Size || h.ID != r.header.ID:
		return fmt.Errorf("the header changed from size %d, ID %d to size %d, ID %d",
			r.header.Size, r.header.ID, h.Size, h.ID)
	case !bytes.Equal(h.Head, r.now.head) || !bytes.Equal(r.header.Head, r.now.head):
		return fmt.Errorf("the head changed before its frame was complete")
	case n > h.Size || n <= r.n:
		return fmt.Errorf("Arrived reported %d of %d bytes after %d", n, h.Size, r.n)
	case n == 0 && h.Size > 0:
		return fmt.Errorf("Arrived reported 0 of %d bytes", h.Size)
	}
	return nil
}

// A sentFrame counts how often its Done ran.
type sentFrame struct {
	transport.Frame
	want      arrival
	doneCount atomic.Int32
	err       error // the argument of Done; valid once Done has run
}

// frame makes a frame whose Done is recorded. If the function argument is not nil, it runs inside
// Done.
func (w *cluster) frame(head, body []byte, then func(error)) *sentFrame {
	s := &sentFrame{want: arrival{head: head, body: body}}
	s.Head, s.Body = head, body
	s.Done = func(err error) {
		if s.doneCount.Load() > 0 {
			w.errorf("Done ran a second time, with %v", err)
			return
		}
		if err != nil {
			w.isFault("Done", err)
		}
		if then != nil {
			then(err)
		}
		s.err = err
		// This comes last, because a goroutine that sees the new count may use the frame again.
		s.doneCount.Add(1)
	}
	return s
}

// send sends a new frame from e.
func (e *endpoint) send(head, body []byte) *sentFrame {
	s := e.w.frame(head, body, nil)
	e.Send(&s.Frame)
	return s
}

// done reports whether Done has run.
func (s *sentFrame) done() bool { return s.doneCount.Load() > 0 }

// allDone reports whether every frame's Done has run.
func allDone(frames []*sentFrame) bool {
	for _, s := range frames {
		if !s.done() {
			return false
		}
	}
	return true
}

// exchange polls until the frames have arrived at e and are done. Then it compares them with the
// frames that e has received.
func (w *cluster) exchange(frames []*sentFrame, e *endpoint) {
	w.tb.Helper()
	start := len(e.sink.got)
	w.until("the arrival of all frames", func() bool {
		return len(e.sink.got)-start >= len(frames) && allDone(frames) || e.err != nil
	})
	w.compare(frames, e.sink.got[start:])
	if e.err != nil {
		w.tb.Fatalf("%s: %v", e.name, e.err)
	}
}

// compare checks that exactly these frames have arrived, in this order.
func (w *cluster) compare(frames []*sentFrame, got []arrival) {
	w.tb.Helper()
	if len(got) != len(frames) {
		w.tb.Errorf("%d frames arrived, want %d", len(got), len(frames))
	}
	for i := range min(len(got), len(frames)) {
		if err := frames[i].want.differs(got[i]); err != nil {
			w.tb.Fatalf("frame %d of %d: %v", i, len(frames), err)
		}
		if s := frames[i]; s.done() && s.err != nil {
			w.tb.Errorf("frame %d of %d arrived, but its Done got %v", i, len(frames), s.err)
		}
	}
}

// differs returns an error that describes how got differs from want, or nil.
func (want arrival) differs(got arrival) error {
	switch {
	case got.id != want.id || got.direct != want.direct:
		return fmt.Errorf("got ID %d (direct: %v), want %d (%v)", got.id, got.direct, want.id, want.direct)
	case !bytes.Equal(got.head, want.head):
		return fmt.Errorf("got head %x, want %x", got.head, want.head)
	case len(got.body) != len(want.body):
		return fmt.Errorf("got %d bytes of body, want %d", len(got.body), len(want.body))
	case !bytes.Equal(got.body, want.body):
		return fmt.Errorf("the body of %d bytes is altered: the first different byte is %d", len(want.body), firstDifference(got.body, want.body))
	}
	return nil
}

func firstDifference(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return len(a)
}
