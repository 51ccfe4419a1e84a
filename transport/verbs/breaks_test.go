package verbs

import (
	"bytes"
	"errors"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/verbs/softdevice"
)

// A body of 50,000 bytes into exposed memory is one write, and its completions follow. Each break
// must happen where the hook sets it.
func TestBreaksHappenWhereTheyAreSet(t *testing.T) {
	for name, c := range map[string]struct {
		at         softdevice.Break
		completion bool
		come       int  // bytes that have come into the peer's memory
		whole      bool // the frame arrives
	}{
		"before a write":             {softdevice.BreakBefore, false, 0, false},
		"within a write":             {softdevice.BreakWithin, false, 25_000, false},
		"after a write":              {softdevice.BreakAfter, false, 50_000, true},
		"before its completion":      {softdevice.BreakBefore, true, 50_000, false},
		"after its completion":       {softdevice.BreakAfter, true, 50_000, true},
		"not at all":                 {softdevice.NoBreak, false, 50_000, true},
		"not at a completion at all": {softdevice.NoBreak, true, 50_000, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newConnPair(t, softdevice.NewFabric(), Options{})
			mem, to, release := b.expose(50_000)
			defer release()
			steps := 0
			b.fabric.SetHook(func(s softdevice.Action) softdevice.Break {
				if steps++; s.Completion == c.completion && steps <= 2 {
					return c.at
				}
				return softdevice.NoBreak
			})
			done := b.send(&transport.Frame{To: to, ID: 1, Body: bytes.Repeat([]byte{1}, len(mem))})
			if c.at == softdevice.NoBreak {
				b.until("the frame", func() bool { return b.sinks[1].n == 1 })
			} else {
				b.waitFailure()
			}
			if got := bytes.Count(mem, []byte{1}); got != c.come || (b.sinks[1].n == 1) != c.whole {
				t.Errorf("%d bytes and %d frames came, want %d bytes, whole: %v", got, b.sinks[1].n, c.come, c.whole)
			}
			b.fabric.SetHook(nil)
			if c.at == softdevice.BreakBefore && !c.completion {
				if err := <-done; !errors.Is(err, fault.LinkLost) {
					t.Errorf("Done got %v, want %v", err, fault.LinkLost)
				}
			}
		})
	}
}

// Action.Head computes the position of the head from the bytes of the message. It must return
// the head of the frame that was sent.
func TestStepHasTheHeadOfTheMessage(t *testing.T) {
	b := newConnPair(t, softdevice.NewFabric(), Options{})
	var heads []string
	b.fabric.SetHook(func(s softdevice.Action) softdevice.Break {
		if head := s.Head(); len(head) > 0 {
			heads = append(heads, string(head))
		}
		return softdevice.NoBreak
	})
	done := b.send(&transport.Frame{Head: []byte("head"), Body: []byte("body")})
	if err := <-waitDone(b, done); err != nil {
		t.Fatal(err)
	}
	b.fabric.SetHook(nil)
	if len(heads) != 1 || heads[0] != "head" {
		t.Errorf("got heads %q, want one, of the frame", heads)
	}
}
