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
	"github.com/tutti-go/tutti/internal/starved"
)

// An order tells a rank what to act. Fields that a scene does not use are zero.
type order struct {
	Scene      string
	Victim     int           // the rank that the scene is about
	Phase      string        // of a tensor, in which the victim is killed
	Bytes      int           // of a vector or a message
	Early      bool          // say that all is under way before others can have heard what this rank does
	Deadline   time.Duration // of the call in question; 0: none
	Stall      time.Duration // StallWarning
	Heartbeat  time.Duration // with Silence, in place of the defaults
	Silence    time.Duration
	SendBuffer int64
	Secret     string // in place of the environment's
	Blunder    string // what goes wrong
}

func (o order) options() []comm.Option {
	opts := []comm.Option{comm.WithStallWarning(o.Stall)}
	if o.Heartbeat > 0 {
		opts = append(opts, comm.WithHeartbeat(o.Heartbeat, o.Silence))
	}
	if o.SendBuffer > 0 {
		opts = append(opts, comm.WithSendBuffer(o.SendBuffer))
	}
	return opts
}

// An event is what a rank tells the director: a line on standard output, short
// enough to be written in one piece beside those of other ranks.
type event struct {
	Name    string
	Rank    int
	PID     int
	At      string           // the file:line of the call that it is about
	Began   int64            // when that call was made, in ns of the host's clock
	Ended   int64            // when it had returned
	Starved [2]time.Duration // how long this process had starved at those moments
	Failed  bool
	Kind    string // of the error itself
	Causes  []string
	Peers   []fault.Peer // whom the error names
	Text    string       // the error, or whatever the scene has to say
	Returns bool         // the scene goes on after it
}

// is reports whether an error of this kind is the event's, or among its causes.
func (e event) is(k fault.Kind) bool {
	for _, c := range e.Causes {
		if c == k.Error() {
			return true
		}
	}
	return false
}

func (e event) took() time.Duration { return time.Duration(e.Ended - e.Began) }

// maxText keeps a line within what a pipe takes in one piece.
const maxText = 2000

// An actor is one rank of a job, inside its own process.
type actor struct {
	order
	rank int
}

// act is the program of a rank; it returns the exit code.
func act(text string) int {
	a := &actor{rank: -1}
	if err := json.Unmarshal([]byte(text), &a.order); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	go dieWithTheDirector()
	if err := a.perform(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// perform joins the job, acts the scene and closes, as any program would.
func (a *actor) perform(ctx context.Context) error {
	scene := scenes()[a.Scene]
	if scene == nil {
		return fmt.Errorf("no scene %q", a.Scene)
	}
	start, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c, err := comm.Init(start, a.options()...)
	if err != nil {
		a.tell("refused", call{}, err)
		return err
	}
	a.rank = c.Rank()
	a.say("joined", "")
	err = scene(ctx, a, c)
	if e := c.Close(start); err == nil {
		err = e
	}
	return err
}

// The descriptors that every rank inherits besides the first four: proof of
// life for the director, the director's own, and the gates.
const (
	leakFD = 4 + iota
	lifelineFD
	firstGateFD
)

// gates is how many there are.
const gates = 2

// dieWithTheDirector ends a rank whose director has gone without ending it.
func dieWithTheDirector() {
	io.Copy(io.Discard, os.NewFile(lifelineFD, "lifeline"))
	os.Exit(3)
}

// wait returns once the director has opened gate n.
func (a *actor) wait(n int) {
	io.Copy(io.Discard, os.NewFile(uintptr(firstGateFD+n), "gate"))
}

// An expiring context ends as if a deadline had passed, once gate n is open: whatever
// has to happen before then has all the time that it takes.
type expiring struct{ context.Context }

func (a *actor) until(ctx context.Context, n int) context.Context {
	ctx, expire := context.WithCancelCause(ctx)
	go func() {
		a.wait(n)
		expire(context.DeadlineExceeded)
	}()
	return expiring{ctx}
}

// Err implements context.Context.
func (e expiring) Err() error {
	if e.Context.Err() == nil {
		return nil
	}
	return context.DeadlineExceeded
}

// A call is where and when a rank called the library.
type call struct {
	at      string
	began   time.Time
	starved time.Duration
}

// here is its caller's place and the time: of a call in the same line.
func here() call { return in(0) }

// below is here, of a call in the next line.
func below() call { return in(1) }

func in(lines int) call {
	_, file, line, _ := runtime.Caller(2)
	return call{fmt.Sprintf("%s:%d", path.Base(file), line+lines), time.Now(), starved.Of(os.Getpid())}
}

// tell says what became of a call, and returns err.
func (a *actor) tell(name string, c call, err error) error {
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
	e.print()
	return err
}

// say tells something that is about no call.
func (a *actor) say(name, text string) {
	e := event{Name: name, Rank: a.rank, PID: os.Getpid(), Text: text, Ended: time.Now().UnixNano()}
	e.Starved[1] = starved.Of(e.PID)
	e.print()
}

func (e event) print() {
	e.Text = e.Text[:min(len(e.Text), maxText)]
	line, _ := json.Marshal(e) // cannot fail: plain fields
	os.Stdout.Write(append(line, '\n'))
}
