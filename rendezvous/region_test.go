package rendezvous

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// days lets tensors come, each step those of one line, and returns what is planned at
// the beginning of the next step.
func days(now []berth, most uint64, steps ...map[uint32]uint64) ([]berth, uint64) {
	var c census
	for step, sizes := range steps {
		for name, size := range sizes {
			c.note(tensorID{1, name}, uint64(step), size, 0)
		}
	}
	return c.layOut(index(now), now, most)
}

func TestWhatRecursIsLaidOut(t *testing.T) {
	type step = map[uint32]uint64
	at := func(name uint32, off, size uint64) berth {
		return berth{id: tensorID{1, name}, off: off, size: size}
	}
	for name, c := range map[string]struct {
		now   []berth
		most  uint64
		steps []step
		want  []berth
	}{
		"too early":                   {nil, 1000, []step{{1: 100}, {1: 100}}, nil},
		"three steps":                 {nil, 1000, []step{{1: 100, 2: 50}, {1: 100, 2: 50}, {1: 100, 2: 50}}, []berth{at(1, 0, 100), at(2, 128, 50)}},
		"only what recurs":            {nil, 1000, []step{{1: 100}, {1: 100, 2: 50}, {1: 100, 2: 50}}, []berth{at(1, 0, 100)}},
		"it shrinks":                  {nil, 1000, []step{{1: 100}, {1: 10}, {1: 20}}, []berth{at(1, 0, 100)}},
		"it grows":                    {nil, 1000, []step{{1: 100}, {1: 100}, {1: 101}}, nil},
		"it has grown":                {nil, 1000, []step{{1: 100}, {1: 101}, {1: 101}, {1: 100}}, []berth{at(1, 0, 101)}},
		"laid out already":            {[]berth{at(1, 0, 100)}, 1000, []step{{1: 100}, {1: 100}, {1: 100}}, nil},
		"laid out with another":       {[]berth{at(1, 0, 100), at(2, 128, 9)}, 1000, []step{{1: 100}, {1: 100}, {1: 100}}, nil},
		"laid out too small":          {[]berth{at(1, 0, 99)}, 1000, []step{{1: 100}, {1: 100}, {1: 100}}, []berth{at(1, 0, 100)}},
		"what does not fit is left":   {nil, 200, []step{{1: 100, 2: 150, 3: 40}, {1: 100, 2: 150, 3: 40}, {1: 100, 2: 150, 3: 40}}, []berth{at(1, 0, 100), at(3, 128, 40)}},
		"what does not fit, for ever": {[]berth{at(1, 0, 100)}, 100, []step{{1: 100, 2: 9}, {1: 100, 2: 9}, {1: 100, 2: 9}}, nil},
	} {
		got, n := days(c.now, c.most, c.steps...)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
		if n > c.most {
			t.Errorf("%s: %d bytes, of at most %d", name, n, c.most)
		}
		if back, err := parseRegion(putRegion(got)); err != nil || !slices.Equal(back, append([]berth{}, got...)) {
			t.Errorf("%s: came back as %v, %v", name, back, err)
		}
	}
}

func TestWhatComesNoMoreIsForgotten(t *testing.T) {
	var c census
	c.note(tensorID{1, 1}, 0, 9, 0)
	for step := range uint64(2*forgotten + 2) {
		c.note(tensorID{1, 2}, step, 9, 0)
	}
	c.layOut(nil, nil, 1000)
	if len(c.habits) != 1 {
		t.Errorf("%d tensors are watched, want 1", len(c.habits))
	}
}

// lays lets a tensor come, and plans when it is time; it returns what is in use then.
func (c *census) lays(now []berth, id tensorID, step uint64) (next []berth, plans, bytes uint64) {
	by := index(now)
	room := uint64(0)
	if i, ok := by[id]; ok {
		room = now[i].size
	}
	if c.note(id, step, 1<<20, room); !c.due() {
		return now, 0, 0
	}
	if next, bytes = c.plan(by, now, 1<<40); next == nil {
		next = now
	}
	return next, 1, bytes
}

func TestSpacesWhoseStepsAlternateAreLaidOutByFewPlans(t *testing.T) {
	var c census
	var now []berth
	plans := uint64(0)
	for step := range uint64(20) {
		for i := range uint32(80) {
			var n uint64
			now, n, _ = c.lays(now, tensorID{uint64(i % 2), i / 2}, step)
			plans += n
		}
	}
	if len(now) != 80 || plans > 20 {
		t.Errorf("%d berths after %d plans, want 80 after at most 20", len(now), plans)
	}
}

func TestATensorThatIsNewAtEachStepDoesNotReplaceTheRegionEachTime(t *testing.T) {
	var c census
	var now []berth
	regions, made := 0, uint64(0)
	for step := range uint64(300) {
		for name := range uint32(step) + 1 {
			var bytes uint64
			if now, _, bytes = c.lays(now, tensorID{1, name}, step); bytes > 0 {
				regions++
				made += bytes
			}
		}
	}
	if regions > 40 || made > 10*300<<20 || len(now) < 100 {
		t.Errorf("%d regions of %d MiB together, the last with %d berths", regions, made>>20, len(now))
	}
}

// What a peer only claims to have costs no memory.
func TestOffersAloneLayNothingOut(t *testing.T) {
	e := newWithSilentPeer(t)
	p := e.peers[1]
	e.Open(5, []int{0, 1})
	e.mu.Lock()
	e.cfg.Region = 1 << 30
	e.mu.Unlock()
	e.startArrival(1, frameHeader{kind: kindName, id: 1, size: 3})()
	for step := range uint32(8) {
		e.startArrival(1, frameHeader{kind: kindOffer, flags: flagNamed, id: step + 1, context: 5, size: 20_000, name: 1, step: uint64(step)})()
	}
	e.Rest()
	e.mu.Lock()
	defer e.unlock()
	if p.shelf.count != 0 || p.shelf.census.turn != 0 {
		t.Errorf("%d regions, %d tensors counted", p.shelf.count, p.shelf.census.turn)
	}
}

func TestARegionThatIsNotExposedIsTriedAgainWithHalfAndSaidOnce(t *testing.T) {
	e := newWithSilentPeer(t)
	p := e.peers[1]
	var log strings.Builder
	e.mu.Lock()
	e.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	for range 2 {
		p.noRegion(60_000, fault.New(fault.Exhausted, "expose", 0, "it is full"))
	}
	for step := range uint64(2 * forgotten) {
		for name := range uint32(2) {
			p.note(tensorID{5, name}, step, 20_000)
		}
	}
	e.unlock()
	e.Rest()
	e.mu.Lock()
	if sh := &p.shelf; sh.refused || sh.next == nil || len(sh.next.mem) > 30_000 {
		t.Errorf("refused: %v, made: %v", sh.refused, sh.next != nil)
	}
	p.noRegion(60_000, errConnGone)
	if !p.shelf.refused {
		t.Error("what cannot show memory is asked again")
	}
	e.unlock()
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "it is full") || !strings.Contains(got, "locked memory") {
		t.Errorf("the log: %s", got)
	}
}

func TestANameThatThePeerDoesNotKnowHasNoBerth(t *testing.T) {
	e := newWithSilentPeer(t)
	p, s := e.peers[1], e.Open(5, []int{0, 1})
	e.mu.Lock()
	defer e.unlock()
	berths := []berth{{id: tensorID{5, 0}, size: 20_000}}
	p.places = places{number: 1, berths: berths, by: index(berths)}
	req := &Request{e: e}
	req.mc, req.tensor, req.buf, req.key.name = s, &Tensor{}, make([]byte, 20_000), "new"
	if i, ok := p.berthFor(req); ok {
		t.Errorf("it got berth %d", i)
	}
}

// A walk has rank 0 send rank 1 tensors step by step.
type walk struct {
	*testing.T
	*team
	from, to *MatchContext
	step     uint64
}

func newWalk(t *testing.T, of Config) *walk {
	of.Protocol = Rendezvous
	w := &walk{T: t, team: newTeamWith(t, 2, of, func(w transport.Transport) transport.Transport { return w })}
	w.from, w.to = w.engines[0].Open(5, []int{0, 1}), w.engines[1].Open(5, []int{0, 1})
	return w
}

func stuff(step uint64, i, size int) []byte {
	return bytes.Repeat([]byte{byte(step), byte(i), 7, byte(step >> 8)}, (size+3)/4)[:size]
}

// one sends tensors of these sizes, and receives them: the even ones into a buffer.
func (w *walk) one(sizes ...int) (got []Tensor) {
	w.Helper()
	w.step++
	sent := make(chan error, len(sizes))
	for i, size := range sizes {
		data := Tensor{Shape: []int{size}, Data: stuff(w.step, i, size)}
		if err := w.from.SendNamed(w.step, 1, fmt.Sprint(i), data, func(err error) { sent <- err }); err != nil {
			w.Fatal(err)
		}
	}
	for i, size := range sizes {
		var buf []byte
		if i%2 == 0 {
			buf = make([]byte, size)
		}
		t, err := w.to.RecvNamed(w.Context(), nil, w.step, 0, fmt.Sprint(i), buf)
		if err != nil || !bytes.Equal(t.Data, stuff(w.step, i, size)) {
			w.Fatalf("step %d, tensor %d of %d bytes: %v", w.step, i, len(t.Data), err)
		}
		if i%2 == 0 && &t.Data[0] != &buf[0] {
			w.Error("it is not in the buffer that was given")
		}
		got = append(got, t)
	}
	for range sizes {
		if err := <-sent; err != nil {
			w.Error(err)
		}
	}
	return got
}

// offers is how many tensors rank 0 has offered.
func (w *walk) offers() uint32 {
	e := w.engines[0]
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.peers[1].nextOfferID
}

// regionNow is the number of the region that rank 0 writes to.
func (w *walk) regionNow() uint32 {
	e := w.engines[0]
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.peers[1].places.number
}

// until repeats a step until ok: how many it takes depends on who comes first, but for
// the frames of one direction, which keep their order.
func (w *walk) until(what string, ok func() bool, sizes ...int) {
	w.Helper()
	for range 1000 {
		for _, t := range w.one(sizes...) {
			t.Release()
		}
		if ok() {
			return
		}
	}
	w.Fatalf("not after 1000 steps: %s", what)
}

// steady reports that a step is made without an offer.
func (w *walk) steady(sizes ...int) func() bool {
	before := uint32(0)
	return func() bool {
		was := before
		before = w.offers()
		return was == before
	}
}

func TestTensorsThatRecurComeWithoutBeingOffered(t *testing.T) {
	w := newWalk(t, Config{Region: 1 << 22})
	small := []int{20_000, 30_000, 700_000}
	w.until("a step without offers", w.steady(), small...)
	if got := w.regionNow(); got != 1 {
		t.Errorf("region %d is in use, want 1", got)
	}
	grown := []int{20_000, 1 << 20, 700_000, 50_000}
	w.until("the larger region", func() bool { return w.regionNow() == 2 }, grown...)
	w.until("a step without offers, after they have grown", w.steady(), grown...)
	w.until("a step without offers, after they have shrunk", w.steady(), small...)
	if got := w.regionNow(); got != 2 {
		t.Errorf("region %d is in use, want 2", got)
	}
}

func TestWithoutARegionTensorsAreOffered(t *testing.T) {
	w := newWalk(t, Config{})
	for range 10 {
		w.one(20_000, 30_000)
	}
	if got := w.offers(); got != 20 {
		t.Errorf("%d offers, want 20", got)
	}
}

func TestATensorIsNotWrittenOverBeforeItsRelease(t *testing.T) {
	w := newWalk(t, Config{Region: 1 << 20})
	w.until("a step without offers", w.steady(), 20_000, 30_000)
	var kept Tensor
	for i := 0; kept.lent.from == nil; i++ { // until its sender has heard that the berth is free
		if i == 1000 {
			t.Fatal("not after 1000 steps")
		}
		kept.Release()
		kept = w.one(20_000, 30_000)[1]
	}
	step := w.step
	for range 3 {
		before := w.offers()
		w.one(20_000, 30_000)
		if w.offers() == before {
			t.Error("it went where one still lies")
		}
	}
	if !bytes.Equal(kept.Data, stuff(step, 1, 30_000)) {
		t.Error("it was written over")
	}
	kept.Release()
	w.until("a step without offers, after its release", w.steady(), 20_000, 30_000)
	kept.Release() // in vain: another tensor lies there
	Tensor{}.Release()
	last := w.one(20_000, 30_000)[1]
	kept.Release()
	w.one(20_000, 30_000)
	if !bytes.Equal(last.Data, stuff(w.step-1, 1, 30_000)) {
		t.Error("a stale Release gave another's memory back")
	}
}

// endStep is what the flood of an EndStep does, which reaches nobody in a team.
func (mc *MatchContext) endStep(step uint64) { mc.e.endStep(stepID{mc.id, step}, 0, "") }

// A step that is ended while its tensors are on their way leaves no berth taken.
func TestBerthsOfAnEndedStepAreFreeAgain(t *testing.T) {
	w := newWalk(t, Config{Region: 4 << 20})
	sizes := []int{1 << 20, 1 << 20}
	w.until("a step without offers", w.steady(), sizes...)
	for range 20 {
		w.step++
		for i, size := range sizes {
			w.from.SendNamed(w.step, 1, fmt.Sprint(i), Tensor{Data: make([]byte, size)}, nil)
		}
		w.from.EndStep(w.step, errRevoked)
		w.to.endStep(w.step)
	}
	w.until("a step without offers, after some that were ended", w.steady(), sizes...)
}

func TestTwoTensorsOfOneKeyKeepTheirOrderInAndOutOfTheRegion(t *testing.T) {
	w := newWalk(t, Config{Region: 4 << 20})
	const size = 3 << 20 // several frames, so that the second one could overtake
	w.until("a step without offers", w.steady(), size)
	for range 5 {
		w.step++
		for i := range 3 {
			if err := w.from.SendNamed(w.step, 1, "0", Tensor{Data: stuff(uint64(i), 0, size-i)}, nil); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 3 {
			got, err := w.to.RecvNamed(t.Context(), nil, w.step, 0, "0", make([]byte, size))
			if err != nil || len(got.Data) != size-i {
				t.Fatalf("tensor %d: %d bytes, %v", i, len(got.Data), err)
			}
		}
	}
}

// Whatever a peer says that it has laid out is refused, or is what its bytes say.
func FuzzParseRegion(f *testing.F) {
	f.Add(putRegion(nil))
	f.Add(putRegion([]berth{{id: tensorID{5, 1}, size: 20_000}, {id: tensorID{1 << 63, 1<<32 - 1}, off: maxMessage, size: maxMessage}}))
	f.Add(make([]byte, berthLen+1))
	f.Fuzz(func(t *testing.T, body []byte) {
		berths, err := parseRegion(body)
		if err != nil {
			return
		}
		if len(berths) > maxBerths || !bytes.Equal(putRegion(berths), body) {
			t.Errorf("%x was read as %+v", body, berths)
		}
		for id, i := range index(berths) {
			if b := berths[i]; b.id != id || b.off > maxMessage || b.size > maxMessage {
				t.Errorf("%+v is found as %+v", id, b)
			}
		}
	})
}

// brokenBy moves the link, and returns why it broke.
func (p *peer) brokenBy() error {
	p.link.Progress()
	p.e.mu.Lock()
	defer p.e.mu.Unlock()
	return p.connErr
}

// Who says what cannot be has its link ended, and nothing is read or given back twice.
func TestLiesAboutARegionEndTheLink(t *testing.T) {
	placed := frameHeader{kind: kindPlaced, flags: flagNamed, id: 0, context: 5, size: 20_000, name: 1}
	with := func(change func(*frameHeader)) frameHeader {
		h := placed
		change(&h)
		return h
	}
	for name, h := range map[string]frameHeader{
		"no such berth":                with(func(h *frameHeader) { h.id = 1 }),
		"too large":                    with(func(h *frameHeader) { h.size++ }),
		"another's":                    with(func(h *frameHeader) { h.name = 2 }),
		"laid, of none":                {kind: kindLaid, id: 2},
		"laid, a second time":          {kind: kindLaid, id: 1},
		"a region out of turn":         {kind: kindRegion, flags: flagToken, id: 2},
		"a region without a token":     {kind: kindRegion, id: 1},
		"half a berth":                 {kind: kindRegion, flags: flagToken, id: 1, size: berthLen / 2},
		"freed, what there is not":     {kind: kindFreed, id: 0, size: 4},
		"freed, while it is written":   {kind: kindFreed, id: 1, size: 4},
		"the same berth a second time": placed,
	} {
		t.Run(name, func(t *testing.T) {
			e := newWithSilentPeer(t)
			p := e.peers[1]
			e.Open(5, []int{0, 1})
			e.startArrival(1, frameHeader{kind: kindName, id: 1, size: 3})()
			e.mu.Lock()
			berths := []berth{{id: tensorID{5, 1}, size: 20_000}}
			p.shelf.now = &region{peer: p, number: 1, mem: make([]byte, 20_000), berths: berths, by: index(berths)}
			if h.kind == kindFreed && h.id == 1 {
				theirs := []berth{{id: tensorID{5, 1}, size: 20_000, used: true}}
				p.places = places{number: 1, berths: theirs, writers: []*Request{e.getRequest()}, by: index(theirs), open: 1}
			}
			e.unlock()
			if h == placed {
				e.startArrival(1, h)()
			}
			if err := p.brokenBy(); err != nil {
				t.Fatal(err)
			}
			e.startArrival(1, h)()
			var err error
			for end := time.Now().Add(10 * time.Second); err == nil && time.Now().Before(end); err = p.brokenBy() {
			}
			if !errors.Is(err, fault.LinkLost) {
				t.Errorf("got %v, want %v", err, fault.LinkLost)
			}
			if again := strings.Contains(fmt.Sprint(err), "a second time"); again != (name == "laid, a second time") {
				t.Errorf("it says %v", err)
			}
		})
	}
}
