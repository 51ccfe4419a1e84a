//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/starved"
	"github.com/tutti-go/tutti/internal/vars"
	"github.com/tutti-go/tutti/transport/wires"
)

// initLimit bounds Init. If a process dies before all have joined, EndOnLoss ends Init only on the
// ranks that have joined. On the other ranks the deadline ends Init.
const initLimit = 4 * time.Second

// errWrong marks an error of the program's own check of a result.
var errWrong = errors.New("wrong result")

// runRank is the program of a rank; it returns the exit code.
func runRank(text string) int {
	var in instruction
	if err := json.Unmarshal([]byte(text), &in); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	os.Unsetenv(asRank)
	before := descriptors()
	event{Name: "begun"}.write()
	timeout, limit := time.Minute, initLimit
	if in.Patient {
		timeout, limit = time.Hour, startLimit
	}
	opts := []comm.Option{comm.WithTimeout(timeout), comm.WithParameters(comm.Parameters{EndOnLoss: true, Checksums: in.Checksums})}
	links := newLinks(&in)
	defer links.close()
	if in.Relayed {
		opts = append(opts, comm.WithTransport(links))
	} else {
		opts = append(opts, comm.WithTransport(wires.All()...))
	}
	if in.Redial > 0 {
		opts = append(opts, comm.WithRedial(in.Redial))
	}
	var over atomic.Bool
	go obey(links, &over)
	if in.Descriptors > 0 && in.Victim == thisRank() { // descriptors that are open already stay open
		n := uint64(len(descriptors()) + in.Descriptors)
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: n, Max: n}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 2
		}
	}
	if in.Lie != "" { // a frame may be altered during Init, and that is detected later than the end of a process
		limit += stallTime + in.Redial
	}
	if in.Program == rejoins { // Init of a process that was started again waits until the others rejoin
		limit = startLimit
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	c, err := comm.Init(ctx, opts...)
	if err != nil {
		report(err)
		return 1
	}
	event{Name: "joined"}.write()
	if in.Program == rejoins {
		c, err = runRejoining(context.Background(), c, &in)
	} else {
		err = runProgram(context.Background(), c, &in, &over)
	}
	if err != nil {
		report(err)
		switch in.Reaction {
		case "exit":
			return 1
		case "stay":
			time.Sleep(stay)
		}
	}
	closing, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	if e := c.Close(closing); e != nil && err == nil {
		report(e)
		err = e
	}
	links.close()
	checkLeft("goroutines", libraryGoroutines)
	checkLeft("descriptors", func() string {
		left := newDescriptors(before)
		if in.Program == rejoins && len(left) == 1 { // the connection to tuttirun, for a Rejoin after Close
			left = nil
		}
		return strings.Join(left, ", ")
	})
	if err != nil {
		return 1
	}
	event{Name: "done"}.write()
	return 0
}

// obey carries out the director's commands, one per line.
func obey(links *links, over *atomic.Bool) {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return
		}
		switch c.Do {
		case "end":
			over.Store(true)
		case "shortage":
			lack(c.For)
		default:
			links.carryOut(c)
		}
	}
}

// lack lets this process open no descriptor for the given time.
func lack(d time.Duration) {
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		panic(err) // the arguments are valid
	}
	syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 0, Max: old.Max}) // lowering it is always allowed
	time.Sleep(d)
	syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old)
}

// thisRank returns the rank of this process.
func thisRank() int {
	r, _ := strconv.Atoi(os.Getenv(vars.Rank)) // the director has set it
	return r
}

// report writes the event that reports an error to the director.
func report(err error) {
	e := event{Name: "error", Text: err.Error()}
	if errors.Is(err, errWrong) {
		e.Name = "wrong"
	}
	var w *waitError
	if errors.As(err, &w) {
		e.Waited = []int{w.rank}
	}
	var f *fault.Error
	if errors.As(err, &f) {
		e.Op, e.Kind = f.Op, f.Kind.Error()
		for _, p := range f.Peers {
			e.Peers = append(e.Peers, p.Rank)
		}
	}
	e.write()
}

// write writes the event as one line.
func (e event) write() {
	e.Rank, e.Pid = thisRank(), os.Getpid()
	e.Time, e.Starved = time.Now().UnixNano(), int64(starved.Of(os.Getpid()))
	line, _ := json.Marshal(e) // cannot fail, because all fields are plain
	os.Stdout.Write(append(line, '\n'))
}

// checkLeft calls left, which describes what the library has left behind after Close, until left
// returns "". If left still returns a text after a second, checkLeft reports the text.
func checkLeft(what string, left func() string) {
	for late := time.Now().Add(time.Second); ; {
		text := left()
		if text == "" {
			return
		}
		if time.Now().After(late) {
			event{Name: what, Text: text}.write()
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// descriptors returns the targets of the open descriptors, by number. It omits the descriptors of
// Go's poller, which stay open.
func descriptors() map[string]string {
	all := make(map[string]string)
	entries, _ := os.ReadDir("/proc/self/fd") // without /proc, nothing is found
	for _, e := range entries {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err == nil && !strings.HasPrefix(target, "anon_inode:[event") {
			all[e.Name()] = target
		}
	}
	return all
}

// newDescriptors returns the descriptors that are not in before.
func newDescriptors(before map[string]string) (left []string) {
	for n, target := range descriptors() {
		if before[n] != target {
			left = append(left, n+" -> "+target)
		}
	}
	return left
}

// libraryGoroutines returns the stacks of all goroutines in the library, except the calling
// goroutine and the reader of the connection to tuttirun.
func libraryGoroutines() string {
	buf := make([]byte, 1<<20)
	stacks := strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n")
	var left []string
	for _, stack := range stacks[1:] { // the first stack belongs to this goroutine
		library := strings.Contains(stack, "\ngithub.com/tutti-go/tutti/") // a function begins a line, a path does not
		if library && !strings.Contains(stack, "store.(*Client).read") {
			left = append(left, stack)
		}
	}
	return strings.Join(left, "\n\n")
}
