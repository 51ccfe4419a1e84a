package rendezvous

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// A stepper sends named tensors from rank 0 to rank 1, step by step.
type stepper struct {
	*testing.T
	*team
	from, to *MatchContext
	step     uint64
}

func newStepper(t *testing.T, cfg Config) *stepper {
	return newStepperOver(t, cfg, func(w transport.Transport) transport.Transport { return w })
}

// newStepperOver returns a stepper whose Transports are wrapped.
func newStepperOver(t *testing.T, cfg Config, wrap func(transport.Transport) transport.Transport) *stepper {
	cfg.Protocol = Rendezvous
	tm := newTeamWith(t, 2, cfg, wrap)
	return &stepper{T: t, team: tm, from: tm.engines[0].Open(5, []int{0, 1}), to: tm.engines[1].Open(5, []int{0, 1})}
}

// content returns the content of tensor i of a step.
func content(step uint64, i, size int) []byte {
	return bytes.Repeat([]byte{byte(step), byte(i), 7, byte(step >> 8)}, (size+3)/4)[:size]
}

// send sends a tensor of the current step.
func (s *stepper) send(i, size int) <-chan error {
	s.Helper()
	sent := make(chan error, 1)
	t := Tensor{Shape: []int{size}, Data: content(s.step, i, size)}
	if err := s.from.SendNamed(s.step, 1, fmt.Sprint(i), t, func(err error) { sent <- err }); err != nil {
		s.Fatal(err)
	}
	return sent
}

// recv receives a tensor of the current step, and checks it.
func (s *stepper) recv(i, size int, buf []byte) Tensor {
	s.Helper()
	t, err := s.to.RecvNamed(s.Context(), nil, s.step, 0, fmt.Sprint(i), buf)
	if err != nil || !bytes.Equal(t.Data, content(s.step, i, size)) {
		s.Fatalf("step %d, tensor %d: got %d bytes, %v", s.step, i, len(t.Data), err)
	}
	return t
}

// one runs one step: it sends tensors of the given sizes, and receives them without a buffer.
func (s *stepper) one(sizes ...int) (got []Tensor) {
	s.Helper()
	s.step++
	var sent []<-chan error
	for i, size := range sizes {
		sent = append(sent, s.send(i, size))
	}
	for i, size := range sizes {
		got = append(got, s.recv(i, size, nil))
	}
	for _, done := range sent {
		if err := <-done; err != nil {
			s.Error(err)
		}
	}
	return got
}

// repeat repeats a step until ok returns true. The number of steps depends on when the sender
// learns of the buffers.
func (s *stepper) repeat(what string, ok func() bool, sizes ...int) {
	s.Helper()
	for range 1000 {
		for _, t := range s.one(sizes...) {
			t.Release()
		}
		s.waitForReleases()
		if ok() {
			return
		}
	}
	s.Fatalf("not after 1000 steps: %s", what)
}

// waitForReleases returns when rank 0 has handled the releases that rank 1 has sent. It waits for a
// later message, which arrives after them. A tensor that is sent before its buffer's release
// arrives would be offered instead.
func (s *stepper) waitForReleases() {
	s.Helper()
	if err := s.to.Send(s.Context(), nil, 0, 1, 0, []byte{1}, Eager); err != nil {
		s.Fatal(err)
	}
	if _, err := s.from.Recv(s.Context(), nil, 1, 1, 0, make([]byte, 1)); err != nil {
		s.Fatal(err)
	}
}

// offers returns the number of tensors that rank 0 has offered.
func (s *stepper) offers() uint32 {
	e := s.engines[0]
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.peers[1].nextOfferID
}

// direct returns a function that reports whether the last step needed no offer.
func (s *stepper) direct() func() bool {
	before := s.offers()
	return func() bool {
		was := before
		before = s.offers()
		return was == before
	}
}

// prepare prepares a receive of tensor i.
func (s *stepper) prepare(i int, buf []byte) *PreparedRecv {
	s.Helper()
	pr, err := s.to.PrepareNamed(0, fmt.Sprint(i), buf)
	if err != nil {
		s.Fatal(err)
	}
	return pr
}

// close closes a prepared receive, and checks that its buffer is no longer exposed.
func (s *stepper) close(pr *PreparedRecv) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), 20*time.Second)
	defer cancel()
	if err := pr.Close(ctx); err != nil {
		s.Fatal(err)
	}
	p := pr.peer
	p.e.mu.Lock()
	defer p.e.unlock()
	if p.preparedByID[pr.id] == pr || !pr.done {
		s.Error("the buffer is still exposed after Close")
	}
}

// within reports whether b begins where buf begins.
func within(b, buf []byte) bool { return len(b) > 0 && &b[0] == &buf[0] }

func TestPreparedTensorIsWrittenIntoItsBuffer(t *testing.T) {
	s := newStepper(t, Config{})
	const size = 700_000 // several data frames
	buf := make([]byte, size)
	pr := s.prepare(0, buf)
	s.repeat("a step without an offer", s.direct(), size)
	if !pr.Exposed() {
		t.Error("the buffer is not exposed, though a tensor came without an offer")
	}
	for range 3 {
		for got := s.one(size)[0]; ; got = s.one(size)[0] { // until the sender has seen the Release
			direct := within(got.Data, buf)
			got.Release()
			if direct {
				break
			}
		}
	}
	s.close(pr)
	if got := s.one(size)[0]; within(got.Data, buf) {
		t.Error("a tensor came to the buffer after Close")
	}
	s.close(pr) // a second Close does nothing
	pr = s.prepare(0, buf)
	s.repeat("a step without an offer, with the same buffer again", s.direct(), size)
	s.close(pr)
}

func TestSmallerPreparedTensorIsWrittenDirectly(t *testing.T) {
	s := newStepper(t, Config{})
	s.prepare(0, make([]byte, 50_000))
	s.repeat("a step of a smaller tensor without an offer", s.direct(), 20_000)
}

func TestTensorLargerThanItsBufferIsOffered(t *testing.T) {
	s := newStepper(t, Config{})
	buf := make([]byte, 20_000)
	s.prepare(0, buf)
	s.repeat("a step without an offer", s.direct(), 20_000)
	before := s.offers()
	if got := s.one(30_000)[0]; within(got.Data, buf) || s.offers() == before {
		t.Error("a tensor larger than its buffer was not offered")
	}
	s.repeat("a step without an offer, after a larger tensor", s.direct(), 20_000)
}

func TestRecvIntoAnotherBufferCopiesFromThePreparedOne(t *testing.T) {
	s := newStepper(t, Config{})
	s.prepare(0, make([]byte, 20_000))
	s.repeat("a step without an offer", s.direct(), 20_000)
	direct := s.direct()
	for range 1000 {
		s.step++
		sent, buf := s.send(0, 20_000), make([]byte, 20_000)
		if got := s.recv(0, 20_000, buf); !within(got.Data, buf) {
			t.Fatal("the tensor is not in the buffer that was given")
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		if direct() {
			return // the tensor is not released
		}
	}
	t.Error("no tensor was written directly in 1000 steps")
}

func TestTensorIsNotOverwrittenBeforeItsRelease(t *testing.T) {
	s := newStepper(t, Config{})
	buf := make([]byte, 30_000)
	s.prepare(0, buf)
	var kept Tensor
	for i := 0; !within(kept.Data, buf); i++ {
		if i == 1000 {
			t.Fatal("no tensor was written directly in 1000 steps")
		}
		kept.Release()
		kept = s.one(30_000)[0]
	}
	step := s.step
	for range 3 {
		before := s.offers()
		s.one(30_000)
		if s.offers() == before {
			t.Error("a tensor was written where one still lies")
		}
	}
	if !bytes.Equal(kept.Data, content(step, 0, 30_000)) {
		t.Error("the tensor was overwritten")
	}
	kept.Release()
	var next Tensor
	for i := 0; !within(next.Data, buf); i++ {
		if i == 1000 {
			t.Fatal("no tensor was written directly after the Release")
		}
		next = s.one(30_000)[0]
	}
	kept.Release() // stale: the buffer holds another tensor
	Tensor{}.Release()
	step = s.step
	s.one(30_000)
	if !bytes.Equal(next.Data, content(step, 0, 30_000)) {
		t.Error("a stale Release freed the buffer of a later tensor")
	}
}

// A step may be aborted when its tensor has been written only in part. The buffer and the send's
// credit must then become free again. No other tensor may be written into the buffer until the Conn
// is done with the send's last frame.
func TestBuffersOfAnAbortedStepAreFreeAgain(t *testing.T) {
	hold := new(holdWrites)
	s := newStepperOver(t, Config{}, hold.wrap)
	const size = 1 << 20 // four frames
	s.prepare(0, make([]byte, size))
	s.repeat("a step without offers", s.direct(), size)
	for range 5 {
		s.repeat("a step without offers, after aborted ones", s.direct(), size)
		written := hold.after(1)
		s.step++
		sent := s.send(0, size)
		<-written // the first frame is in the buffer, and others are at the Conn
		p := s.engines[0].peers[1]
		p.e.mu.Lock()
		if len(p.writing) != 1 || p.writing[0].inFlight == 0 || p.writing[0].sent == size {
			t.Fatalf("%d sends are being written, want one that is halfway", len(p.writing))
		}
		p.e.mu.Unlock()
		s.from.EndStep(s.step, errRevoked)
		s.to.endStep(s.step)
		before := s.offers()
		s.one(size)
		if s.offers() == before {
			t.Error("a tensor was written into a buffer that another one is being written into")
		}
		hold.release()
		if err := <-sent; !errors.Is(err, fault.Canceled) {
			t.Errorf("the send of the aborted step: got %v, want %v", err, fault.Canceled)
		}
	}
	p := s.engines[0].peers[1]
	p.e.mu.Lock()
	defer p.e.unlock()
	for _, rb := range p.remote {
		if rb.writer != nil || len(p.writing) > 0 {
			t.Errorf("buffer %d has a writer, of %d", rb.id, len(p.writing))
		}
	}
}

// A peer may still be writing when this rank ends. The peer's Conn must not fail then, because the
// peer would blame the link.
func TestEndDoesNotFailTheConnOfAPeerThatIsWriting(t *testing.T) {
	hold := new(holdWrites)
	s := newStepperOver(t, Config{}, hold.wrap)
	const size = 1 << 20
	pr := s.prepare(0, make([]byte, size))
	s.repeat("a step without an offer", s.direct(), size)
	written := hold.after(1)
	s.step++
	sent := s.send(0, size)
	<-written
	s.engines[1].End(errEnded)
	hold.release()
	for sending := true; sending; { // until the other frames have arrived
		from, to := s.engines[0].peers[1], s.engines[1].peers[0]
		if err := errors.Join(from.connErrAfter(), to.connErrAfter()); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-sent:
			if err != nil {
				t.Error(err)
			}
			sending = false
		default:
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s.meshes[1].Close(ctx)
	if err := pr.Close(ctx); err != nil {
		t.Errorf("after the links have ended: %v", err)
	}
}

// holdWrites holds back frames into prepared buffers.
type holdWrites struct {
	mu      sync.Mutex
	holding bool
	pass    int // writes that still go through
	held    []func()
	reached chan struct{} // closed when two frames are held; see holdConn.Send
}

// after lets n frames pass, and holds all later frames. It returns a channel. The channel is closed
// when a frame is held and the Conn is done with the frames before it.
func (h *holdWrites) after(n int) <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.holding, h.pass, h.reached = true, n, make(chan struct{})
	return h.reached
}

// release sends the held frames, and holds no further frames.
func (h *holdWrites) release() {
	h.mu.Lock()
	held := h.held
	h.holding, h.held = false, nil
	h.mu.Unlock()
	for _, send := range held {
		send()
	}
}

func (h *holdWrites) wrap(w transport.Transport) transport.Transport {
	return wrapped{w, func(c transport.Conn) transport.Conn { return &holdConn{c, c.(transport.Exposer), h} }}
}

type holdConn struct {
	transport.Conn
	transport.Exposer
	h *holdWrites
}

// Send implements transport.Conn. At most two frames of a message are at the Conn. So when two
// frames are held, the Conn is done with all earlier frames of the message.
func (c *holdConn) Send(f *transport.Frame) {
	c.h.mu.Lock()
	if f.ID != transport.NoNotify || !c.h.holding {
		c.h.mu.Unlock()
		c.Conn.Send(f)
		return
	}
	if c.h.pass > 0 {
		c.h.pass--
		c.h.mu.Unlock()
		c.Conn.Send(f)
		return
	}
	c.h.held = append(c.h.held, func() { c.Conn.Send(f) })
	if len(c.h.held) == 2 {
		close(c.h.reached)
	}
	c.h.mu.Unlock()
}

// wrapped is a Transport that wraps its Conns with a function.
type wrapped struct {
	transport.Transport
	conn func(transport.Conn) transport.Conn
}

func (w wrapped) Serve(in net.Listener, accept func(transport.Conn)) (string, error) {
	return w.Transport.Serve(in, func(c transport.Conn) { accept(w.conn(c)) })
}

func (w wrapped) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := w.Transport.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return w.conn(c), nil
}

// exposeHook is a Conn whose Expose is replaced.
type exposeHook struct {
	transport.Conn
	expose func(x transport.Exposer, id uint32, buf []byte) (transport.Token, func(), error)
}

func (c exposeHook) Expose(id uint32, buf []byte) (transport.Token, func(), error) {
	return c.expose(c.Conn.(transport.Exposer), id, buf)
}

// hookExpose returns a wrapper for Transports whose Conns expose memory by the given function.
func hookExpose(expose func(x transport.Exposer, id uint32, buf []byte) (transport.Token, func(), error)) func(transport.Transport) transport.Transport {
	return func(w transport.Transport) transport.Transport {
		return wrapped{w, func(c transport.Conn) transport.Conn { return exposeHook{c, expose} }}
	}
}

// withoutExposer returns a Transport whose Conns cannot expose memory.
func withoutExposer(w transport.Transport) transport.Transport {
	return wrapped{w, func(c transport.Conn) transport.Conn { return struct{ transport.Conn }{c} }}
}

// endStep ends a step on one rank, as the arrival of the flood of EndStep does. The Meshes of a
// team have no Events, so in these tests the flood itself reaches no Engine.
func (mc *MatchContext) endStep(step uint64) { mc.e.endStep(stepID{mc.id, step}, 0, "") }

// A send that is aborted before its announcement must return the credit that it has charged.
func TestCanceledDirectWriteReturnsItsCredit(t *testing.T) {
	e := newWithSilentPeer(t)
	p, mc := e.peers[1], e.Open(5, []int{0, 1})
	e.startArrival(1, frameHeader{kind: kindPrepare, flags: flagToken, id: 1, context: 5, size: 1 << 20})()
	e.mu.Lock()
	e.cfg.Protocol = Rendezvous
	credit := p.credit
	p.flushing = true // no frame leaves, so that the send is not done
	e.mu.Unlock()
	if err := mc.SendNamed(1, 1, zeroName, Tensor{Data: make([]byte, 1<<20)}, nil); err != nil {
		t.Fatal(err)
	}
	e.mu.Lock()
	defer e.unlock()
	if len(p.writing) != 1 || p.credit != credit-envelopeCost {
		t.Fatalf("%d sends are being written, credit %d of %d", len(p.writing), p.credit, credit)
	}
	p.cancelWrite(p.writing[0])
	if len(p.writing) != 0 || p.credit != credit || p.remote[1].filled {
		t.Errorf("%d sends are being written, credit %d, want %d; used %v", len(p.writing), p.credit, credit, p.remote[1].filled)
	}
}

func TestTensorsOfOneKeyKeepTheirOrder(t *testing.T) {
	s := newStepper(t, Config{})
	const size = 3 << 20 // several frames, so that the second one could overtake
	s.prepare(0, make([]byte, size))
	s.repeat("a step without an offer", s.direct(), size)
	for range 5 {
		s.step++
		for i := range 3 {
			if err := s.from.SendNamed(s.step, 1, "0", Tensor{Data: content(uint64(i), 0, size-i)}, nil); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 3 {
			got, err := s.to.RecvNamed(t.Context(), nil, s.step, 0, "0", nil)
			if err != nil || !bytes.Equal(got.Data, content(uint64(i), 0, size-i)) {
				t.Fatalf("tensor %d: %d bytes, %v", i, len(got.Data), err)
			}
			got.Release()
		}
	}
}

// Close must wait for the sender. Close must keep a tensor that is in the buffer and was not
// received.
func TestCloseKeepsAnUnreceivedTensor(t *testing.T) {
	s := newStepper(t, Config{})
	buf := make([]byte, 20_000)
	pr := s.prepare(0, buf)
	for i := 0; ; i++ {
		if i == 1000 {
			t.Fatal("no tensor was written directly in 1000 steps")
		}
		s.repeat("a step without an offer", s.direct(), 20_000)
		s.step++
		before := s.offers()
		sent := s.send(0, 20_000)
		if s.offers() != before { // the sender had not seen the Release
			s.recv(0, 20_000, nil)
			<-sent
			continue
		}
		s.close(pr)
		clear(buf)
		if got := s.recv(0, 20_000, nil); within(got.Data, buf) {
			t.Error("the tensor lies in a buffer that is the program's again")
		}
		return
	}
}

func TestCloseReturnsWhenTheSenderIsGone(t *testing.T) {
	for name, end := range map[string]func(e *Engine, mc *MatchContext){
		"the peer is lost": func(e *Engine, _ *MatchContext) { e.FailPeer(1, fault.PeerLost) },
		"the link breaks":  func(e *Engine, _ *MatchContext) { e.LinkDown(1, fault.LinkLost) },
		"the engine ends, and its links": func(e *Engine, _ *MatchContext) {
			e.End(errEnded)
			e.LinkDown(1, errEnded)
		},
		"the peer answers": func(e *Engine, _ *MatchContext) { go e.answerUnprepare(1) },
		"the context ends, and the peer is lost": func(e *Engine, mc *MatchContext) {
			mc.Close(errEnded)
			e.FailPeer(1, fault.PeerLost)
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newWithSilentPeer(t)
			mc := e.Open(5, []int{0, 1})
			pr, err := mc.PrepareNamed(1, "w", make([]byte, 20_000))
			if err != nil || !pr.Exposed() {
				t.Fatalf("exposed %v, %v", pr.Exposed(), err)
			}
			short, cancel := context.WithCancel(t.Context())
			cancel()
			if err := pr.Close(short); err == nil {
				t.Fatal("Close returned before the sender had acknowledged it")
			}
			end(e, mc)
			ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
			defer stop()
			if err := pr.Close(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

// The end of the engine must end a Close that waits for the sender, because the sender may wait for
// this rank.
func TestCloseReturnsWhenTheEngineEnds(t *testing.T) {
	for name, before := range map[string]func(mc *MatchContext){
		"open context":    func(*MatchContext) {},
		"revoked context": func(mc *MatchContext) { mc.Revoke(errRevoked) },
		"closed context":  func(mc *MatchContext) { mc.Close(errRevoked) },
	} {
		t.Run(name, func(t *testing.T) {
			e := newWithSilentPeer(t)
			mc := e.Open(5, []int{0, 1})
			pr, err := mc.PrepareNamed(1, "w", make([]byte, 20_000))
			if err != nil || !pr.Exposed() {
				t.Fatalf("exposed %v, %v", pr.Exposed(), err)
			}
			before(mc)
			ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
			defer stop()
			closed := make(chan error, 1)
			go func() { closed <- pr.Close(ctx) }()
			for waits := false; !waits; {
				e.mu.Lock()
				waits = len(mc.waiters) > 0
				e.mu.Unlock()
			}
			// Reason: no event shows that Close sleeps. If Close does not sleep yet, the test
			// passes, but checks less.
			time.Sleep(20 * time.Millisecond)
			e.End(errEnded)
			if err := <-closed; !errors.Is(err, errEnded) {
				t.Errorf("the Close that waits: got %v, want the engine's end", err)
			}
			if err := pr.Close(ctx); !errors.Is(err, errEnded) {
				t.Errorf("a later Close: got %v, want the engine's end", err)
			}
			e.LinkDown(1, errEnded)
			if err := pr.Close(ctx); err != nil {
				t.Errorf("after the link has ended: %v", err)
			}
		})
	}
}

// answerUnprepare acknowledges the end of a buffer as the peer does.
func (e *Engine) answerUnprepare(id uint32) {
	e.startArrival(1, frameHeader{kind: kindUnprepareAck, id: id})()
}

func TestInvalidPreparationsAreMisuse(t *testing.T) {
	e := newWithSilentPeer(t)
	mc := e.Open(5, []int{0, 1})
	if _, err := mc.PrepareNamed(1, "w", make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	for name, prepare := range map[string]func() (*PreparedRecv, error){
		"no name":       func() (*PreparedRecv, error) { return mc.PrepareNamed(1, "", make([]byte, 8)) },
		"no buffer":     func() (*PreparedRecv, error) { return mc.PrepareNamed(1, "v", nil) },
		"a second time": func() (*PreparedRecv, error) { return mc.PrepareNamed(1, "w", make([]byte, 8)) },
	} {
		if _, err := prepare(); !errors.Is(err, fault.Misuse) {
			t.Errorf("%s: got %v, want misuse", name, err)
		}
	}
	mc.Revoke(errRevoked)
	if _, err := mc.PrepareNamed(1, "u", make([]byte, 8)); !errors.Is(err, errRevoked) {
		t.Errorf("got %v, want the context's error", err)
	}
}

func TestPreparedBuffersAreBounded(t *testing.T) {
	e := newWithSilentPeer(t)
	mc := e.Open(5, []int{0, 1})
	for i := range maxPrepared {
		if _, err := mc.PrepareNamed(1, fmt.Sprint(i), make([]byte, 8)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := mc.PrepareNamed(1, "one more", make([]byte, 8)); !errors.Is(err, fault.Exhausted) {
		t.Errorf("got %v, want exhausted", err)
	}
}

// A tensor whose buffer cannot be exposed must come as an ordinary message. Each reason must be
// logged once per peer.
func TestRefusedExposureIsLoggedOnceAndReceivesGoOn(t *testing.T) {
	var log strings.Builder
	exposures := 0
	s := newStepperOver(t, Config{Log: slog.New(slog.NewTextHandler(&log, nil))},
		hookExpose(func(x transport.Exposer, id uint32, buf []byte) (transport.Token, func(), error) {
			if id != transport.NoNotify {
				return x.Expose(id, buf)
			}
			exposures++
			return transport.Token{}, nil, fault.New(fault.Refused, "expose", 1, "the memory is not from here")
		}))
	e := s.engines[1]
	sums := func(on bool) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.cfg.Checksum = on
	}
	s.one(20_000) // there is a Conn
	sums(true)
	prepared := []*PreparedRecv{s.prepare(0, make([]byte, 20_000)), s.prepare(1, make([]byte, 20_000))}
	sums(false)
	prepared = append(prepared, s.prepare(2, make([]byte, 20_000)), s.prepare(3, make([]byte, 20_000)))
	before := s.offers()
	for range 5 {
		s.one(20_000, 20_000, 20_000, 20_000)
	}
	if got := s.offers() - before; got != 20 || exposures != 2 {
		t.Errorf("%d offers, want 20; %d exposures, want one for each buffer that may be exposed", got, exposures)
	}
	for i, pr := range prepared {
		if pr.Exposed() {
			t.Errorf("buffer %d is exposed", i)
		}
		s.close(pr)
	}
	got := log.String()
	for _, want := range []string{"carry no checksum", "unset Checksums", "not from here", "comm.Alloc"} {
		if strings.Count(got, "\n") != 2 || strings.Count(got, want) != 1 {
			t.Errorf("want two lines, and %q once: %s", want, got)
		}
	}
}

// A bound of the transport may be reached for a short or a long time. The exposure must be tried
// again, each time after more receives. It must be logged only if it fails repeatedly.
func TestExhaustedExposureIsTriedAgain(t *testing.T) {
	for name, c := range map[string]struct{ failures, steps, tries, lines int }{
		"for a moment":              {2, 20, 3, 0},
		"for long":                  {7, 300, 8, 1},
		"for ever":                  {math.MaxInt, 5000, 13, 1},
		"until a receive is closed": {warnAfter, 40, warnAfter + 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var log strings.Builder
			tries := 0
			s := newStepperOver(t, Config{Log: slog.New(slog.NewTextHandler(&log, nil))},
				hookExpose(func(x transport.Exposer, id uint32, buf []byte) (transport.Token, func(), error) {
					if id != transport.NoNotify {
						return x.Expose(id, buf)
					}
					if tries++; tries <= c.failures {
						return transport.Token{}, nil, fault.New(fault.Exhausted, "expose", 1, "there is no slot")
					}
					return x.Expose(id, buf)
				}))
			s.one(20_000) // there is a Conn
			pr := s.prepare(0, make([]byte, 20_000))
			for range c.steps {
				s.to.prepareFor(0, "0")
			}
			if got, want := pr.Exposed(), c.failures < math.MaxInt; got != want || tries != c.tries {
				t.Errorf("exposed: got %v after %d tries, want %v after %d", got, tries, want, c.tries)
			}
			if got := log.String(); strings.Count(got, "\n") != c.lines || c.lines > 0 && !strings.Contains(got, "no slot") {
				t.Errorf("the log: got %q, want %d lines", got, c.lines)
			}
			s.repeat("a step, in whatever way", func() bool { return true }, 20_000)
			s.close(pr)
		})
	}
}

// If the peer is lost while its buffer is being exposed, the name must be free again at once.
func TestBufferOfALostPeerIsFreeAfterItsExposure(t *testing.T) {
	var s *stepper
	hidden := false
	s = newStepperOver(t, Config{}, hookExpose(func(x transport.Exposer, id uint32, buf []byte) (transport.Token, func(), error) {
		token, hide, err := x.Expose(id, buf)
		if id == transport.NoNotify {
			p := s.engines[1].peers[0]
			p.e.mu.Lock()
			p.gone = fault.PeerLost // FailPeer has set it, and has not closed the link yet
			p.e.mu.Unlock()
		}
		return token, func() { hidden = true; hide() }, err
	}))
	s.one(20_000)
	pr := s.prepare(0, make([]byte, 20_000))
	e := s.engines[1]
	e.mu.Lock()
	defer e.unlock()
	if n := len(pr.peer.prepared); n != 0 || pr.state != preparedClosed || !hidden {
		t.Errorf("%d names have a buffer; it is in state %d, want %d; hidden %v", n, pr.state, preparedClosed, hidden)
	}
}

// A tensor in a buffer that is being closed is moved to other memory. A receive that matches the
// tensor during the move must get it, whatever ends meanwhile. If the step ends during the move and
// no receive has matched, the tensor must be dropped.
func TestTensorThatIsBeingMovedIsReceived(t *testing.T) {
	for name, end := range map[string]func(s *stepper) (received error){
		"the sender is lost":  func(s *stepper) error { s.engines[1].peers[0].abandon(fault.PeerLost); return nil },
		"the step ends":       func(s *stepper) error { s.to.endStep(s.step); return nil },
		"the context ends":    func(s *stepper) error { s.to.Close(errEnded); return nil },
		"nothing else":        func(s *stepper) error { return nil },
		"the buffer is small": func(s *stepper) error { return fault.Misuse },
	} {
		for _, posted := range []bool{false, true} { // whether the receive is posted before the end
			t.Run(fmt.Sprintf("%s, posted %v", name, posted), func(t *testing.T) {
				var during func()
				s := newStepperOver(t, Config{}, hookExpose(func(x transport.Exposer, id uint32, buf []byte) (transport.Token, func(), error) {
					token, hide, err := x.Expose(id, buf)
					if id != transport.NoNotify {
						return token, hide, err
					}
					return token, func() { hide(); during() }, err
				}))
				buf := make([]byte, 20_000)
				pr := s.prepare(0, buf)
				s.repeat("a step without an offer", s.direct(), 20_000)
				s.step++
				if err := <-s.send(0, 20_000); err != nil {
					t.Fatal(err)
				}
				e := s.engines[1]
				for arrived := false; !arrived; {
					s.engines[1].m.Link(0).Progress()
					e.mu.Lock()
					arrived = pr.msg != nil
					e.mu.Unlock()
				}
				into := make([]byte, 20_000)
				if strings.Contains(name, "small") {
					into = into[:1]
				}
				received := make(chan error, 1)
				var got Tensor
				recv := func() {
					s.to.RecvNamedAsync(s.step, 0, "0", into, func(t Tensor, err error) { got = t; received <- err })
				}
				var want error
				during = func() {
					if posted {
						recv()
					}
					want = end(s)
				}
				s.close(pr)
				if !posted {
					switch name {
					case "the step ends", "the context ends": // the tensor is dropped
						e.mu.Lock()
						defer e.unlock()
						if held := e.peers[0].heldCredit; s.to.table.arrivals.first != nil || held != 0 {
							t.Errorf("a message of an ended step is in the table, or its credit of %d bytes was not returned", held)
						}
						return
					}
					recv()
				}
				clear(buf)
				if err := <-received; !errors.Is(err, want) {
					t.Fatalf("got %v, want %v", err, want)
				}
				if want == nil && !bytes.Equal(got.Data, content(s.step, 0, 20_000)) {
					t.Error("the receive got other bytes")
				}
			})
		}
	}
}

// abandon does the first half of FailPeer.
func (p *peer) abandon(err error) {
	p.e.mu.Lock()
	defer p.e.unlock()
	p.gone = err
	for _, mc := range p.e.contexts {
		mc.failSource(p, err)
	}
}

func TestPreparedRecvFromSelfComesTheOrdinaryWay(t *testing.T) {
	s := newStepper(t, Config{})
	pr, err := s.to.PrepareNamed(1, "self", make([]byte, 20_000))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.to.SendNamed(1, 1, "self", Tensor{Data: content(1, 0, 20_000)}, nil); err != nil {
		t.Fatal(err)
	}
	got, err := s.to.RecvNamed(t.Context(), nil, 1, 1, "self", nil)
	if err != nil || !bytes.Equal(got.Data, content(1, 0, 20_000)) || pr.Exposed() {
		t.Errorf("got %d bytes, %v; exposed %v", len(got.Data), err, pr.Exposed())
	}
	s.close(pr)
}

// connErrAfter makes progress on the link, and returns the error with which the link failed, or
// nil.
func (p *peer) connErrAfter() error {
	p.link.Progress()
	p.e.mu.Lock()
	defer p.e.mu.Unlock()
	return p.connErr
}

// A peer that breaks the rules about prepared buffers must lose its link. Nothing may be read or
// freed twice.
func TestFalseFramesAboutPreparedBuffersEndTheLink(t *testing.T) {
	written := frameHeader{kind: kindWritten, flags: flagNamed, id: 1, context: 5, size: 20_000, name: 1}
	with := func(change func(*frameHeader)) frameHeader {
		h := written
		change(&h)
		return h
	}
	prepare := frameHeader{kind: kindPrepare, flags: flagToken, id: 7, context: 5, size: 20_000}
	for name, h := range map[string]frameHeader{
		"written: no such buffer":         with(func(h *frameHeader) { h.id = 2 }),
		"written: too large":              with(func(h *frameHeader) { h.size++ }),
		"written: another name":           with(func(h *frameHeader) { h.name = 2 }),
		"written: another context":        with(func(h *frameHeader) { h.context = 6 }),
		"written: a second time":          written,
		"prepare: the same id":            with(func(h *frameHeader) { *h = prepare; h.context = 9 }),
		"prepare: the same tensor":        with(func(h *frameHeader) { *h = prepare; h.id = 8 }),
		"prepare: no token":               with(func(h *frameHeader) { *h = prepare; h.id, h.flags = 8, 0 }),
		"release: no such buffer":         {kind: kindRelease, id: 9},
		"release: not in use":             {kind: kindRelease, id: 7},
		"unprepare: no such buffer":       {kind: kindUnprepare, id: 9},
		"unprepare ack: no such buffer":   {kind: kindUnprepareAck, id: 9},
		"unprepare ack: not asked for it": {kind: kindUnprepareAck, id: 1},
	} {
		t.Run(name, func(t *testing.T) {
			e := newWithSilentPeer(t)
			p, mc := e.peers[1], e.Open(5, []int{0, 1})
			e.Open(6, []int{0, 1})
			e.startArrival(1, frameHeader{kind: kindName, id: 1, size: 3})()
			if _, err := mc.PrepareNamed(1, zeroName, make([]byte, 20_000)); err != nil {
				t.Fatal(err)
			}
			e.startArrival(1, prepare)()
			if h == written {
				e.startArrival(1, h)()
			}
			if err := p.connErrAfter(); err != nil {
				t.Fatal(err)
			}
			e.startArrival(1, h)()
			var err error
			for end := time.Now().Add(10 * time.Second); err == nil && time.Now().Before(end); err = p.connErrAfter() {
			}
			if !errors.Is(err, fault.LinkLost) {
				t.Errorf("got %v, want %v", err, fault.LinkLost)
			}
		})
	}
}

// A release during a write would let two sends write into the buffer at once, so it must end the
// link.
func TestReleaseOfABufferThatIsBeingWrittenEndsTheLink(t *testing.T) {
	e := newWithSilentPeer(t)
	p := e.peers[1]
	e.mu.Lock()
	rb := &remoteBuffer{id: 1, filled: true, writer: e.getRequest()}
	p.remote[1] = rb
	e.unlock()
	e.startArrival(1, frameHeader{kind: kindRelease, id: 1})()
	var err error
	for end := time.Now().Add(10 * time.Second); err == nil && time.Now().Before(end); err = p.connErrAfter() {
	}
	if !errors.Is(err, fault.LinkLost) || !rb.filled {
		t.Errorf("got %v, want %v; used %v", err, fault.LinkLost, rb.filled)
	}
}

func TestStaticPlanPreparesWhatRecurs(t *testing.T) {
	s := newStepper(t, Config{Static: 1 << 22})
	small := []int{20_000, 30_000, 700_000}
	s.repeat("a step without offers", s.direct(), small...)
	grown := []int{20_000, 1 << 20, 700_000, 50_000}
	s.repeat("a step without offers, after some have grown", s.direct(), grown...)
	s.repeat("a step without offers, after they have shrunk", s.direct(), small...)
}

// Where no memory can be exposed, the plan must allocate nothing and use nothing of its limit.
func TestStaticPlanAllocatesNothingThatCannotBeExposed(t *testing.T) {
	tries := 0
	refuse := hookExpose(func(_ transport.Exposer, id uint32, _ []byte) (transport.Token, func(), error) {
		if id == transport.NoNotify {
			tries++
		}
		return transport.Token{}, nil, fault.New(fault.Refused, "expose", 1, "the memory is not from here")
	})
	expose := func(w transport.Transport) transport.Transport { return w }
	for name, c := range map[string]struct {
		wrap     func(transport.Transport) transport.Transport
		checksum bool
		from     int
		tries    int // exposures that the plan tries, for all tensors together
		lines    int // in the log
	}{
		"no exposer":        {withoutExposer, false, 0, 0, 1},
		"checksums":         {expose, true, 0, 0, 1},
		"to itself":         {expose, false, 1, 0, 0},
		"memory of its own": {refuse, false, 0, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var log strings.Builder
			tries = 0
			s := newStepperOver(t, Config{Static: 1 << 22, Checksum: c.checksum, Log: slog.New(slog.NewTextHandler(&log, nil))}, c.wrap)
			if c.from == 1 {
				s.from = s.to
			}
			for size := 40_000; size < 43_000; size += 1000 { // the tensors grow
				for range 2 * recursAfter {
					s.step++
					for i := range 3 {
						if err := s.from.SendNamed(s.step, 1, fmt.Sprint(i), Tensor{Data: content(s.step, i, size)}, nil); err != nil {
							t.Fatal(err)
						}
						if _, err := s.to.RecvNamed(t.Context(), nil, s.step, c.from, fmt.Sprint(i), nil); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			e := s.engines[1]
			if n := len(e.peers[c.from].prepared); n != 0 || e.plan.reserved != 0 || tries != c.tries {
				t.Errorf("%d receives are prepared, %d bytes reserved, %d buffers tried, want none, 0 and %d", n, e.plan.reserved, tries, c.tries)
			}
			if got := strings.Count(log.String(), "\n"); got != c.lines {
				t.Errorf("got %d lines in the log, want %d: %s", got, c.lines, log.String())
			}
		})
	}
}

// If the program has prepared the receive of a tensor itself, the tensor must use nothing of the
// plan's limit.
func TestStaticPlanKeepsNothingForAReceiveThatIsPrepared(t *testing.T) {
	s := newStepper(t, Config{Static: 1 << 22})
	s.prepare(0, make([]byte, 100))
	for range 2 * recursAfter {
		s.one(40_000)
	}
	plan := s.engines[1].plan
	if size, _ := plan.reserve(planKey{5, 0, "0"}); plan.reserved != 0 || size != 0 {
		t.Errorf("%d bytes are reserved, want 0; a receive of %d bytes is to be prepared, want none", plan.reserved, size)
	}
	for range recursAfter {
		s.one(50_000)
	}
	if size, _ := plan.reserve(planKey{5, 0, "0"}); size != 50_000 {
		t.Errorf("after the tensor has grown, %d bytes are to be prepared, want 50000", size)
	}
}

func TestWithoutAStaticPlanTensorsAreOffered(t *testing.T) {
	s := newStepper(t, Config{})
	for range 10 {
		s.one(20_000, 30_000)
	}
	if got := s.offers(); got != 20 {
		t.Errorf("%d offers, want 20", got)
	}
}

// The plan must serve callbacks like receives that wait: it prepares a buffer when the program
// registers the callback.
func TestStaticPlanServesCallbacks(t *testing.T) {
	s := newStepper(t, Config{Static: 1 << 22})
	direct := s.direct()
	for range 1000 {
		s.step++
		got := make(chan Tensor, 1)
		s.to.RecvNamedAsync(s.step, 0, "0", nil, func(t Tensor, err error) {
			if err != nil {
				s.Error(err)
			}
			got <- t
		})
		sent := s.send(0, 40_000)
		for tensor := (Tensor{}); tensor.Data == nil; {
			select {
			case tensor = <-got:
				if !bytes.Equal(tensor.Data, content(s.step, 0, 40_000)) {
					t.Fatal("the callback got other bytes")
				}
				tensor.Release()
			default:
				s.engines[0].m.Link(1).Progress()
				s.engines[1].m.Link(0).Progress()
			}
		}
		<-sent
		if direct() {
			return
		}
	}
	t.Error("no callback got a tensor that was written directly in 1000 steps")
}

func TestStaticPlanReservesWithinItsLimit(t *testing.T) {
	const kb = 1 << 10
	type sizes = []int // the sizes of one tensor, step by step; 0: it is not sent in this step
	for name, c := range map[string]struct {
		limit int64
		steps [3]sizes // of three tensors
		want  [3]int
	}{
		"too early":             {1 << 20, [3]sizes{{20 * kb, 20 * kb}}, [3]int{}},
		"three steps":           {1 << 20, [3]sizes{{20 * kb, 20 * kb, 20 * kb}, {30 * kb, 30 * kb, 30 * kb}}, [3]int{20 * kb, 30 * kb}},
		"only what recurs":      {1 << 20, [3]sizes{{20 * kb, 20 * kb, 20 * kb}, {0, 30 * kb, 30 * kb}}, [3]int{20 * kb}},
		"it shrinks":            {1 << 20, [3]sizes{{20 * kb, 16 * kb, 17 * kb}}, [3]int{20 * kb}},
		"it grows":              {1 << 20, [3]sizes{{20 * kb, 20 * kb, 21 * kb}}, [3]int{}},
		"it has grown":          {1 << 20, [3]sizes{{20 * kb, 21 * kb, 21 * kb, 20 * kb}}, [3]int{21 * kb}},
		"too small to expose":   {1 << 20, [3]sizes{{exposeFrom - 1, exposeFrom - 1, exposeFrom - 1}}, [3]int{}},
		"what does not fit":     {60 * kb, [3]sizes{{20 * kb, 20 * kb, 20 * kb}, {50 * kb, 50 * kb, 50 * kb}, {40 * kb, 40 * kb, 40 * kb}}, [3]int{20 * kb, 0, 40 * kb}},
		"exactly what is there": {20 * kb, [3]sizes{{20 * kb, 20 * kb, 20 * kb}}, [3]int{20 * kb}},
	} {
		sp := newStaticPlan(c.limit)
		id := func(i int) planKey { return planKey{1, 0, fmt.Sprint(i)} }
		for i, tensor := range c.steps {
			for step, size := range tensor {
				if size > 0 {
					sp.observe(id(i), uint64(step), size)
				}
			}
		}
		sum := int64(0)
		for i, want := range c.want {
			got, _ := sp.reserve(id(i))
			if again, _ := sp.reserve(id(i)); got != want || again != 0 {
				t.Errorf("%s: tensor %d: got %d, then %d bytes, want %d, then none", name, i, got, again, want)
			}
			sum += int64(got)
		}
		if sp.reserved != sum || sum > c.limit {
			t.Errorf("%s: %d bytes are reserved, %d counted, of %d", name, sum, sp.reserved, c.limit)
		}
		sp.drop(1)
		if sp.reserved != 0 || len(sp.tensors) != 0 {
			t.Errorf("%s: %d bytes and %d tensors are left of a context that has ended", name, sp.reserved, len(sp.tensors))
		}
	}
}

// Names that do not recur, such as names that contain the step's number, must not fill the plan,
// and must not prevent it from serving names that recur.
func TestStaticPlanForgetsWhatDoesNotRecur(t *testing.T) {
	sp := newStaticPlan(1 << 20)
	recurs := planKey{1, 0, "recurs"}
	for step := range uint64(recursAfter) {
		sp.observe(recurs, step, 20_000)
	}
	if size, _ := sp.reserve(recurs); size != 20_000 {
		t.Fatalf("got %d bytes, want 20000", size)
	}
	for i := range 3 * maxWatched {
		sp.observe(planKey{1, 0, fmt.Sprint("grad/step", i)}, uint64(i), 20_000)
	}
	late := planKey{1, 0, "late"}
	for step := range uint64(recursAfter) {
		sp.observe(late, math.MaxUint32+step, 20_000)
	}
	if size, _ := sp.reserve(late); size != 20_000 || len(sp.tensors) > maxWatched {
		t.Errorf("a tensor that recurs later got %d bytes; %d are watched, want at most %d", size, len(sp.tensors), maxWatched)
	}
	if sp.tensors[recurs] == nil {
		t.Error("a tensor that has a buffer was forgotten")
	}
}
