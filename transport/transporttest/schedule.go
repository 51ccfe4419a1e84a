package transporttest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/tutti-go/tutti/transport"
)

func scheduleTests() []testCase {
	var all []testCase
	for seed := range uint64(6) {
		all = append(all, testCase{fmt.Sprintf("RandomSchedule/Seed%d", seed), func(t *testing.T, mk Maker) {
			Schedule(t, mk, seed, scaled(1500))
		}})
	}
	return all
}

// Schedule performs random steps on a cluster of three: it sends frames of all kinds, polls an
// endpoint a few times, arms an endpoint, or exposes memory. Then it closes some Conns with frames
// in flight. Each frame must arrive once, whole and in order, and its Done must run once. On a
// closed Conn only a prefix of the frames must arrive. The seed determines every step, so a failure
// can be reproduced. A fuzz target can call Schedule as well.
func Schedule(tb testing.TB, mk Maker, seed uint64, steps int) {
	w := newCluster(tb, mk, 3)
	s := &schedule{cluster: w, rng: rand.New(rand.NewPCG(seed, 7))}
	for _, l := range [][2]int{{0, 1}, {1, 0}, {1, 2}, {2, 0}} {
		near, far := w.link(l[0], l[1])
		s.directions = append(s.directions, &direction{from: near, to: far}, &direction{from: far, to: near})
	}
	for range steps {
		s.step()
	}
	s.finish()
}

// budget bounds the bytes of one schedule.
const budget = 48 << 20

type schedule struct {
	*cluster
	rng        *rand.Rand
	directions []*direction
	bytes      int
}

// A direction is one direction of a link.
type direction struct {
	from, to *endpoint
	frames   []*sentFrame

	mu     sync.Mutex   // guards unsent
	unsent []*sentFrame // frames that a Done, on any goroutine, has asked to send
}

// sendUnsent sends the frames in unsent. Only the test's goroutine calls it, so the order of the
// frames is known.
func (w *direction) sendUnsent() {
	w.mu.Lock()
	due := w.unsent
	w.unsent = nil
	w.mu.Unlock()
	for _, f := range due {
		w.frames = append(w.frames, f)
		w.from.Send(&f.Frame)
	}
}

// step performs one random operation on a random link.
func (s *schedule) step() {
	way := s.directions[s.rng.IntN(len(s.directions))]
	way.sendUnsent()
	switch s.rng.IntN(10) {
	case 0, 1, 2:
		s.send(way)
	case 3:
		s.sendParts(way)
	case 4:
		s.sendExposed(way)
	case 5:
		way.from.Arm(func() {})
	default:
		for range s.rng.IntN(12) {
			way.to.progress()
		}
	}
}

// body returns a random body, mostly a small one.
func (s *schedule) body() []byte {
	most := []int{0, 16, 300, 5000, 70_000, 900_000}[s.rng.IntN(6)]
	if s.bytes > budget {
		most = 16
	}
	b := pattern(s.rng.IntN(most+1), s.rng.Uint64())
	s.bytes += len(b)
	return b
}

func (s *schedule) head() []byte {
	return pattern(s.rng.IntN(transport.MaxHead+1), s.rng.Uint64())
}

// send sends a frame. The Done of one frame in four adds another frame to unsent.
func (s *schedule) send(w *direction) {
	if s.rng.IntN(4) > 0 {
		w.frames = append(w.frames, w.from.send(s.head(), s.body()))
		return
	}
	next := s.frame(s.head(), s.body(), nil)
	f := s.frame(s.head(), s.body(), func(error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.unsent = append(w.unsent, next)
	})
	w.frames = append(w.frames, f)
	w.from.Send(&f.Frame)
}

func (s *schedule) sendParts(w *direction) {
	body := s.body()
	cuts := make([]int, s.rng.IntN(5))
	for i := range cuts {
		cuts[i] = s.rng.IntN(len(body) + 1)
	}
	w.frames = append(w.frames, w.from.sendParts(s.head(), body, cuts...))
}

// sendExposed exposes memory at the far end, and sends a frame into it.
func (s *schedule) sendExposed(w *direction) {
	if _, ok := w.to.Conn.(transport.Exposer); !ok {
		return
	}
	if _, hide, err := w.to.Conn.(transport.Exposer).Expose(transport.NoNotify, make([]byte, 1)); err != nil {
		return // the Conn refuses such memory
	} else {
		hide()
	}
	id, body := uint32(len(w.to.sink.exposed)+1), s.body()
	to, release := w.to.expose(id, make([]byte, len(body)+s.rng.IntN(9)))
	s.tb.Cleanup(release)
	w.frames = append(w.frames, w.from.sendTo(to, id, s.head(), body))
}

// finish closes half of the links with frames in flight. On the other links it waits until all
// frames are delivered.
func (s *schedule) finish() {
	for i := 0; i < len(s.directions); i += 4 {
		s.directions[i].from.Close()
	}
	s.until("the end of the schedule", func() bool {
		for _, w := range s.directions {
			w.sendUnsent()
			if !allDone(w.frames) || w.to.err == nil && len(w.to.sink.got) < len(w.frames) {
				return false
			}
		}
		return true
	})
	for i, w := range s.directions {
		got := w.to.sink.got
		switch i % 4 {
		case 0: // the sender has closed
			s.arePrefix(w.frames, got)
		case 1: // the receiver has closed, and need not have received all frames that had arrived
			s.arePrefix(w.frames[:min(len(got), len(w.frames))], got)
		default:
			s.compare(w.frames, got)
		}
	}
	s.checkExposed()
}

// checkExposed checks the exposed memory again after all frames have arrived.
func (s *schedule) checkExposed() {
	for i, w := range s.directions {
		for _, got := range w.to.sink.got {
			if got.direct && !bytes.Equal(got.body, w.to.sink.exposed[got.id][:len(got.body)]) {
				s.tb.Errorf("way %d: exposed memory %d changed", i, got.id)
			}
		}
	}
}
