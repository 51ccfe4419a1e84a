package mesh

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/transport"
)

// A stuck Conn has bytes that its wire does not take.
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

// takes has the wire take some bytes.
func (c *stuck) takes() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bytes, c.since = c.bytes-1, time.Now()
}

// Time in which the process did not run says nothing about the wire.
func TestALinkStallsInTheTimeThatTheProcessRuns(t *testing.T) {
	const limit = DefaultStall
	const (
		passes = iota
		stopped
		taken
		kept // the link stands
		lost
	)
	type act struct {
		what  int
		lasts time.Duration
	}
	for name, acts := range map[string][]act{
		"nothing is taken":                 {{passes, limit - 100*time.Millisecond}, {kept, 0}, {passes, 2 * time.Second}, {lost, 0}},
		"some, then nothing":               {{passes, limit - time.Second}, {taken, 0}, {passes, limit - 100*time.Millisecond}, {kept, 0}, {passes, 2 * time.Second}, {lost, 0}},
		"stopped":                          {{passes, time.Second}, {stopped, 4 * limit}, {passes, time.Second}, {kept, 0}, {taken, 0}, {passes, limit / 2}, {kept, 0}},
		"stopped before anybody looked":    {{stopped, 4 * limit}, {passes, limit / 2}, {kept, 0}},
		"stopped twice":                    {{stopped, 4 * limit}, {taken, 0}, {passes, limit / 2}, {stopped, 4 * limit}, {passes, time.Second / 2}, {kept, 0}},
		"stopped, and then it takes none":  {{passes, time.Second}, {stopped, 4 * limit}, {passes, limit}, {lost, 0}},
		"stopped, once it has taken a few": {{taken, 0}, {stopped, 2 * limit}, {taken, 0}, {stopped, 2 * limit}, {passes, limit / 2}, {kept, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := started(t, 2, func(i int, cfg *Config) {
					withData(i, cfg)
					cfg.Silence = time.Hour
				})
				defer r.close()
				c := &stuck{bytes: 100, since: time.Now()}
				c.close, c.progress = func() {}, func() transport.State { return transport.Idle }
				r.up(c)
				for i, a := range acts {
					thaw := func() {}
					switch a.what {
					case stopped:
						thaw = r.freeze(0)
					case taken:
						c.takes()
					}
					if a.lasts > 0 {
						<-time.After(a.lasts)
					}
					thaw()
					synctest.Wait()
					if down := slices.Contains(r.meshes[0].cfg.Data.(*pile).lost(), 1); a.what >= kept && down != (a.what == lost) {
						t.Errorf("act %d, %v: the link is lost: %v", i, a, down)
					}
				}
			})
		})
	}
}
