package mesh

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/transport"
)

// A stuckConn has bytes that its peer does not read.
type stuckConn struct {
	scriptedConn
	mu    sync.Mutex
	bytes int
	since time.Time
}

func (c *stuckConn) Unsent() (int, time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes, c.since
}

// advance lets the peer read some bytes.
func (c *stuckConn) advance() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bytes, c.since = c.bytes-1, time.Now()
}

// A stallStep is one step of a test of stalls. It also says whether the link is lost after this
// step.
type stallStep struct {
	what  string
	lasts time.Duration
	lost  bool
}

// The kinds of steps. In the first two, time passes while the control goroutine runs or is
// suspended. In the others the peer reads some bytes, at once or in the next Progress.
const (
	timePasses       = "time passes"
	processSuspended = "the process is stopped"
	wireAdvances     = "the wire takes some"
	wireWouldAdvance = "the wire would take some"
)

func TestSuspendedTimeDoesNotCountAsAStall(t *testing.T) {
	const limit, most = DefaultStall, stallEvery + 100*time.Millisecond
	for name, acts := range map[string][]stallStep{
		"nothing is taken":                {{timePasses, limit - 100*time.Millisecond, false}, {timePasses, most, true}},
		"some, then nothing":              {{timePasses, limit - most, false}, {wireAdvances, 0, false}, {timePasses, limit - 100*time.Millisecond, false}, {timePasses, most, true}},
		"only who looks finds out":        {{timePasses, time.Second, false}, {wireWouldAdvance, 0, false}, {timePasses, limit, false}},
		"stopped":                         {{timePasses, time.Second, false}, {processSuspended, 4 * limit, false}, {timePasses, limit / 2, false}, {wireAdvances, 0, false}, {timePasses, limit / 2, false}},
		"stopped when it was nearly lost": {{timePasses, limit - 100*time.Millisecond, false}, {processSuspended, limit, false}, {timePasses, limit / 2, false}},
		"stopped at first":                {{processSuspended, 4 * limit, false}, {timePasses, limit / 2, false}},
		"stopped twice":                   {{timePasses, limit / 2, false}, {processSuspended, limit, false}, {timePasses, limit / 2, false}, {processSuspended, limit, false}, {timePasses, limit / 2, false}},
		"stopped, and then it takes none": {{timePasses, time.Second, false}, {processSuspended, 4 * limit, false}, {timePasses, limit - 100*time.Millisecond, false}, {timePasses, most, true}},
	} {
		for _, heartbeat := range []time.Duration{50 * time.Millisecond, DefaultHeartbeat, 3 * time.Second, time.Minute} {
			t.Run(fmt.Sprintf("%s/%v", name, heartbeat), func(t *testing.T) {
				bubble(t, func(t *testing.T) { runStall(t, heartbeat, acts) })
			})
		}
	}
}

func runStall(t *testing.T, heartbeat time.Duration, acts []stallStep) {
	r := started(t, 2, func(i int, cfg *Config) {
		withData(i, cfg)
		cfg.Heartbeat, cfg.Silence = heartbeat, time.Hour
	})
	defer r.close()
	c := &stuckConn{bytes: 100, since: time.Now()}
	var willing atomic.Bool
	c.close = func() {}
	c.progress = func() transport.State {
		if willing.Load() {
			c.advance()
		}
		return transport.Idle
	}
	r.up(c)
	for i, a := range acts {
		thaw := func() {}
		switch a.what {
		case processSuspended:
			thaw = r.freeze(0)
		case wireAdvances:
			c.advance()
		case wireWouldAdvance:
			willing.Store(true)
		}
		if a.lasts > 0 {
			<-time.After(a.lasts)
		}
		thaw()
		synctest.Wait()
		if lost := slices.Contains(r.meshes[0].cfg.Data.(*recorder).lost(), 1); lost != a.lost {
			t.Fatalf("after act %d, %s for %v: the link is lost: %v", i, a.what, a.lasts, lost)
		}
	}
}

// The queue of a control link is full while the process is suspended. That time must not count
// against the neighbour.
func TestSuspendedTimeDoesNotCountAgainstANeighbour(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := started(t, 2, func(_ int, cfg *Config) { cfg.Silence = time.Minute })
		defer r.close()
		goOn := r.freeze(1)
		for range 1000 {
			r.meshes[0].Flood(1, make([]byte, MaxFlood))
			synctest.Wait()
		}
		<-time.After(time.Second)
		thaw := r.freeze(0)
		<-time.After(2 * DefaultStall)
		thaw()
		<-time.After(time.Second)
		goOn()
		<-time.After(2 * DefaultStall)
		for i, ear := range r.events {
			if e, _ := ear.first(); e != nil {
				t.Errorf("rank %d hears %v", i, e)
			}
		}
	})
}
