package flaky

import (
	"context"
	"fmt"
	"testing"

	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/memory"
)

// has lists the abilities that a Conn or a Transport shows.
func has(v any) (got [7]bool) {
	_, got[0] = v.(transport.Exposer)
	_, got[1] = v.(transport.Gatherer)
	_, got[2] = v.(transport.Pending)
	_, got[3] = v.(transport.Sharer)
	_, got[4] = v.(transport.Greeter)
	_, got[5] = v.(transport.Allocator)
	_, got[6] = v.(transport.Prompter)
	return got
}

type greeter struct{ transport.Transport }

func (greeter) Prefix([]byte) bool { return true }
func (greeter) Proto() string      { return "x" }

type allocator struct{ transport.Transport }

func (allocator) Alloc(size int) ([]byte, func() error, error) { return make([]byte, size), nil, nil }

// A wrapper of a wrapper shows what the inner one shows: each of the 16
// kinds of Conn, made by wrapping one that has less or more.
func TestConnShowsExactlyTheAbilitiesOfWhatItWraps(t *testing.T) {
	hub := memory.New()
	a, b := hub.Transport(), hub.Transport()
	defer a.Close()
	defer b.Close()
	addr, err := b.Serve(nil, func(transport.Conn) {})
	if err != nil {
		t.Fatal(err)
	}
	full, err := a.Dial(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{script: New(Options{}), death: new(death)}
	base := n.newConn(full, Unknown)
	for i := range 16 {
		is := able{i&1 > 0, i&2 > 0}
		inner, want := base.asMember(is), [7]bool{is[0], is[1], i&4 > 0, 6: i&8 > 0}
		switch {
		case want[6]:
			inner = prompter{base}.withAbilities(is, want[2])
		case want[2]:
			inner = base.asGuest(is)
		}
		if got := has(inner); got != want {
			t.Errorf("asked for %v, got %v", want, got)
		}
		if got := has(n.newConn(inner, Unknown).withAbilities()); got != want {
			t.Errorf("the wrapper of %v has %v", want, got)
		}
	}
}

func TestTransportShowsExactlyTheAbilitiesOfWhatItWraps(t *testing.T) {
	s, mem := New(Options{}), memory.New().Transport()
	for _, inner := range []transport.Transport{
		mem,
		struct{ transport.Transport }{mem},
		greeter{mem},
		struct {
			greeter
			transport.Sharer
		}{greeter{mem}, mem},
		allocator{mem},
		struct {
			allocator
			transport.Sharer
		}{allocator{mem}, mem},
		struct {
			allocator
			transport.Greeter
		}{allocator{mem}, greeter{}},
		struct {
			allocator
			transport.Greeter
			transport.Sharer
		}{allocator{mem}, greeter{}, mem},
	} {
		if got, want := has(s.Wrap(inner, 0)), has(inner); got != want {
			t.Errorf("the wrapper of %v has %v", want, got)
		}
	}
}

// useAll takes one step of each kind that a Conn has, and returns what failed.
func useAll(near, far *end) (failed string) {
	to, release, err := near.Conn.(transport.Exposer).Expose(1, make([]byte, 10))
	if err != nil {
		return "expose"
	}
	defer release()
	done := make(map[string]error)
	note := func(what string) func(error) { return func(err error) { done[what] = err } }
	far.Send(&transport.Frame{To: to, ID: 1, Body: []byte("straight"), Done: note("write")})
	poll(near, far)
	far.Conn.(transport.Gatherer).SendParts(&transport.Frame{Done: note("parts")}, [][]byte{{1}, {2}})
	poll(near, far)
	for _, what := range []string{"write", "parts"} {
		if done[what] != nil {
			return what
		}
	}
	if near.err != nil {
		return "the end"
	}
	return ""
}

// Each ability's use is a step, and so a place to cut.
func TestEveryUseOfAnAbilityIsAStep(t *testing.T) {
	count := newCluster(t, 2, Options{})
	near, far := count.link(0, 1)
	if failed := useAll(near, far); failed != "" || near.whole != 2 {
		t.Fatalf("without a rule: %q failed, %d frames arrived", failed, near.whole)
	}
	steps := []string{"expose", "write", "parts"}
	if got := count.script.Steps(); got != len(steps) {
		t.Fatalf("%d steps, want %d", got, len(steps))
	}
	for k, failed := range steps {
		for _, rule := range []Rule{Cut(Before, k+1), Die(Before, k+1), Cut(Within, k+1), Cut(After, k+1)} {
			t.Run(fmt.Sprint(failed, " ", rule), func(t *testing.T) {
				w := newCluster(t, 2, Options{Rules: []Rule{rule}})
				near, far := w.link(0, 1)
				got, want := useAll(near, far), failed
				if rule.moment != Before {
					want = append(steps, "the end")[k+1] // this one's bytes had left; the next one's did not
				}
				if got != want || !w.script.Fired(0) {
					t.Errorf("%q failed, want %q; fired: %v", got, want, w.script.Fired(0))
				}
			})
		}
	}
}

func TestShareIsAStep(t *testing.T) {
	for m := Before; m <= After; m++ {
		w := newCluster(t, 1, Options{Rules: []Rule{Cut(m, 2)}})
		for k := 1; k <= 3; k++ {
			_, _, err := w.nodes[0].(transport.Sharer).Share(context.Background(), "name", 1, 10)
			if (err != nil) != (k == 2) {
				t.Errorf("%v: share %d returned %v", m, k, err)
			}
		}
		if got := w.script.Steps(); got != 3 || !w.script.Fired(0) {
			t.Errorf("%v: %d steps, want 3; fired: %v", m, got, w.script.Fired(0))
		}
	}
}
