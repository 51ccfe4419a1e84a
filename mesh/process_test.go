//go:build unix

package mesh

import (
	"bufio"
	"context"
	"flag"
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
	"github.com/tutti-go/tutti/internal/test/starved"
	"github.com/tutti-go/tutti/transport/tcp"
)

// The tests below start the test binary as a program. If these environment variables are set, the
// program is one rank of a job over tcp.
const (
	envRank = "TUTTI_MESH_TEST_RANK"
	envSize = "TUTTI_MESH_TEST_SIZE"
	envRoot = "TUTTI_MESH_TEST_ROOT"
)

func TestMain(m *testing.M) {
	if os.Getenv(envRank) != "" {
		os.Exit(runRank())
	}
	flag.Parse()
	flag.Set("test.parallel", "4") // the tests that may run in parallel wait for limits of the mesh
	os.Exit(m.Run())
}

// stdoutEvents writes the events of a rank to standard output, one line per event.
type stdoutEvents struct {
	noEvents
	heartbeats chan<- struct{} // gets a value for each heartbeat to a peer, if there is room
}

func (stdoutEvents) Failed(e *fault.Error) {
	fmt.Println("verdict", e.Kind, e.Peers, e.Err, time.Now().UnixNano())
}
func (stdoutEvents) Goodbye(rank int) { fmt.Println("goodbye", rank) }

func (t stdoutEvents) LastCall(b []byte) []byte {
	select {
	case t.heartbeats <- struct{}{}:
	default:
	}
	return append(b, "allreduce #"+os.Getenv(envRank)...)
}

// runRank joins, waits until all peers have this rank's last call, and writes the rank's events. It
// closes when the standard input ends.
func runRank() int {
	rank, _ := strconv.Atoi(os.Getenv(envRank))
	size, _ := strconv.Atoi(os.Getenv(envSize))
	ln, err := ownListener(rank)
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	heartbeats := make(chan struct{})
	m, err := Start(ctx, Config{
		Rank: rank, Size: size, Job: "processes", Secret: []byte("sesame"), Transport: tcp.New(tcp.Options{}),
		Listener: ln, Root: os.Getenv(envRoot), Host: "here", Events: stdoutEvents{heartbeats: heartbeats},
	})
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	// All links are up. When the rank writes the last heartbeat of the second round, it has sent
	// each peer a heartbeat of the first round.
	for range 2 * (size - 1) {
		<-heartbeats
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

// ownListener returns this rank's listener. Rank 0 inherits its listener from the test, so that no
// other process can take its address in between.
func ownListener(rank int) (net.Listener, error) {
	if rank > 0 {
		return net.Listen("tcp", "127.0.0.1:0")
	}
	f := os.NewFile(3, "listener")
	defer f.Close()
	return net.FileListener(f)
}

// A process is the test's handle for the process of one rank.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.Closer
	lines chan string

	starved time.Duration // at the last measurement
}

// launch starts n ranks and waits until all are ready.
func launch(t *testing.T, n int) []*process {
	t.Helper()
	ln := listen(t)
	defer ln.Close()
	root := ln.Addr().String()
	listener, err := ln.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var ranks []*process
	for r := range n {
		p := &process{t: t, cmd: exec.Command(os.Args[0]), lines: make(chan string, 100)}
		p.cmd.Env = append(os.Environ(), envRank+"="+strconv.Itoa(r), envSize+"="+strconv.Itoa(n), envRoot+"="+root)
		p.cmd.Stderr = os.Stderr
		if r == 0 {
			p.cmd.ExtraFiles = []*os.File{listener}
		}
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
		p.expect("ready")
	}
	return ranks
}

// limit bounds each wait in these tests that has no limit of its own. It is long enough for a busy
// machine.
const limit = 40 * time.Second

// expect waits for the rank's next line, which must start with want, and returns it.
func (p *process) expect(want string) (line string) {
	p.t.Helper()
	select {
	case line = <-p.lines:
		if !strings.HasPrefix(line, want) {
			p.t.Errorf("got %q, want %q", line, want)
		}
	case <-time.After(limit):
		p.t.Fatalf("no line within %v, want %q", limit, want)
	}
	return line
}

// An injectedFault records when a fault was injected, and how long the ranks and the test had
// starved before. Limits count from that moment.
type injectedFault struct {
	at      time.Time
	starved time.Duration
	ranks   []*process
}

// signal sends a signal to one of the ranks, and returns the moment just before it was sent.
func signal(ranks []*process, victim int, s syscall.Signal) injectedFault {
	ranks[victim].t.Helper()
	d := injectedFault{time.Now(), starving(ranks), ranks}
	if err := ranks[victim].cmd.Process.Signal(s); err != nil {
		ranks[victim].t.Fatal(err)
	}
	return d
}

// starving returns how long the ranks and the test have starved so far. The test has not called
// Wait for any running rank, so starving can measure all of them. For a killed rank it uses the
// last measurement.
func starving(ranks []*process) time.Duration {
	total := starved.Of(os.Getpid()) + starved.Stolen()
	for _, p := range ranks {
		p.starved = max(p.starved, starved.Of(p.cmd.Process.Pid))
		total += p.starved
	}
	return total
}

// expectWithin is like expect, but the rank must have received the event within the given limit
// after the fault. The line ends with the time of the event. expectWithin adds to the limit the
// time for which the ranks and the test starved, because a process can do nothing while it does not
// run. If the limit includes the limit on silence, expectWithin also adds the time that the library
// grants a rank that runs late.
func (p *process) expectWithin(want string, since injectedFault, most time.Duration) {
	p.t.Helper()
	line := p.expect(want)
	nanos, _ := strconv.ParseInt(line[strings.LastIndexByte(line, ' ')+1:], 10, 64)
	elapsed := time.Unix(0, nanos).Sub(since.at)
	if most > DefaultSilence {
		most += starved.Granted(line, DefaultSilence, DefaultHeartbeat)
	}
	if most += starving(since.ranks) - since.starved; elapsed > most {
		p.t.Errorf("%q after %v, want at most %v", line, elapsed, most)
	}
}

func TestAKilledProcessIsNamedByAllWithinASecond(t *testing.T) {
	for victim := range 3 {
		ranks := launch(t, 3)
		killed := signal(ranks, victim, syscall.SIGKILL)
		for r, p := range ranks {
			if r != victim {
				p.expectWithin(fmt.Sprintf("verdict peer lost [rank %d on here, last in allreduce #%d]", victim, victim), killed, time.Second)
			}
		}
	}
}

func TestAStoppedProcessIsNamedAndLearnsItWhenResumed(t *testing.T) {
	ranks := launch(t, 4)
	stopped := signal(ranks, 2, syscall.SIGSTOP)
	for r, p := range ranks {
		if r != 2 {
			p.expectWithin("verdict peer lost [rank 2 on here", stopped, 5*time.Second)
		}
	}
	woken := signal(ranks, 2, syscall.SIGCONT)
	ranks[2].expectWithin("verdict peer lost [rank 2 on here", woken, time.Second)
}

// stopped is how long the test suspends a rank: 2 s. That is twice the second within which a dead
// rank is reported, so a rank that is wrongly taken for dead is reported meanwhile. It is half of
// DefaultSilence, after which a suspended rank is rightly reported. The other half is for a test
// that oversleeps on a busy machine.
const stopped = DefaultSilence / 2

func TestAProcessStoppedForAWhileIsNotBlamed(t *testing.T) {
	ranks := launch(t, 3)
	signal(ranks, 1, syscall.SIGSTOP)
	// Reason: rank 1 stays stopped for this time, and no rank must report a loss.
	time.Sleep(stopped)
	signal(ranks, 1, syscall.SIGCONT)
	for r := range ranks {
		ranks[r].stdin.Close()
		for q, p := range ranks {
			switch {
			case q == r:
				p.expect("closed")
			case q > r:
				p.expect(fmt.Sprintf("goodbye %d", r))
			}
		}
	}
}
