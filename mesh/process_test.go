//go:build unix

package mesh

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport/tcp"
)

// The test binary is also the program that the tests below start: with these
// variables set, it is one rank of a job over tcp.
const (
	envRank = "TUTTI_MESH_TEST_RANK"
	envSize = "TUTTI_MESH_TEST_SIZE"
	envRoot = "TUTTI_MESH_TEST_ROOT"
)

func TestMain(m *testing.M) {
	if os.Getenv(envRank) != "" {
		os.Exit(beRank())
	}
	os.Exit(m.Run())
}

// teller prints what a rank hears, a line each.
type teller struct{ nobody }

func (teller) Verdict(e *fault.Error) { fmt.Println("verdict", e.Kind, e.Peers) }
func (teller) Goodbye(rank int)       { fmt.Println("goodbye", rank) }
func (teller) LastCall() string       { return "allreduce #" + os.Getenv(envRank) }

// beRank joins, tells what it hears, and closes when its standard input ends.
func beRank() int {
	rank, _ := strconv.Atoi(os.Getenv(envRank))
	size, _ := strconv.Atoi(os.Getenv(envSize))
	address := "127.0.0.1:0"
	if rank == 0 {
		address = os.Getenv(envRoot)
	}
	ln, err := net.Listen("tcp", address)
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	m, err := Start(ctx, Config{
		Rank: rank, Size: size, Job: "processes", Secret: []byte("sesame"), Transport: tcp.New(tcp.Options{}),
		Listener: ln, Root: os.Getenv(envRoot), Host: "here", Events: teller{},
	})
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	fmt.Println("ready")
	io.Copy(io.Discard, os.Stdin)
	if err := m.Close(ctx); err != nil {
		fmt.Println("error", err)
		return 1
	}
	fmt.Println("closed")
	return 0
}

// A process is one rank, as the test sees it.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.Closer
	lines chan string
}

// launch starts n ranks and waits until all are ready.
func launch(t *testing.T, n int) []*process {
	t.Helper()
	ln := listen(t) // for a free port; rank 0 takes it over
	root := ln.Addr().String()
	ln.Close()
	var ranks []*process
	for r := range n {
		p := &process{t: t, cmd: exec.Command(os.Args[0]), lines: make(chan string, 100)}
		p.cmd.Env = append(os.Environ(), envRank+"="+strconv.Itoa(r), envSize+"="+strconv.Itoa(n), envRoot+"="+root)
		p.cmd.Stderr = os.Stderr
		out, err := p.cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if p.stdin, err = p.cmd.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		if err := p.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		go func() {
			for s := bufio.NewScanner(out); s.Scan(); {
				p.lines <- s.Text()
			}
			close(p.lines)
		}()
		t.Cleanup(func() {
			p.cmd.Process.Kill()
			for range p.lines {
			}
			p.cmd.Wait()
		})
		ranks = append(ranks, p)
	}
	for _, p := range ranks {
		p.expect("ready", 20*time.Second)
	}
	return ranks
}

// expect waits for the rank's next line, which must begin with want.
func (p *process) expect(want string, within time.Duration) {
	p.t.Helper()
	select {
	case line := <-p.lines:
		if !strings.HasPrefix(line, want) {
			p.t.Errorf("got %q, want %q", line, want)
		}
	case <-time.After(within):
		p.t.Errorf("no line within %v, want %q", within, want)
	}
}

func TestAKilledProcessIsNamedByAllWithinASecond(t *testing.T) {
	for victim := range 3 {
		ranks := launch(t, 3)
		time.Sleep(300 * time.Millisecond) // for a heartbeat
		ranks[victim].cmd.Process.Signal(syscall.SIGKILL)
		for r, p := range ranks {
			if r != victim {
				p.expect(fmt.Sprintf("verdict peer lost [rank %d on here, last in allreduce #%d]", victim, victim), time.Second)
			}
		}
	}
}

func TestAStoppedProcessIsNamedAndHearsSoWhenItGoesOn(t *testing.T) {
	ranks := launch(t, 4)
	ranks[2].cmd.Process.Signal(syscall.SIGSTOP)
	for r, p := range ranks {
		if r != 2 {
			p.expect("verdict peer lost [rank 2 on here", 5*time.Second)
		}
	}
	time.Sleep(2 * time.Second)
	ranks[2].cmd.Process.Signal(syscall.SIGCONT)
	ranks[2].expect("verdict peer lost [rank 2 on here", time.Second)
}

func TestAProcessThatWasStoppedForAWhileIsForgiven(t *testing.T) {
	ranks := launch(t, 3)
	ranks[1].cmd.Process.Signal(syscall.SIGSTOP)
	time.Sleep(2500 * time.Millisecond)
	ranks[1].cmd.Process.Signal(syscall.SIGCONT)
	time.Sleep(500 * time.Millisecond)
	for r := range ranks {
		ranks[r].stdin.Close()
		for q, p := range ranks {
			switch {
			case q == r:
				p.expect("closed", 2*time.Second)
			case q > r:
				p.expect(fmt.Sprintf("goodbye %d", r), 2*time.Second)
			}
		}
	}
}
