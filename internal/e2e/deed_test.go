//go:build unix

package e2e

import (
	"encoding/json"
	"os"
	"time"

	"github.com/tutti-go/tutti/internal/starved"
)

// A deed is a moment from which a limit counts, and how long the director and the
// ranks had starved by then.
type deed struct {
	at      time.Time
	starved time.Duration
}

// deed is now.
func (j *job) deed() deed {
	total := j.starved() // before the moment: what it takes to ask counts as starved, if anything
	return deed{time.Now(), total}
}

// starved is how long the director and all ranks that have joined have starved so far.
// A process that has ended had starved as long as is known of it.
func (j *job) starved() time.Duration {
	for _, e := range j.out.events() {
		if e.PID != 0 {
			j.starving[e.PID] = max(j.starving[e.PID], e.Starved[1], starved.Of(e.PID))
		}
	}
	total := starved.Of(os.Getpid())
	for _, d := range j.starving {
		total += d
	}
	return total
}

// wantWithin compares when a rank's call had returned, by the rank's own word,
// with the moment of the deed: both read the same clock. To most is added for how
// long the job's processes had no processor meanwhile: the limit is a promise of the
// library, which cannot keep it while it is not running. A rank that is not told
// sleeps, and sleeping is not starving.
func (j *job) wantWithin(e event, since deed, most time.Duration) {
	j.t.Helper()
	most += j.starved() - since.starved
	if took := time.Unix(0, e.Ended).Sub(since.at); took < 0 || took > most {
		j.t.Errorf("rank %d was told after %v, want at most %v: %s", e.Rank, took, most, e.Text)
	}
}

// starvedIn is how long processes starved in the calls that they tell of.
func starvedIn(es []event) (total time.Duration) {
	for _, e := range es {
		total += e.Starved[1] - e.Starved[0]
	}
	return total
}

// events are those so far, in the order in which they came.
func (tr *transcript) events() (all []event) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, line := range tr.lines {
		var e event
		if json.Unmarshal([]byte(line), &e) == nil {
			all = append(all, e)
		}
	}
	return all
}
