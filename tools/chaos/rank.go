package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport/wires"
)

// initLimit bounds Init. If a process dies before all have joined, EndOnLoss ends Init on the ranks
// that have joined. On the other ranks only the deadline ends Init.
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
	event{Name: "begun"}.write()
	ctx, cancel := context.WithTimeout(context.Background(), initLimit)
	defer cancel()
	c, err := comm.Init(ctx, comm.WithTransport(wires.All()...), comm.WithTimeout(time.Minute),
		comm.WithParameters(comm.Parameters{EndOnLoss: true}))
	if err != nil {
		report(err)
		return 1
	}
	event{Name: "joined"}.write()
	err = programs()[in.Program](context.Background(), c, newRandom(in.Seed))
	if err != nil {
		report(err)
		switch in.Reaction {
		case "exit":
			return 1
		case "stay":
			time.Sleep(stay)
		}
	}
	closing, cancel := context.WithTimeout(context.Background(), reportLimit)
	defer cancel()
	if e := c.Close(closing); e != nil && err == nil {
		report(e)
		err = e
	}
	checkGoroutines()
	if err != nil {
		return 1
	}
	event{Name: "done"}.write()
	return 0
}

// report reports an error.
func report(err error) {
	e := event{Name: "error", Text: err.Error()}
	if errors.Is(err, errWrong) {
		e.Name = "wrong"
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
	e.Time = time.Now().UnixNano()
	line, _ := json.Marshal(e) // cannot fail, because all fields are plain
	os.Stdout.Write(append(line, '\n'))
}

// checkGoroutines reports goroutines of the library that are left after Close. A goroutine may take a
// moment to end.
func checkGoroutines() {
	var left string
	for late := time.Now().Add(time.Second); ; {
		if left = libraryGoroutines(); left == "" {
			return
		}
		if time.Now().After(late) {
			event{Name: "goroutines", Text: left}.write()
			io.WriteString(os.Stderr, left)
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// libraryGoroutines returns the stacks of all goroutines in the library, except this one.
func libraryGoroutines() string {
	buf := make([]byte, 1<<20)
	stacks := strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n")
	var left []string
	for _, stack := range stacks[1:] { // the first stack belongs to this goroutine
		if strings.Contains(stack, "github.com/tutti-go/tutti/") {
			left = append(left, stack)
		}
	}
	return strings.Join(left, "\n\n")
}
