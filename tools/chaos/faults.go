//go:build linux

package main

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/tutti-go/tutti/internal/test/relay"
)

// S is how long a rank may be silent before it counts as lost, and reportTime is how long a rank
// may take to report a loss that another rank has noticed.
const (
	S          = 4 * time.Second
	reportTime = time.Second
)

// An injection is a row of the table of faults: what a trial does to its job, and what the ranks
// may report then.
type injection struct {
	name  string
	does  string   // completes "the director ..."
	wires []string // the transports that it is tried over
	share int      // how many of about 100 trials inject it
	jobs  int      // trials at a time; more than one if the ranks mostly wait

	lost  bool // ranks may report that they have lost the victim
	link  bool // ranks may report that they have lost the trial's link, or a rank at one of its ends
	none  bool // the ranks need not report anything
	lives bool // the victim lives, and reports what the others report

	// limit is how long after the injection the last rank may report, on an idle machine.
	limit time.Duration
	// rest is how long after the injection the programs go on before they are told to end; 0: until
	// they have an error.
	rest time.Duration

	choose func(t *trial, rng *rand.Rand) // makes the choices that only this fault has
	inject func(t *trial, ps []*process)  // nil: the ranks inject it themselves
}

// faults returns the table. A trial's random numbers depend on the seed, on the index of its fault
// in the table and on its number. The fault "kill" stays first, so that its trials are those of
// older versions.
func faults() []*injection {
	network := []string{"tcp", "grpc"}
	rows := []*injection{
		{
			name: "kill", does: "kills a rank by SIGKILL", wires: transports(), share: 60, jobs: 1,
			lost: true, limit: 5 * time.Second,
			inject: func(t *trial, ps []*process) { ps[t.victim].signal(syscall.SIGKILL) },
		},
		{
			name: "stop", does: "stops a rank by SIGSTOP for longer than S = 4 s, and resumes it", wires: transports(), share: 4, jobs: 4,
			lost: true, lives: true, limit: S + reportTime,
			choose: func(t *trial, rng *rand.Rand) { t.lasts = S + 1500*time.Millisecond + random(rng, 2*time.Second) },
			inject: stop,
		},
		{
			name: "pause", does: "stops a rank by SIGSTOP for at most 3.2 s, and resumes it", wires: transports(), share: 6, jobs: 3,
			none: true, lives: true, rest: time.Second,
			choose: func(t *trial, rng *rand.Rand) { t.lasts = random(rng, 3200*time.Millisecond) },
			inject: stop,
		},
		{
			name: "delay", does: "holds all bytes between two ranks for at most 3.2 s", wires: network, share: 6, jobs: 3,
			none: true, lives: true, rest: time.Second,
			choose: func(t *trial, rng *rand.Rand) { t.lasts = random(rng, 3200*time.Millisecond) },
			inject: func(t *trial, ps []*process) {
				t.betweenBoth(ps, command{Do: "hold", For: t.lasts})
				time.Sleep(t.lasts)
			},
		},
		{
			name: "cut", does: "resets all connections between two ranks; new ones work", wires: network, share: 6, jobs: 2,
			none: true, link: true, lives: true, limit: S + reportTime, rest: 2 * time.Second,
			inject: func(t *trial, ps []*process) { t.betweenBoth(ps, command{Do: "cut"}) },
		},
		{
			name: "silence", does: "drops all bytes on the data connections between two ranks; new ones work", wires: network, share: 4, jobs: 4,
			none: true, link: true, lives: true, limit: stallLimit, rest: time.Second,
			inject: func(t *trial, ps []*process) { t.betweenBoth(ps, command{Do: "silence"}) },
		},
		{
			name: "hog", does: "runs four busy programs per processor for at most 2.5 s", wires: transports(), share: 3, jobs: 1,
			none: true, lives: true, rest: time.Second,
			choose: func(t *trial, rng *rand.Rand) { t.lasts = random(rng, 2500*time.Millisecond) },
			inject: hog,
		},
		{
			name: "shortage", does: "lets a rank open no descriptor for at most 0.7 s", wires: transports(), share: 4, jobs: 2,
			none: true, lives: true, rest: time.Second,
			choose: func(t *trial, rng *rand.Rand) { t.lasts = random(rng, 700*time.Millisecond) },
			inject: func(t *trial, ps []*process) {
				ps[t.victim].order(command{Do: "shortage", For: t.lasts})
				time.Sleep(t.lasts)
			},
		},
		{
			name: "ulimit", does: "starts a rank with a low limit on descriptors", wires: transports(), share: 4, jobs: 2,
			none: true, lost: true, lives: true, limit: initLimit + reportTime, rest: 200 * time.Millisecond,
			choose: func(t *trial, rng *rand.Rand) { t.Descriptors, t.inInit = 4+rng.IntN(24), true },
		},
	}
	for _, lie := range []relay.Fault{relay.Drop, relay.Double, relay.Swap, relay.Corrupt} {
		rows = append(rows, &injection{
			name: string(lie), does: "lets a relay " + string(lie) + " one frame between two ranks", wires: network, share: 4, jobs: 4,
			none: true, link: true, lives: true, limit: stallLimit, rest: time.Second,
			choose: func(t *trial, rng *rand.Rand) {
				t.Lie, t.Frame, t.Up = lie, rng.IntN(1<<rng.IntN(9)), rng.IntN(2) == 0
				// Only checksums detect a corrupted body and, over gRPC, a change to an HTTP/2
				// frame.
				t.Checksums = lie == relay.Corrupt || t.wire == "grpc" || rng.IntN(2) == 0
			},
		})
	}
	return rows
}

// stallLimit is the time until a silent link is given up: 1 s until an acknowledgement is asked
// for, 5 s without one, 10 s in which the link is dialled again, and the time of the checks.
const stallLimit = 18 * time.Second

// random returns a duration below the limit.
func random(rng *rand.Rand, limit time.Duration) time.Duration {
	return time.Duration(rng.Int64N(int64(limit)))
}

// betweenBoth makes both ends of the trial's link carry out a command.
func (t *trial) betweenBoth(ps []*process, c command) {
	for _, end := range [][2]int{{t.victim, t.other}, {t.other, t.victim}} {
		c.To = end[1]
		ps[end[0]].order(c)
	}
}

// stop stops the victim for the trial's time.
func stop(t *trial, ps []*process) {
	p := ps[t.victim]
	p.signal(syscall.SIGSTOP)
	time.Sleep(t.lasts)
	p.signal(syscall.SIGCONT)
}

// asHog makes a process compute for nothing until it is killed.
const asHog = "TUTTI_CHAOS_HOG"

// hog keeps all processors busy.
func hog(t *trial, ps []*process) {
	self, err := os.Executable()
	if err != nil {
		panic(err) // no trial could start its ranks either
	}
	for range 4 * runtime.NumCPU() {
		cmd := exec.Command(self)
		cmd.Env = []string{asHog + "=1"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if cmd.Start() == nil {
			defer func() {
				cmd.Process.Kill()
				cmd.Wait()
			}()
		}
	}
	time.Sleep(t.lasts)
}
