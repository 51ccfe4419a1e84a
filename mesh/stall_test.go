package mesh

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/transport"
)

// A stuck Conn has bytes that its wire had not taken ten seconds ago, when this
// process was stopped. It finds out what the wire has taken since in Progress.
type stuck struct {
	scripted
	mu    sync.Mutex
	bytes int
	since time.Time
}

func (c *stuck) Unsent() (int, time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes, c.since
}

func TestALinkIsLookedAtBeforeItCountsAsStalled(t *testing.T) {
	for name, tc := range map[string]struct {
		took int // bytes, while nobody looked
		lost bool
	}{
		"nothing": {0, true},
		"some":    {60, false},
		"all":     {100, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := started(t, 2, withData)
				defer r.close()
				c := &stuck{bytes: 100, since: time.Now().Add(-10 * time.Second)}
				c.close = func() {}
				looked := false
				c.progress = func() transport.State {
					c.mu.Lock()
					defer c.mu.Unlock()
					if !looked && tc.took > 0 {
						c.bytes, c.since = c.bytes-tc.took, time.Now()
					}
					looked = true
					return transport.Idle
				}
				r.up(c)
				<-time.After(3 * time.Second)
				synctest.Wait()
				lost := r.meshes[0].cfg.Data.(*pile).lost()
				if got := slices.Contains(lost, 1); got != tc.lost || !looked {
					t.Errorf("3 s after the stop, lost: %v, want %v; looked at: %v", lost, tc.lost, looked)
				}
			})
		})
	}
}
