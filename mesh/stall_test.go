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

// An act is what a test of stalls does, and whether the link stands after it.
type act struct {
	what  string
	lasts time.Duration
	lost  bool
}

// The acts: time passes, the control goroutine does not run meanwhile, or the wire takes
// some, at once or once Progress looks.
const (
	passes = "time passes"
	stops  = "the process is stopped"
	takes  = "the wire takes some"
	would  = "the wire would take some"
)

func TestALinkStallsInTheTimeThatTheProcessRuns(t *testing.T) {
	const limit, most = DefaultStall, stallEvery + 100*time.Millisecond
	for name, acts := range map[string][]act{
		"nothing is taken":                {{passes, limit - 100*time.Millisecond, false}, {passes, most, true}},
		"some, then nothing":              {{passes, limit - most, false}, {takes, 0, false}, {passes, limit - 100*time.Millisecond, false}, {passes, most, true}},
		"only who looks finds out":        {{passes, time.Second, false}, {would, 0, false}, {passes, limit, false}},
		"stopped":                         {{passes, time.Second, false}, {stops, 4 * limit, false}, {passes, limit / 2, false}, {takes, 0, false}, {passes, limit / 2, false}},
		"stopped when it was nearly lost": {{passes, limit - 100*time.Millisecond, false}, {stops, limit, false}, {passes, limit / 2, false}},
		"stopped at first":                {{stops, 4 * limit, false}, {passes, limit / 2, false}},
		"stopped twice":                   {{passes, limit / 2, false}, {stops, limit, false}, {passes, limit / 2, false}, {stops, limit, false}, {passes, limit / 2, false}},
		"stopped, and then it takes none": {{passes, time.Second, false}, {stops, 4 * limit, false}, {passes, limit - 100*time.Millisecond, false}, {passes, most, true}},
	} {
		for _, heartbeat := range []time.Duration{50 * time.Millisecond, DefaultHeartbeat, 3 * time.Second, time.Minute} {
			t.Run(fmt.Sprintf("%s/%v", name, heartbeat), func(t *testing.T) {
				bubble(t, func(t *testing.T) { playStall(t, heartbeat, acts) })
			})
		}
	}
}

func playStall(t *testing.T, heartbeat time.Duration, acts []act) {
	r := started(t, 2, func(i int, cfg *Config) {
		withData(i, cfg)
		cfg.Heartbeat, cfg.Silence = heartbeat, time.Hour
	})
	defer r.close()
	c := &stuck{bytes: 100, since: time.Now()}
	var willing atomic.Bool
	c.close = func() {}
	c.progress = func() transport.State {
		if willing.Load() {
			c.takes()
		}
		return transport.Idle
	}
	r.up(c)
	for i, a := range acts {
		thaw := func() {}
		switch a.what {
		case stops:
			thaw = r.freeze(0)
		case takes:
			c.takes()
		case would:
			willing.Store(true)
		}
		if a.lasts > 0 {
			<-time.After(a.lasts)
		}
		thaw()
		synctest.Wait()
		if lost := slices.Contains(r.meshes[0].cfg.Data.(*pile).lost(), 1); lost != a.lost {
			t.Fatalf("after act %d, %s for %v: the link is lost: %v", i, a.what, a.lasts, lost)
		}
	}
}

// A control link may be full when the process is stopped, too.
func TestANeighbourHasTimeToTakeWhatWaitedWhileThisProcessWasStopped(t *testing.T) {
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
		for i, ear := range r.ears {
			if e, _ := ear.first(); e != nil {
				t.Errorf("rank %d hears %v", i, e)
			}
		}
	})
}
