//go:build unix

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/starved"
	linked "github.com/tutti-go/tutti/transport/wires"
)

// An instruction tells a rank what to run. Fields that a program does not use are zero.
type instruction struct {
	Program     string
	Victim      int           // the rank that is killed, stopped or wrong
	Phase       string        // the phase in which the victim is killed; for the program rejoin, a file: see exitBeforeInit
	Bytes       int           // the size of a vector or a message
	ReadyAtOnce bool          // report readiness before heartbeats have reported this rank's call
	Deadline    time.Duration // the deadline of the call under test; 0 if it has none
	Stall       time.Duration // the option StallWarning
	Heartbeat   time.Duration // replaces the default, as Silence does
	Silence     time.Duration
	SendBuffer  int64
	Secret      string // replaces the environment's secret
	Mistake     string // what goes wrong
	Left        int    // how many ranks are left at the end
}

func (o instruction) options() []comm.Option {
	opts := []comm.Option{comm.WithStallWarning(o.Stall), comm.WithTransport(linked.All()...)}
	if o.Heartbeat > 0 {
		opts = append(opts, comm.WithParameters(comm.Parameters{Heartbeat: o.Heartbeat, Silence: o.Silence}))
	}
	if o.SendBuffer > 0 {
		opts = append(opts, comm.WithParameters(comm.Parameters{SendBuffer: o.SendBuffer}))
	}
	return opts
}

// An event is what a rank reports to the test: a line on standard output. The line is so short that
// it is written at once, and does not mix with lines of other ranks.
type event struct {
	Name      string
	Rank      int
	PID       int
	At        string           // the file:line of the call that the event is about
	Began     int64            // when that call was made, in ns of the host's clock
	Ended     int64            // when it had returned
	Starved   [2]time.Duration // how long this process had starved at those moments
	Failed    bool
	Kind      string // the kind of the error itself
	Causes    []string
	Peers     []fault.Peer // the ranks that the error names
	Text      string       // the error, or what the program reports
	Continues bool         // the program goes on after this event
}

// is reports whether the event's error, or one of its causes, has this kind.
func (e event) is(k fault.Kind) bool {
	for _, c := range e.Causes {
		if c == k.Error() {
			return true
		}
	}
	return false
}

func (e event) duration() time.Duration { return time.Duration(e.Ended - e.Began) }

// maxText is short enough that a pipe writes the line at once.
const maxText = 2000

// A rankProcess is one rank of a job, inside its own process.
type rankProcess struct {
	instruction
	rank int
}

// runRank is the program of a rank; it returns the exit code.
func runRank(text string) int {
	a := &rankProcess{rank: -1}
	if err := json.Unmarshal([]byte(text), &a.instruction); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	exitBeforeInit(a.instruction)
	go exitWithParent()
	if err := a.run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// run joins the job, runs the program and closes, as any program would.
func (a *rankProcess) run(ctx context.Context) error {
	program := programs()[a.Program]
	if program == nil {
		return fmt.Errorf("no scene %q", a.Program)
	}
	start, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c, err := comm.Init(start, a.options()...)
	if err != nil {
		a.report("refused", callSite{}, err)
		return err
	}
	a.rank = c.Rank()
	a.log("joined", "")
	err = program(ctx, a, c)
	if e := c.Close(start); err == nil {
		err = e
	}
	return err
}

// The descriptors that every rank inherits, besides the first eight, which tuttirun uses. The
// end of leakFD's pipe shows the test that the rank has ended. The end of lifelineFD's pipe shows
// the rank that the test has ended. The others are the gates.
const (
	leakFD = 8 + iota
	lifelineFD
	firstGateFD
)

// gates is the number of gates.
const gates = 2

// exitWithParent ends a rank whose test has ended without ending it.
func exitWithParent() {
	io.Copy(io.Discard, os.NewFile(lifelineFD, "lifeline"))
	os.Exit(3)
}

// awaitGate returns once the test has opened gate n.
func (a *rankProcess) awaitGate(n int) {
	io.Copy(io.Discard, os.NewFile(uintptr(firstGateFD+n), "gate"))
}

// A gateContext ends as if a deadline had passed.
type gateContext struct{ context.Context }

// contextUntilGate returns a gateContext that ends some time after gate n has opened. Unlike with a
// deadline, no call fails before the test has opened the gate, however slow the machine is.
func (a *rankProcess) contextUntilGate(ctx context.Context, n int, after time.Duration) context.Context {
	ctx, expire := context.WithCancelCause(ctx)
	go func() {
		a.awaitGate(n)
		<-time.After(after)
		expire(context.DeadlineExceeded)
	}()
	return gateContext{ctx}
}

// Err implements context.Context.
func (e gateContext) Err() error {
	if e.Context.Err() == nil {
		return nil
	}
	return context.DeadlineExceeded
}

// A callSite is the location and the time of a call of the library.
type callSite struct {
	at      string
	began   time.Time
	starved time.Duration
}

// callHere returns the location of its own line and the time, for a call in the same line.
func callHere() callSite { return callAt(0) }

// callBelow does the same as callHere for a call in the next line.
func callBelow() callSite { return callAt(1) }

func callAt(lines int) callSite {
	_, file, line, _ := runtime.Caller(2)
	return callSite{fmt.Sprintf("%s:%d", path.Base(file), line+lines), time.Now(), starved.Of(os.Getpid())}
}

// report reports the outcome of a call, and returns err.
func (a *rankProcess) report(name string, c callSite, err error) error {
	e := event{Name: name, Rank: a.rank, PID: os.Getpid(), At: c.at, Began: c.began.UnixNano(), Ended: time.Now().UnixNano()}
	e.Starved = [2]time.Duration{c.starved, starved.Of(e.PID)}
	if err != nil {
		e.Failed, e.Text = true, err.Error()
		for k := fault.Kind(1); k.Valid(); k++ {
			if errors.Is(err, k) {
				e.Causes = append(e.Causes, k.Error())
			}
		}
		var f *fault.Error
		if errors.As(err, &f) {
			e.Kind, e.Peers = f.Kind.Error(), f.Peers
		}
	}
	e.write()
	return err
}

// log reports something that is not about a call.
func (a *rankProcess) log(name, text string) {
	e := event{Name: name, Rank: a.rank, PID: os.Getpid(), Text: text, Ended: time.Now().UnixNano()}
	e.Starved[1] = starved.Of(e.PID)
	e.write()
}

func (e event) write() {
	e.Text = e.Text[:min(len(e.Text), maxText)]
	line, _ := json.Marshal(e) // cannot fail, because all fields are plain
	os.Stdout.Write(append(line, '\n'))
}
