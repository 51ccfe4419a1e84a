package launch

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/launch/internal/agent"
	"github.com/tutti-go/tutti/launch/internal/remote"
)

// A runningAgent is tuttirun agent in a process of its own, on all addresses of this machine.
type runningAgent struct {
	t   *testing.T
	cmd *exec.Cmd
	by  agents

	mu  sync.Mutex
	log strings.Builder
}

// startAgent starts an agent, and waits until it listens.
func startAgent(t *testing.T, options ...string) *runningAgent {
	t.Helper()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("what agent and launcher know"), 0o600); err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	log, theirs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	a := &runningAgent{t: t}
	a.by.Secret = secret
	a.cmd = exec.Command(program, append([]string{"agent", "--allow-run-as-root", "--listen", "0.0.0.0:0", "--secret-file", secret}, options...)...)
	a.cmd.Stderr = theirs
	all := leak.Start(t, a.cmd)
	logged := make(chan struct{})
	lines := bufio.NewReader(log)
	log.SetReadDeadline(time.Now().Add(limit))
	first, err := lines.ReadString('\n')
	log.SetReadDeadline(time.Time{})
	_, rest, _ := strings.Cut(first, "address=")
	address, _, ok := strings.Cut(rest, " ")
	if a.by.Port = address[strings.LastIndexByte(address, ':')+1:]; err != nil || !ok {
		t.Fatalf("the agent prints %q, %v, want its address", first, err)
	}
	go func() {
		defer close(logged)
		for {
			line, err := lines.ReadString('\n')
			a.mu.Lock()
			a.log.WriteString(line)
			a.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		a.cmd.Process.Kill()
		a.cmd.Wait()
		if err := all.Wait(limit); err != nil {
			t.Error(err)
		}
		<-logged
		log.Close()
		if t.Failed() {
			t.Logf("the agent's log:\n%s", a.logged())
		}
	})
	return a
}

// logged returns what the agent has logged after its first line.
func (a *runningAgent) logged() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.log.String()
}

// drains asks the agent to end, and waits until it has ended. The agent ends only after all its
// jobs.
func (a *runningAgent) drains() {
	a.t.Helper()
	a.cmd.Process.Signal(syscall.SIGTERM)
	stuck := time.AfterFunc(limit, func() { a.cmd.Process.Kill() })
	defer stuck.Stop()
	if err := a.cmd.Wait(); err != nil {
		a.t.Errorf("the agent: got %v, want its end with exit code 0", err)
	}
}

func TestAgentsStartRanks(t *testing.T) {
	a := startAgent(t)
	l := launch(t, hostsJob{Hosts: []string{hostB, "localhost", hostC, hostB}, By: a.by, Args: sh("echo $TUTTI_RANK of $TUTTI_SIZE")})
	if got, want := l.sorted(4), []string{"0 of 4", "1 of 4", "2 of 4", "3 of 4"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	l.ends(0)
	a.drains()
	if got := strings.Count(a.logged(), "a job begins"); got != 2 {
		t.Errorf("the agent has begun %d jobs, want one for each host", got)
	}
	if got := strings.Count(a.logged(), "/sh\""); got != 3 {
		t.Errorf("the agent has logged %d programs, want those of 3 ranks", got)
	}
}

func TestTheEndOfALauncherEndsRanksOfAgents(t *testing.T) {
	a := startAgent(t)
	l := launch(t, hostsJob{Hosts: []string{hostB, "localhost", hostC}, By: a.by, Args: sh("echo up; sleep 1000 & wait")})
	l.sorted(3)
	l.kill(l.cmd.Process.Pid)
	a.drains()
	l.nothingLeft(limit)
}

func TestTheEndOfAnAgentEndsItsRanks(t *testing.T) {
	a := startAgent(t)
	l := launch(t, hostsJob{Hosts: []string{"localhost", hostB}, By: a.by, Args: sh("echo up; sleep 1000 & wait")})
	l.sorted(2)
	l.kill(a.cmd.Process.Pid)
	if got := l.wait(); got == 0 || !strings.Contains(l.stderr.String(), hostB) {
		t.Errorf("got exit code %d and %q, want a failure that names %s", got, l.stderr.String(), hostB)
	}
}

func TestAnAgentBoundsTheRanksOfAJob(t *testing.T) {
	a := startAgent(t, "--max-ranks", "2")
	l := launch(t, hostsJob{Hosts: []string{hostB, hostB, hostB}, By: a.by, Args: sh("sleep 1000")})
	l.ends(exitNotRunning, "the agent there allows 2 ranks of a job (--max-ranks)", hostB)
}

// An agent's host must refuse a Tunnel, because the agent could neither count nor log the processes
// that the Tunnel starts.
func TestAnAgentsHostStartsNoFurtherHosts(t *testing.T) {
	a := startAgent(t)
	d, err := agent.NewDialer(a.by.Keys, a.by.Port)
	if err != nil {
		t.Fatal(err)
	}
	rwc, err := d.Start(t.Context(), hostB, "remote")
	if err != nil {
		t.Fatal(err)
	}
	l, err := remote.Connect(t.Context(), hostB, rwc)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ran := filepath.Join(t.TempDir(), "ran")
	tunnel, err := l.Tunnel(&remote.SSH{Agent: []string{"sh", "-c", "echo >" + ran}}, hostC, "remote")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := remote.Connect(t.Context(), hostC, tunnel); err == nil || !strings.Contains(err.Error(), "this host starts no further hosts") {
		t.Errorf("got %v, want a refusal", err)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("the host has run the command")
	}
}

func TestAMissingAgentIsNamed(t *testing.T) {
	a := startAgent(t)
	a.cmd.Process.Kill()
	a.cmd.Wait()
	l := launch(t, hostsJob{Hosts: []string{"localhost", hostB}, By: a.by, Args: sh("sleep 1000")})
	if got := l.wait(); got == 0 || !strings.Contains(l.stderr.String(), hostB+": agent at port "+a.by.Port+": no agent is there (connection refused)") {
		t.Errorf("got exit code %d and %q, want a failure that names %s", got, l.stderr.String(), hostB)
	}
}

func TestDoctorExaminesHostsByAgents(t *testing.T) {
	a := startAgent(t)
	var report, log strings.Builder
	args := []string{"-H", hostB, "--json", "--agent-secret-file", a.by.Secret, "--agent-port", a.by.Port}
	doctorMain(args, os.Environ(), &report, &lineWriter{w: &log})
	if log.Len() > 0 || !strings.Contains(report.String(), `"facts"`) {
		t.Errorf("got the report %s and %q, want facts about the host", report.String(), log.String())
	}
	a.drains()
	if !strings.Contains(a.logged(), "verb=probe") {
		t.Error("the agent has started no probe")
	}
}
