package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// waitForOffers returns when n offers of a rank have arrived and wait in tables.
func (e *Engine) waitForOffers(from, n int) {
	for arrived := 0; arrived < n; {
		e.m.Link(from).Progress()
		e.mu.Lock()
		arrived = len(e.peers[from].queuedOffers)
		e.mu.Unlock()
	}
}

// closedBy reports whether err says that the given rank, and nobody else, has closed.
func closedBy(err error, rank int) bool {
	var f *fault.Error
	return errors.As(err, &f) && f.Kind == fault.Closed && len(f.Peers) == 1 && f.Peers[0].Rank == rank
}

// A sender must learn that its message was not received. It learns this from the call that waits,
// from done or from Close. It does not matter whether the message arrives before or after the other
// rank has closed.
func TestSendersLearnThatMessagesWereNotReceived(t *testing.T) {
	const size = 100_000
	ends := map[string]func(e *Engine, mc *MatchContext) error{
		"the rank closes":            func(e *Engine, _ *MatchContext) error { return e.Drain(t.Context()) },
		"the communicator is closed": func(_ *Engine, mc *MatchContext) error { mc.Close(errEnded); return nil },
	}
	for name, end := range ends {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, late %v", name, late), func(t *testing.T) {
				tm := newTeam(t, 2)
				tm.connect(t, 0, 1)
				from, to := tm.engines[0].Open(5, []int{0, 1}), tm.engines[1].Open(5, []int{0, 1})
				if late {
					if err := end(tm.engines[1], to); err != nil {
						t.Fatal(err)
					}
				}
				named := make(chan error, 1)
				waits := from.PostSend(1, 3, 0, make([]byte, size), Rendezvous)
				if err := from.SendNamed(1, 1, "w", Tensor{Data: make([]byte, size)}, func(err error) { named <- err }); err != nil {
					t.Fatal(err)
				}
				if !late {
					if err := from.Send(t.Context(), nil, 1, 4, 0, make([]byte, size), Rendezvous); err != nil {
						t.Fatal(err)
					}
					tm.engines[1].waitForOffers(0, 3)
					if err := end(tm.engines[1], to); err != nil {
						t.Fatal(err)
					}
				}
				if err := tm.engines[0].Wait(t.Context(), waits, nil); !closedBy(err, 1) {
					t.Errorf("the send that waits: got %v, want closed by rank 1", err)
				}
				if err := <-named; !closedBy(err, 1) {
					t.Errorf("the tensor: got %v, want closed by rank 1", err)
				}
				if late {
					return
				}
				if err := tm.engines[0].Drain(t.Context()); !closedBy(err, 1) {
					t.Errorf("the send that was accepted: got %v, want closed by rank 1", err)
				}
			})
		}
	}
}

// An eager message that was not received has already left its sender. Close must report it all the
// same.
func TestCloseReportsEagerMessagesThatWereNotReceived(t *testing.T) {
	for _, late := range []bool{false, true} {
		tm := newTeam(t, 2)
		tm.connect(t, 0, 1)
		from := tm.engines[0].Open(5, []int{0, 1})
		tm.engines[1].Open(5, []int{0, 1})
		send := func() {
			for range 3 {
				if err := from.Send(t.Context(), nil, 1, 4, 0, make([]byte, 10), Eager); err != nil {
					t.Fatal(err)
				}
			}
		}
		closeReceiver := func() {
			if err := tm.engines[1].Drain(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if late {
			closeReceiver()
			send()
		} else {
			send()
			from.PostSend(1, 3, 0, make([]byte, 10), Rendezvous)
			// By then the messages before the offer have arrived, too.
			tm.engines[1].waitForOffers(0, 1)
			closeReceiver()
		}
		if err := tm.engines[0].Drain(t.Context()); !closedBy(err, 1) {
			t.Errorf("late %v: got %v, want closed by rank 1", late, err)
		}
		p := tm.engines[1].peers[0]
		p.e.mu.Lock()
		if p.heldCredit != 0 {
			t.Errorf("late %v: %d bytes of credit were not returned", late, p.heldCredit)
		}
		p.e.unlock()
	}
}

// Two ranks that close must not wait for each other to receive. This holds for messages of any size
// and for messages beyond the credit.
func TestRanksThatCloseDoNotWaitForEachOthersReceives(t *testing.T) {
	for _, size := range []int{1000, 1 << 20} {
		tm := newTeamWith(t, 2, Config{Credit: minCredit}, func(w transport.Transport) transport.Transport { return w })
		var drains sync.WaitGroup
		for r, e := range tm.engines {
			mc := e.Open(5, []int{0, 1})
			for sent := 0; sent < 3*minCredit; sent += size {
				if err := mc.Send(t.Context(), nil, 1-r, 3, 0, make([]byte, size), Auto); err != nil {
					t.Fatal(err)
				}
			}
		}
		for r, e := range tm.engines {
			drains.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				if err := e.Drain(ctx); err != nil && !closedBy(err, 1-r) {
					t.Errorf("rank %d, messages of %d bytes: got %v, want closed by rank %d", r, size, err, 1-r)
				}
			})
		}
		drains.Wait()
	}
}

// After Drain, a rank must still send, and its receives must still get their messages.
func TestDrainDeliversToPostedReceives(t *testing.T) {
	tm := newTeam(t, 2)
	tm.connect(t, 0, 1)
	from, to := tm.engines[0].Open(5, []int{0, 1}), tm.engines[1].Open(5, []int{0, 1})
	if err := tm.engines[1].Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{10, 100_000} {
		recv := to.PostRecv(0, 3, 0, make([]byte, size))
		send := from.PostSend(1, 3, 0, make([]byte, size), Auto)
		for _, req := range []*Request{recv, send} {
			if err := req.e.Wait(t.Context(), req, nil); err != nil {
				t.Errorf("a message of %d bytes: %v", size, err)
			}
		}
	}
}

// When the receiver has aborted a step, a tensor of the step is not received. Its send must end
// with the cause, which a flood carries.
func TestSendOfAnAbortedStepEndsWithItsCause(t *testing.T) {
	// If late is set, the offer arrives after the receiver has learned of the end.
	for _, late := range []bool{false, true} {
		tm := newTeam(t, 2)
		tm.connect(t, 0, 1)
		from, to := tm.engines[0].Open(5, []int{0, 1}), tm.engines[1].Open(5, []int{0, 1})
		abort := func(e *Engine) { e.endStep(stepID{5, 1}, 1, "a cause") }
		if late {
			abort(tm.engines[1])
		}
		ended := make(chan error, 2)
		if err := from.SendNamed(1, 1, "w", Tensor{Data: make([]byte, 100_000)}, func(err error) { ended <- err }); err != nil {
			t.Fatal(err)
		}
		if !late {
			tm.engines[1].waitForOffers(0, 1)
			abort(to.e)
		}
		e := tm.engines[0]
		for dropped := false; !dropped; {
			e.m.Link(1).Progress()
			e.mu.Lock()
			dropped = len(e.peers[1].sentOffers) == 0
			e.mu.Unlock()
		}
		if len(ended) > 0 {
			t.Fatalf("late %v: the send ended before its rank knows why: %v", late, <-ended)
		}
		abort(e)
		if err := <-ended; !errors.Is(err, fault.Canceled) || err.Error() != e.steps.ended[stepID{5, 1}].Error() {
			t.Errorf("late %v: got %v, want the error of the step", late, err)
		}
	}
}

// When the receiver ends a step, the flood of EndStep may be lost, or may reach a rank that has
// closed the context. The send must still end, and Drain must not wait for it.
func TestSendOfAnEndedStepDoesNotNeedTheFlood(t *testing.T) {
	const step = 1
	type ranks struct {
		from, to *MatchContext
		drain    func()
	}
	// The Meshes of a team have no Events, so the flood of EndStep changes nothing on other ranks.
	end := func(r ranks) { r.to.EndStep(step, nil) }
	dropped := func(r ranks) {
		end(r)
		e := r.from.e
		for waits := true; waits; {
			e.m.Link(1).Progress()
			e.mu.Lock()
			waits = len(e.peers[1].sentOffers) > 0
			e.mu.Unlock()
		}
	}
	cases := map[string]func(r ranks){
		"the context is closed before the drop": func(r ranks) { r.from.Close(errEnded); end(r) },
		"the context is closed after the drop":  func(r ranks) { dropped(r); r.from.Close(errEnded) },
		"the rank closes before the drop": func(r ranks) {
			r.drain()
			for draining := false; !draining; {
				r.from.e.mu.Lock()
				draining = r.from.e.draining
				r.from.e.mu.Unlock()
			}
			end(r)
		},
		"the rank closes after the drop": dropped,
	}
	for name, run := range cases {
		t.Run(name, func(t *testing.T) {
			tm := newTeam(t, 2)
			tm.connect(t, 0, 1)
			r := ranks{from: tm.engines[0].Open(5, []int{0, 1}), to: tm.engines[1].Open(5, []int{0, 1})}
			drained := make(chan error, 1)
			r.drain = sync.OnceFunc(func() {
				go func() {
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
					defer cancel()
					drained <- r.from.e.Drain(ctx)
				}()
			})
			sent := make(chan error, 1)
			if err := r.from.SendNamed(step, 1, "w", Tensor{Data: make([]byte, 100_000)}, func(err error) { sent <- err }); err != nil {
				t.Fatal(err)
			}
			tm.engines[1].waitForOffers(0, 1)
			run(r)
			r.drain()
			if err := <-drained; err != nil {
				t.Fatalf("Drain: %v", err)
			}
			if err := <-sent; !closedBy(err, 1) {
				t.Errorf("the tensor: got %v, want closed by rank 1", err)
			}
		})
	}
}

// The flood of EndStep must end the sends of a context that this rank has closed. The sends must
// fail with the cause that the flood carries.
func TestEndOfAStepEndsSendsOfAClosedContext(t *testing.T) {
	tm := newTeam(t, 2)
	tm.connect(t, 0, 1)
	e := tm.engines[0]
	from := e.Open(5, []int{0, 1})
	ended := make(chan error, 1)
	if err := from.SendNamed(1, 1, "w", Tensor{Data: make([]byte, 100_000)}, func(err error) { ended <- err }); err != nil {
		t.Fatal(err)
	}
	from.Close(errEnded)
	e.endStep(stepID{5, 2}, 1, "another step")
	e.endStep(stepID{5, 1}, 1, "a cause")
	select {
	case err := <-ended:
		if !errors.Is(err, fault.Canceled) {
			t.Errorf("got %v, want the error of the step", err)
		}
	default:
		t.Error("the send goes on")
	}
}

// A link must carry any number of names. A name that has lost its number must be sent again when it
// is used again.
func TestLinkCarriesAnyNumberOfNames(t *testing.T) {
	s := newStepper(t, Config{})
	const names = maxNames + 1000
	for round := range 2 {
		// The first round uses all names, and the second uses some of them again.
		for i := 0; i < names; i += 1 + round*(names/500) {
			s.step++
			sent := s.send(i, 8)
			s.recv(i, 8, nil)
			<-sent
		}
	}
	for r, e := range s.engines {
		p := e.peers[1-r]
		e.mu.Lock()
		if len(p.namesOut) > maxNames || len(p.outNames) > maxNames || len(p.namesIn) > maxNames {
			t.Errorf("rank %d: %d, %d and %d names are remembered, want at most %d", r, len(p.namesOut), len(p.outNames), len(p.namesIn), maxNames)
		}
		e.mu.Unlock()
	}
}

func TestNameNumbersAreBounded(t *testing.T) {
	for _, id := range []uint32{0, maxNames + 1} {
		e := newWithSilentPeer(t)
		e.startArrival(1, frameHeader{kind: kindName, id: id, size: 3})()
		if err := e.peers[1].connErrAfter(); !errors.Is(err, fault.LinkLost) {
			t.Errorf("name %d: got %v, want %v", id, err, fault.LinkLost)
		}
	}
}
