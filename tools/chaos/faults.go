//go:build linux

package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/tutti-go/tutti/internal/test/relay"
)

// All limits follow from these times. The letters are the rows of the table in
// docs/fault-tolerance.md.
const (
	reportTime = time.Second                      // (a), (c): from a loss that is known to the last report
	S          = 4 * time.Second                  // (b): a rank that is silent for longer is lost
	silentTime = S + reportTime                   // (b): until the last report of that loss
	stallTime  = (1+1+5)*time.Second + reportTime // (c): of a data link that fails because it delivers nothing
	redialTime = 2 * time.Second                  // (c): R, the time of WithRedial, except in reset
)

// An injection is a row of the table of faults: what a trial does to its job, and what the ranks
// may then report.
type injection struct {
	name  string
	does  string   // completes "the director ..."
	wires []string // the transports over which it is tried
	share int      // how many of about 100 trials inject it
	jobs  int      // trials at a time; more than one if the ranks mostly wait

	hosts    bool // the ranks run on pseudo-hosts
	cutsHost bool // the victim's host is cut off: ranks may report that they have lost ranks on the other side
	byName   bool // the list of faults must name it; it is not among all

	lost   bool // ranks may report that they have lost the victim
	link   bool // ranks may report that they have lost the trial's link
	none   bool // the ranks may report nothing
	lives  bool // the victim lives, and reports what the others report
	mended bool // with WithRedial, ranks report nothing

	// limit bounds the time from the injection until all ranks that lose a rank or a link have
	// detected the loss; see trial.limit.
	limit time.Duration
	// rest is how long after the injection the programs continue before they are told to end; 0:
	// until they have an error.
	rest time.Duration

	choose func(t *trial, rng *rand.Rand) // makes the choices that only this fault needs; may be nil
	inject func(t *trial, ps []*process)  // nil: the ranks inject it themselves
}

// faults returns the table. A trial's random numbers depend on the seed, on the index of its fault
// in the table, and on the number of the trial.
func faults() []*injection {
	network := []string{"tcp", "grpc"}
	rows := []*injection{
		{
			name: "kill", does: "kills a rank by SIGKILL", wires: transports(), share: 50, jobs: 1,
			lost: true, limit: reportTime,
			choose: func(t *trial, rng *rand.Rand) {
				chooseRedial(t, rng)
				t.recorded = rng.IntN(2) == 0
			},
			inject: func(t *trial, ps []*process) { ps[t.victim].signal(syscall.SIGKILL) },
		},
		{
			name: "stop", does: "stops a rank by SIGSTOP for longer than S = 4 s, and resumes it", wires: transports(), share: 4, jobs: 4,
			lost: true, lives: true, limit: silentTime,
			choose: func(t *trial, rng *rand.Rand) {
				t.lasts = longerThanS(rng)
				chooseRedial(t, rng)
			},
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
			name: "cut", does: "resets all connections between two ranks; with WithRedial, new ones, too, for less than R = 2 s", wires: network, share: 8, jobs: 2,
			none: true, link: true, mended: true, lives: true, limit: reportTime, rest: 2 * time.Second,
			choose: func(t *trial, rng *rand.Rand) {
				t.ranks = max(t.ranks, 3)
				if chooseRedial(t, rng); t.Redial > 0 {
					t.lasts = random(rng, redialTime-800*time.Millisecond)
				}
			},
			inject: cutOff,
		},
		{
			name: "outage", does: "resets all connections between two ranks for more than R = 2 s, with WithRedial", wires: network, share: 4, jobs: 4,
			none: true, link: true, lives: true, limit: reportTime, rest: 2 * time.Second,
			choose: func(t *trial, rng *rand.Rand) {
				t.ranks = max(t.ranks, 3)
				t.Redial, t.lasts = redialTime, redialTime+500*time.Millisecond+random(rng, 700*time.Millisecond)
			},
			inject: cutOff,
		},
		{
			name: "silence", does: "drops all bytes on the data connections between two ranks; new ones work", wires: network, share: 4, jobs: 4,
			none: true, link: true, mended: true, lives: true, limit: stallTime, rest: time.Second,
			choose: chooseRedial,
			inject: func(t *trial, ps []*process) { t.betweenBoth(ps, command{Do: "silence"}) },
		},
		{
			name: "hog", does: "runs four busy programs per processor for at most 2.5 s", wires: transports(), share: 3, jobs: 1,
			none: true, lives: true, rest: time.Second,
			choose: func(t *trial, rng *rand.Rand) { t.lasts = random(rng, 2500*time.Millisecond) },
			inject: func(t *trial, _ []*process) { busy(4*runtime.NumCPU(), t.lasts) },
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
			none: true, lost: true, lives: true, limit: reportTime, rest: 200 * time.Millisecond,
			choose: func(t *trial, rng *rand.Rand) { t.Descriptors, t.inInit = 4+rng.IntN(24), true },
		},
	}
	rows = append(rows, &injection{
		name: "restart", does: "kills a rank by SIGKILL, which tuttirun starts again", wires: transports(), share: 6, jobs: 2,
		lost: true, limit: reportTime,
		choose: func(t *trial, _ *rand.Rand) { t.Program = rejoins },
	})
	for _, lie := range []relay.Fault{relay.Drop, relay.Double, relay.Swap, relay.Corrupt} {
		rows = append(rows, &injection{
			name: string(lie), does: "lets a relay " + string(lie) + " one frame between two ranks", wires: network, share: 4, jobs: 4,
			none: true, link: true, lives: true, limit: stallTime, rest: time.Second,
			choose: func(t *trial, rng *rand.Rand) {
				if rng.IntN(4) == 0 {
					t.Redial = redialTime
				}
				t.Lie, t.Frame, t.Up = lie, rng.IntN(1<<rng.IntN(9)), rng.IntN(2) == 0
				// Only checksums detect a corrupted body and, over gRPC, a change to an HTTP/2
				// frame.
				t.Checksums = lie == relay.Corrupt || t.wire == "grpc" || rng.IntN(2) == 0
			},
		})
	}
	rows = append(rows, &injection{
		name: "reset", does: "resets all connections of a rank, and new ones, too, for at most 3.2 s, with WithRedial", wires: network, share: 4, jobs: 4,
		none: true, lives: true, rest: 2 * time.Second,
		choose: func(t *trial, rng *rand.Rand) {
			t.Redial, t.lasts = 2*S, random(rng, 3200*time.Millisecond)
		},
		inject: func(t *trial, ps []*process) {
			for t.other = range ps {
				if t.other != t.victim {
					t.betweenBoth(ps, command{Do: "cut", For: t.lasts})
				}
			}
			time.Sleep(t.lasts)
		},
	})
	rows = append(rows, onHosts()...)
	rows = append(rows, &injection{
		name: "stutter", does: "stops all ranks together by SIGSTOP, again and again, so that they run for milliseconds only, for at most 10 s", wires: transports(), share: 3, jobs: 3,
		none: true, lives: true, rest: time.Second,
		choose: func(t *trial, rng *rand.Rand) { t.lasts = 5*time.Second + random(rng, 5*time.Second) },
		inject: stutter,
	})
	return append(rows, &injection{
		name: "load", does: "runs 50 busy programs beside 32 ranks for 10 minutes", wires: transports(), share: 1, jobs: 1,
		byName: true, none: true, lives: true, rest: time.Second,
		choose: func(t *trial, rng *rand.Rand) {
			t.ranks, t.lasts, t.Patient = 32, 10*time.Minute, true
			lasting := []string{"collectives", "coordinator", "named", "requests", "split"}
			t.Program = lasting[rng.IntN(len(lasting))]
		},
		inject: func(t *trial, _ []*process) { busy(50, t.lasts) },
	})
}

// onHosts returns the faults of ranks on several pseudo-hosts, between which connections are
// encrypted.
func onHosts() []*injection {
	wires := []string{"tcp", "grpc", "auto"}
	choose := func(t *trial, rng *rand.Rand) {
		t.hosts = 2 + rng.IntN(t.ranks-1)
		chooseRedial(t, rng)
	}
	cut := func(t *trial, _ []*process) {
		host := t.hostOf(t.victim)
		if err := t.lab.cut(host); err != nil {
			fmt.Println(err)
		}
		time.Sleep(t.lasts)
		if err := t.lab.heal(host); err != nil {
			fmt.Println(err)
		}
	}
	return []*injection{
		{
			name: "hosts-kill", does: "kills a rank by SIGKILL, with the ranks on 2 to 5 pseudo-hosts", wires: wires, share: 4, jobs: 1,
			hosts: true, lost: true, limit: reportTime,
			choose: func(t *trial, rng *rand.Rand) {
				choose(t, rng)
				t.recorded = rng.IntN(2) == 0
			},
			inject: func(t *trial, ps []*process) { ps[t.victim].signal(syscall.SIGKILL) },
		},
		{
			name: "hosts-stop", does: "stops a rank on a pseudo-host by SIGSTOP for longer than S = 4 s, and resumes it", wires: wires, share: 3, jobs: 3,
			hosts: true, lost: true, lives: true, limit: silentTime,
			choose: func(t *trial, rng *rand.Rand) {
				choose(t, rng)
				t.lasts = longerThanS(rng)
			},
			inject: stop,
		},
		{
			name: "hosts-cut", does: "takes down the link of a pseudo-host for longer than S = 4 s", wires: wires, share: 3, jobs: 3,
			hosts: true, cutsHost: true, lost: true, lives: true, limit: silentTime,
			choose: func(t *trial, rng *rand.Rand) {
				choose(t, rng)
				t.lasts = longerThanS(rng)
			},
			inject: cut,
		},
		{
			name: "hosts-gap", does: "takes down the link of a pseudo-host for at most 3.2 s", wires: wires, share: 3, jobs: 3,
			hosts: true, none: true, lives: true, rest: time.Second,
			choose: func(t *trial, rng *rand.Rand) {
				choose(t, rng)
				t.lasts = random(rng, 3200*time.Millisecond)
			},
			inject: cut,
		},
	}
}

// longerThanS returns a random time for which a rank may be silent only if it is to be lost.
func longerThanS(rng *rand.Rand) time.Duration {
	return S + 1500*time.Millisecond + random(rng, 2*time.Second)
}

// chooseRedial lets half of the trials run with WithRedial.
func chooseRedial(t *trial, rng *rand.Rand) {
	if rng.IntN(2) == 0 {
		t.Redial = redialTime
	}
}

// limit returns how long after its cause a report may come, on an idle machine; see trial.cause.
func (t *trial) limit() time.Duration {
	limit := t.fault.limit
	if t.inInit { // another process may take the place of one that has not joined, so the others wait for their deadline
		limit += initLimit
	}
	if t.fault.link { // WithRedial delays the report of a lost link, but not of a lost rank
		limit += t.Redial
	}
	if t.Reaction == "exit" && t.Relayed && t.Redial > 0 {
		// A rank that exits may not have reported the loss of the victim to the other ranks, which then
		// lose this rank, too. Normally they learn of its end at once, because its host refuses
		// connections. Here the relay accepts connections. So with WithRedial the other ranks wait
		// until this rank counts as silent.
		limit += silentTime
	}
	return limit
}

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

// cutOff cuts the two ranks off from each other for the trial's time. There must be a third rank.
// Without WithRedial, a rank whose connections to all other ranks are reset counts as dead, by row
// (a).
func cutOff(t *trial, ps []*process) {
	t.betweenBoth(ps, command{Do: "cut", For: t.lasts})
	time.Sleep(t.lasts)
}

// stutter lets the ranks run for a millisecond or less every second, as on a virtual machine that
// gets little time.
func stutter(t *trial, ps []*process) {
	rng := newRandom(t.Seed)
	signal := func(s syscall.Signal) {
		for _, p := range ps {
			p.signal(s)
		}
	}
	for end := time.Now().Add(t.lasts); time.Now().Before(end); {
		signal(syscall.SIGSTOP)
		time.Sleep(500*time.Millisecond + random(rng, time.Second))
		signal(syscall.SIGCONT)
		time.Sleep(random(rng, time.Millisecond))
	}
	signal(syscall.SIGCONT)
}

// stop stops the victim for the trial's time.
func stop(t *trial, ps []*process) {
	p := ps[t.victim]
	p.signal(syscall.SIGSTOP)
	time.Sleep(t.lasts)
	p.signal(syscall.SIGCONT)
}

// asHog is the environment variable that makes a process keep a processor busy until it is killed.
const asHog = "TUTTI_CHAOS_HOG"

// busy runs n busy programs for the given time.
func busy(n int, d time.Duration) {
	self, err := os.Executable()
	if err != nil {
		panic(err) // no trial could start its ranks either
	}
	for range n {
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
	time.Sleep(d)
}
