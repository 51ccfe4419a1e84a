package verbs

import (
	"bytes"
	"errors"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// A body of 50,000 bytes into exposed memory is one write; its completions follow.
func TestBreakLeavesWhatItSays(t *testing.T) {
	for name, c := range map[string]struct {
		at         Break
		completion bool
		come       int  // bytes in the peer's memory
		whole      bool // the frame arrives
	}{
		"before a write":             {BreakBefore, false, 0, false},
		"within a write":             {BreakWithin, false, 25_000, false},
		"after a write":              {BreakAfter, false, 50_000, true},
		"before its completion":      {BreakBefore, true, 50_000, false},
		"after its completion":       {BreakAfter, true, 50_000, true},
		"not at all":                 {NoBreak, false, 50_000, true},
		"not at a completion at all": {NoBreak, true, 50_000, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Options{Fabric: NewFabric()})
			mem, to, release := b.expose(50_000)
			defer release()
			steps := 0
			b.fabric.Watch(func(s Step) Break {
				if steps++; s.Completion == c.completion && steps <= 2 {
					return c.at
				}
				return NoBreak
			})
			done := b.send(&transport.Frame{To: to, ID: 1, Body: bytes.Repeat([]byte{1}, len(mem))})
			if c.at == NoBreak {
				b.until("the frame", func() bool { return b.sinks[1].n == 1 })
			} else {
				b.fails()
			}
			if got := bytes.Count(mem, []byte{1}); got != c.come || (b.sinks[1].n == 1) != c.whole {
				t.Errorf("%d bytes and %d frames came, want %d bytes, whole: %v", got, b.sinks[1].n, c.come, c.whole)
			}
			b.fabric.Watch(nil)
			if c.at == BreakBefore && !c.completion {
				if err := <-done; !errors.Is(err, fault.LinkLost) {
					t.Errorf("Done got %v, want %v", err, fault.LinkLost)
				}
			}
		})
	}
}
