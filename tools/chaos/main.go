//go:build linux

// Command chaos injects faults into jobs at random moments, and checks what the ranks report.
//
//	chaos [-count N] [-faults LIST] [-seed S] [-time D] [-only I] [-transport NAME] [-np N]
//	      [-program NAME] [-lasts D] [-record FILE] [-v]
//
// Each trial starts a job of 2 to 7 processes over a random transport. All ranks run one random
// program: collectives, messages, named tensors, communicators that are made and closed, a
// coordinator, or collectives that go on after a Shrink or a Rejoin. At a random moment, which may
// lie in Init or Close, the trial injects one fault. The table in faults.go lists the faults, and
// what the ranks may report after each of them. The trial checks every rank, except one that was
// killed:
//
//	rule                                                     when broken, counts in
//	it reports its error within the fault's limit, and ends  hang
//	its first error names the right rank, or both ends of    blame
//	the right link; without a loss it has no error
//	no call returns a wrong result                           wrong
//	after Shrink, it goes on without the lost rank; after    wrong
//	Rejoin, with the process that tuttirun has started
//	no file in /dev/shm, and after Close no goroutine and    left
//	no descriptor is left behind
//
// The limits follow from the table of times in docs/fault-tolerance.md; see trial.limit. They are
// extended by the delays that a busy machine has caused, as measured by the kernel. If a call waits
// for a rank that is alive, the time of its report counts from the end of that rank; see
// trial.cause.
//
// The seed, the fault and the number of a trial determine all its choices. Only the scheduler
// decides at which point of the program the fault meets the rank. For a trial that breaks a rule,
// the command prints the arguments that repeat it. The output ends with a table per fault. With
// -record, the tables also replace the section of FILE about the same arguments. With TUTTI_SOAK=H
// the command runs for H hours.
//
// Faults whose names begin with "hosts-" run the ranks on pseudo-hosts, with encryption between
// them. They need root and network namespaces. Where these are missing, a line says that they are
// skipped. Run the command from the root of the repository, where it finds tools/hosts.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tutti-go/tutti/launch"
)

func main() {
	if env := os.Environ(); os.Args[0] == guardianName || os.Getenv(asLauncher) != "" {
		env = slices.DeleteFunc(env, func(e string) bool { return strings.HasPrefix(e, asLauncher) })
		os.Exit(launch.Main(os.Args, env, os.Stdin, os.Stdout, os.Stderr))
	}
	if os.Getenv(asHog) != "" {
		for turns := uint64(0); ; turns++ {
		}
	}
	if text := os.Getenv(asRank); text != "" {
		os.Exit(runRank(text))
	}
	d := &director{began: time.Now()}
	flag.IntVar(&d.count, "count", 100, "end after this many faults; each fault of the list has its share of them")
	list := flag.String("faults", "all", "the faults to inject, separated by commas; all leaves out load")
	flag.Uint64Var(&d.seed, "seed", 1, "of the random choices")
	limit := flag.Duration("time", 10*time.Minute, "end after this time, and fail if there were fewer faults")
	flag.IntVar(&d.only, "only", -1, "run the trials with this number only")
	flag.StringVar(&d.transport, "transport", "", "run only the trials over this transport")
	flag.IntVar(&d.np, "np", 0, "run only the trials with this number of ranks")
	flag.StringVar(&d.program, "program", "", "run only the trials of this program")
	flag.DurationVar(&d.lasts, "lasts", 0, "let faults that last for some time last for this time")
	record := flag.String("record", "", "the page that keeps the tables")
	flag.BoolVar(&d.verbose, "v", false, "print every trial")
	flag.Parse()
	d.deadline = d.began.Add(*limit)
	partial := d.only >= 0
	if h, err := strconv.ParseFloat(os.Getenv("TUTTI_SOAK"), 64); err == nil {
		partial = true
		d.count, d.deadline = 1<<30, d.began.Add(time.Duration(h*float64(time.Hour)))
	}
	d.choose(strings.Split(*list, ","))
	stopped := make(chan os.Signal, 1)
	signal.Notify(stopped, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-stopped
		removeLabs()
		os.Exit(1)
	}()
	d.run()
	fmt.Print("\n", d)
	failed := d.failed()
	if *record != "" {
		if err := recordIn(*record, d); err != nil {
			fmt.Fprintln(os.Stderr, err)
			failed = true
		}
	}
	if n := d.faults(); n < d.count && !partial {
		fmt.Printf("the time is over after %d of %d faults\n", n, d.count)
		failed = true
	}
	if failed {
		os.Exit(1)
	}
}

// A director runs the trials of all faults, and collects their verdicts in tables.
type director struct {
	count     int
	seed      uint64
	only, np  int
	transport string
	program   string
	verbose   bool
	lasts     time.Duration // of faults that last for some time; 0: as each fault chooses
	began     time.Time
	deadline  time.Time

	mu     sync.Mutex // guards tables and output
	tables []*summary // one for each fault of the list
}

// choose selects the faults of a list of names, in which "all" stands for most of them. It skips
// faults that cannot be injected on this machine, and prints why.
func (d *director) choose(names []string) {
	missing := sync.OnceValue(noHosts)
	for _, f := range faults() {
		switch {
		case !slices.Contains(names, f.name) && (f.byName || !slices.Contains(names, "all")):
		case f.hosts && missing() != nil:
			fmt.Printf("skipped: %s: no pseudo-hosts here: %v\n", f.name, missing())
		default:
			d.tables = append(d.tables, &summary{fault: f})
		}
	}
}

// roundSize is how many faults a round injects. A long run goes through the whole list in each
// round, so that all faults have been injected about as often as their shares say when the time is
// over.
const roundSize = 100

// run injects the faults of the list.
func (d *director) run() {
	if len(d.tables) == 0 {
		return
	}
	var shares int
	for _, s := range d.tables {
		shares += s.fault.share
	}
	for wanted := 0; wanted < d.count && time.Now().Before(d.deadline); {
		wanted = min(wanted+roundSize, d.count)
		for _, s := range d.tables {
			d.inject(s, (wanted*s.fault.share+shares-1)/shares)
		}
		if d.only >= 0 {
			return
		}
	}
}

// inject runs trials of one fault until the fault has been injected the given number of times since
// the start.
func (d *director) inject(s *summary, wanted int) {
	before := sharedFiles()
	var workers sync.WaitGroup
	for range s.fault.jobs {
		workers.Go(func() {
			for {
				t := d.next(s, wanted)
				if t == nil {
					return
				}
				v := check(t, t.run())
				d.mu.Lock()
				s.running--
				s.add(t, v)
				if d.verbose || len(v.broken) > 0 {
					fmt.Printf("%v: %v\n", t, v)
				}
				d.mu.Unlock()
			}
		})
	}
	workers.Wait()
	for _, name := range sharedFiles() {
		if !slices.Contains(before, name) {
			fmt.Printf("left: %s after the trials of %s\n", name, s.fault.name)
			s.total.fail("left", 1)
		}
	}
}

// next returns the next trial that the flags select. It returns nil if the trials so far suffice,
// if the time is over, or if the one trial of -only has been returned.
func (d *director) next(s *summary, wanted int) *trial {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.only >= 0 {
		if s.next++; s.next > 1 {
			return nil
		}
		return d.newTrial(s.fault, d.only)
	}
	for s.total.faults+s.running < wanted && time.Now().Before(d.deadline) {
		t := d.newTrial(s.fault, s.next)
		s.next++
		if (d.transport == "" || t.wire == d.transport) && (d.np == 0 || t.ranks == d.np) && (d.program == "" || t.Program == d.program) {
			s.running++
			return t
		}
	}
	return nil
}

// newTrial makes the choices of a trial, except those that the flags make.
func (d *director) newTrial(f *injection, number int) *trial {
	t := newTrial(f, d.seed, number)
	if d.lasts > 0 && t.lasts > 0 {
		t.lasts = d.lasts
	}
	return t
}

// faults returns how many faults have been injected.
func (d *director) faults() (n int) {
	for _, s := range d.tables {
		n += s.total.faults
	}
	return n
}

// failed reports whether a rule was broken, or nothing was tried.
func (d *director) failed() bool {
	return len(d.tables) == 0 || slices.ContainsFunc(d.tables, func(s *summary) bool { return len(s.total.broken) > 0 || s.total.trials == 0 })
}

// String returns the tables.
func (d *director) String() string {
	var b strings.Builder
	for _, s := range d.tables {
		fmt.Fprintf(&b, "`%s` %s:\n\n%v\n", s.fault.name, s.fault.does, s)
	}
	fmt.Fprintf(&b, "%d faults, seed %d, %v\n", d.faults(), d.seed, time.Since(d.began).Round(time.Second))
	return b.String()
}

// recordIn writes the tables into a page, in the section about the same arguments.
func recordIn(page string, d *director) error {
	old, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	commit, err := exec.Command("git", "describe", "--always", "--dirty").Output()
	if err != nil {
		return err
	}
	var args []string
	for i := 1; i < len(os.Args); i++ {
		if os.Args[i] == "-record" {
			i++
			continue
		}
		args = append(args, os.Args[i])
	}
	text := fmt.Sprintf("Commit %s, %s, %d processors.\n\n%v", strings.TrimSpace(string(commit)), d.began.UTC().Format(time.DateOnly), runtime.NumCPU(), d)
	return os.WriteFile(page, []byte(replaceSection(string(old), "chaos "+strings.Join(args, " "), text)), 0o666)
}

// replaceSection replaces the text of a section, or adds the section at the end.
func replaceSection(page, title, text string) string {
	heading := "\n## `" + title + "`\n"
	before, rest, _ := strings.Cut(page, heading)
	if _, after, found := strings.Cut(rest, "\n## "); found {
		text += "\n## " + after
	}
	return strings.TrimRight(before, "\n") + "\n" + heading + "\n" + text
}
