// Command chaos kills ranks at random and checks what the others report.
//
//	chaos [-kills N] [-seed S] [-time D] [-only I] [-transport NAME] [-np N] [-v]
//
// Each trial starts a job of 2 to 7 processes over a random transport. All ranks run one random
// program: collectives, messages, named tensors, communicators that are made and closed, or a
// coordinator. At a random moment, which may lie in Init or Close, one rank gets SIGKILL. The trial
// checks every other rank:
//
//	rule                                                    when broken, counts in
//	it reports its error within 5 s of the kill, and ends   hang
//	its first error names the killed rank, and no other     blame
//	no call returns a wrong result                          wrong
//	no file in /dev/shm and no goroutine is left behind     left
//
// The seed and the number of a trial determine all its choices. Only the scheduler decides where in
// the program the kill meets the rank. A trial that breaks a rule is printed with the arguments that
// repeat it. The output ends with the table that bench/results/faults.md records. With TUTTI_SOAK=H
// the command goes on for H hours.
package main

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"time"
)

func main() {
	if text := os.Getenv(asRank); text != "" {
		os.Exit(runRank(text))
	}
	kills := flag.Int("kills", 100, "end after this many kills")
	seed := flag.Uint64("seed", 1, "of the random choices")
	limit := flag.Duration("time", 10*time.Minute, "end after this time, and fail if there were fewer kills")
	only := flag.Int("only", -1, "run the trial with this number only")
	transport := flag.String("transport", "", "run only the trials over this transport")
	np := flag.Int("np", 0, "run only the trials with this number of ranks")
	verbose := flag.Bool("v", false, "print every trial")
	flag.Parse()
	selected := func(t *trial) bool {
		return (*only < 0 || t.number == *only) && (*transport == "" || t.wire == *transport) && (*np == 0 || t.ranks == *np)
	}
	partial := *only >= 0 || *transport != "" || *np != 0
	if h, err := strconv.ParseFloat(os.Getenv("TUTTI_SOAK"), 64); err == nil {
		partial = true
		*kills, *limit = 1<<30, time.Duration(h*float64(time.Hour))
	}
	os.Exit(run(*kills, *seed, *limit, partial, selected, *verbose))
}

// maxTrials bounds the trials, so that the command ends if none is selected.
const maxTrials = 10_000_000

// run runs the selected trials and prints the table. It returns the exit code. If there were fewer
// kills than wanted, run fails, unless partial is set.
func run(kills int, seed uint64, limit time.Duration, partial bool, selected func(t *trial) bool, verbose bool) int {
	var s summary
	began := time.Now()
	for i := 0; i < maxTrials && s.total.kills < kills && time.Since(began) < limit; i++ {
		t := newTrial(seed, i)
		if !selected(t) {
			continue
		}
		v := check(t, t.run())
		s.add(t, v)
		if verbose || len(v.broken) > 0 {
			fmt.Printf("%v: %v\n", t, v)
		}
	}
	fmt.Printf("\nseed %d, %v\n\n%v", seed, time.Since(began).Round(time.Second), &s)
	if s.failed() || s.total.trials == 0 {
		return 1
	}
	if s.total.kills < kills && !partial {
		fmt.Printf("the time is over after %d of %d kills\n", s.total.kills, kills)
		return 1
	}
	return 0
}
