//go:build unix

package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tutti-go/tutti/internal/test/leak"
)

// TestMain also is tuttirun on the "other" hosts: with the argument remote the process serves its
// standard input and output.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "remote" {
		conn, err := Stdio()
		if err == nil {
			err = Serve(conn, func(s *Sender) CommandHandler { return childHost{s} })
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A childHost answers Prepare with its process ID in Port, and prints the job's name to standard
// error. Its streams return what they get.
type childHost struct{ *Sender }

func (h childHost) Command(c *Command) {
	if c.Prepare != nil {
		fmt.Fprint(os.Stderr, c.Prepare.Job)
		h.Send(&Event{Prepared: &Prepared{Port: os.Getpid()}})
	}
}

func (h childHost) Stream(_ int, _ StreamID, c net.Conn) {
	go func() {
		io.Copy(c, c)
		c.Close()
	}()
}

func (h childHost) Tunnels() bool { return true }

// here is a launch agent that drops the host's name and runs the command on this machine.
func here(t *testing.T) *SSH { return agent(t, `shift; exec sh -c "$*"`) }

// agent returns a Starter whose ssh is a shell script.
func agent(t *testing.T, script string) *SSH {
	t.Helper()
	return &SSH{Agent: []string{"/bin/sh", "-c", script, "ssh"}, Program: testProgram(t), Log: func(host, line string) { t.Logf("%s: %s", host, line) }}
}

func testProgram(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func dial(t *testing.T, s *SSH, host string) (*Link, error) {
	t.Helper()
	rwc, err := s.Start(t.Context(), host, "remote")
	if err != nil {
		return nil, err
	}
	return Connect(t.Context(), host, rwc)
}

func TestSSHRunsOneCommandWithoutUserData(t *testing.T) {
	for _, tt := range []struct {
		ssh  SSH
		want string
	}{
		{SSH{Program: "/usr/bin/tuttirun"}, "ssh|-x|-T|-o|BatchMode=yes|n1|exec /usr/bin/tuttirun remote"},
		{SSH{Program: "/a b/it's", Port: 2222, Identity: "/k", Args: []string{"-o", "ConnectionAttempts=10"}},
			`ssh|-x|-T|-o|BatchMode=yes|-p|2222|-i|/k|-o|ConnectionAttempts=10|n1|exec '/a b/it'\''s' remote`},
		{SSH{Program: "/t", Agent: []string{"/usr/bin/ssh", "-4"}}, "/usr/bin/ssh|-4|-x|-T|-o|BatchMode=yes|n1|exec /t remote"},
		{SSH{Program: "~/t", Agent: []string{"rsh", "-K"}}, "rsh|-K|n1|exec '~/t' remote"},
	} {
		if got := strings.Join(tt.ssh.command("n1", "remote"), "|"); got != tt.want {
			t.Errorf("got %s\nwant %s", got, tt.want)
		}
		if strings.Contains(tt.want, "StrictHostKeyChecking") {
			t.Error("the check of host keys is weakened")
		}
	}
	for _, host := range []string{"", "-oProxyCommand=x"} {
		if _, err := new(SSH).Start(t.Context(), host, "remote"); err == nil {
			t.Errorf("host %q: got no error", host)
		}
	}
}

func TestEachFailureOfSSHIsOneLineWithARemedy(t *testing.T) {
	leak.Check(t)
	const changed = "@@@@@\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n@@@@@\nHost key verification failed."
	for name, tt := range map[string]struct{ script, want string }{
		"unknown host":     {`echo 'ssh: Could not resolve hostname n1: Name or service not known' >&2; exit 255`, "unknown host"},
		"refused key":      {`echo 'u@n1: Permission denied (publickey).' >&2; exit 255`, "--ssh-identity-file"},
		"unknown key":      {`echo 'Host key verification failed.' >&2; exit 255`, "run ssh n1 once"},
		"changed key":      {`echo '` + changed + `' >&2; exit 255`, "ssh-keygen -R n1"},
		"no sshd":          {`echo 'ssh: connect to host n1 port 22: Connection refused' >&2; exit 255`, "--ssh-port"},
		"no route":         {`echo 'ssh: connect to host n1 port 22: No route to host' >&2; exit 255`, "is it up"},
		"timeout":          {`echo 'ssh: connect to host n1 port 22: Connection timed out' >&2; exit 255`, "firewall"},
		"no tuttirun":      {`exec sh -c 'exec /no/tuttirun remote'`, "install the same version there"},
		"not executable":   {`exec sh -c 'exec /etc/passwd remote'`, "cannot be run there"},
		"closed":           {`echo 'Connection closed by 10.0.0.1 port 22' >&2; exit 255`, `exit code 255: "Connection closed by`},
		"silent end":       {`exit 3`, "exit code 3"},
		"killed":           {`kill -9 $$`, "before tuttirun answered"},
		"a login text":     {`echo Welcome`, `got "Welcome"`},
		"control sequence": {`printf 'bad\033[2J\n' >&2; exit 1`, `"bad[2J"`},
		"8-bit control":    {`printf 'bad\302\2332J\n' >&2; exit 1`, `"bad2J"`},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := dial(t, agent(t, tt.script), "n1")
			if err == nil {
				l.Close()
				t.Fatal("got no error")
			}
			if s := err.Error(); !strings.HasPrefix(s, "n1: ") || !strings.Contains(s, tt.want) || strings.Contains(s, "\n") {
				t.Errorf("got %q, want one line of n1 with %q", s, tt.want)
			}
		})
	}
}

func TestAMissingSSHIsNamed(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := (&SSH{Program: "/t"}).Start(t.Context(), "n1", "remote")
	if err == nil || !strings.Contains(err.Error(), "there is no ssh here: install it") {
		t.Errorf("got %v, want that there is no ssh", err)
	}
}

// An agent that never answers, and ignores the end of its input, is killed with its children.
func TestAnAgentThatNeverAnswersIsKilled(t *testing.T) {
	leak.Check(t)
	file := filepath.Join(t.TempDir(), "pid")
	s := agent(t, `trap '' TERM HUP PIPE; sleep 1000 & echo $! >`+file+`.new; mv `+file+`.new `+file+`; wait`)
	rwc, err := s.Start(t.Context(), "n1", "remote")
	if err != nil {
		t.Fatal(err)
	}
	pid := readPID(t, file)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Connect(ctx, "n1", rwc); err == nil || !strings.Contains(err.Error(), "n1: no answer") {
		t.Errorf("got %v, want no answer", err)
	}
	waitGone(t, pid)
}

// readPID waits for a file with a number.
func readPID(t *testing.T, file string) int {
	t.Helper()
	for {
		var pid int
		if b, err := os.ReadFile(file); err == nil {
			if _, err := fmt.Sscan(string(b), &pid); err != nil {
				t.Fatal(err)
			}
			return pid
		}
		// Reason: a file of another process sends no event.
		time.Sleep(5 * time.Millisecond)
	}
}

// waitGone waits until a process has ended.
func waitGone(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; {
		if syscall.Kill(pid, 0) != nil || isZombie(pid) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d still runs", pid)
		}
		// Reason: a process that is no child sends no event.
		time.Sleep(5 * time.Millisecond)
	}
}

// isZombie reports whether a process has ended without a Wait by its parent. In a container,
// orphans may have a parent that never calls Wait.
func isZombie(pid int) bool {
	b, err := exec.Command("ps", "-o", "stat=", "-p", fmt.Sprint(pid)).Output()
	return err == nil && strings.HasPrefix(string(b), "Z")
}

// Of the lines before tuttirun's greeting, the last maxLines are kept until it comes, and long
// lines are cut. Later lines go to the log as they come.
func TestStandardErrorReachesTheUserByLinesAndIsBounded(t *testing.T) {
	leak.Check(t)
	s := agent(t, `i=0; while [ $i -lt 100 ]; do echo "line $i" >&2; i=$((i+1)); done
		head -c 100000 /dev/zero | tr '\0' x >&2; echo >&2
		shift; exec sh -c "$*"`)
	lines := make(chan string, 200)
	s.Log = func(host, line string) { lines <- host + " " + line }
	l, err := dial(t, s, "n1")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	l.Send(&Command{Prepare: &Prepare{Job: "prepared\n"}})
	for {
		line := <-lines
		if len(line) > maxLine+len("n1 ") {
			t.Errorf("got a line of %d bytes, want at most %d", len(line), maxLine)
		}
		if line == "n1 prepared" {
			return
		}
	}
}

func TestKeptLinesAreBounded(t *testing.T) {
	p := new(process)
	for i := range 10 * maxLines {
		p.add(fmt.Sprint(i))
	}
	if len(p.lines) != maxLines || p.lines[maxLines-1] != fmt.Sprint(10*maxLines-1) {
		t.Errorf("got %d lines, want the last %d", len(p.lines), maxLines)
	}
}

// If the terminal accepts no output, neither Connected nor Explain waits for it. Lines stay in
// order.
func TestABlockedLogHoldsUpNothingElse(t *testing.T) {
	leak.Check(t)
	logs := make(chan string)
	p := &process{log: func(line string) { logs <- line }, exited: make(chan struct{}), logged: make(chan struct{})}
	p.add("kept 1")
	p.add("kept 2")
	p.Connected()
	p.Connected()
	go p.add("later 1")
	close(p.exited)
	close(p.logged)
	if got := p.Explain(errDone); got != errDone {
		t.Errorf("Explain: got %v, want %v", got, errDone)
	}
	for _, want := range []string{"kept 1", "kept 2", "later 1"} {
		if got := <-logs; got != want {
			t.Errorf("got the line %q, want %q", got, want)
		}
	}
	go p.add("later 2")
	if got := p.Explain(errDone); got != errDone {
		t.Errorf("Explain: got %v, want %v", got, errDone)
	}
	if got := <-logs; got != "later 2" {
		t.Errorf("got the line %q, want later 2", got)
	}
}

func TestSSHConnectsAndItsEndIsNamed(t *testing.T) {
	leak.Check(t)
	l, err := dial(t, here(t), "n1")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := l.Stream(0, PMI)
	go c.Write([]byte("hello"))
	buf := make([]byte, 5)
	if _, err := io.ReadFull(c, buf); err != nil || string(buf) != "hello" {
		t.Errorf("got %q and %v, want hello", buf, err)
	}
	syscall.Kill(pidOf(t, l), syscall.SIGKILL)
	for range l.Events() {
	}
	if err := l.Err(); err == nil || !strings.Contains(err.Error(), "n1: the connection has ended") || !strings.Contains(err.Error(), "signal: killed") {
		t.Errorf("got %v, want the end of n1's connection and how the agent has ended", err)
	}
}

// pidOf asks a childHost for its process ID.
func pidOf(t *testing.T, l *Link) int {
	t.Helper()
	l.Send(&Command{Prepare: &Prepare{}})
	e, ok := <-l.Events()
	if !ok || e.Prepared == nil {
		t.Fatalf("%s: got %+v and %v, want Prepared", l.Name(), e, l.Err())
	}
	return e.Prepared.Port
}

func TestParentsOfTheTree(t *testing.T) {
	var got []int
	for i := range 7 {
		got = append(got, parent(i, 2))
	}
	if want := []int{-1, -1, 0, 0, 1, 1, 2}; !slices.Equal(got, want) {
		t.Errorf("got parents %v, want %v", got, want)
	}
}

// tree connects to seven hosts on this machine, with a fan-out of 2.
func tree(t *testing.T, s *SSH) ([]*Link, []error) {
	t.Helper()
	hosts := []string{"n0", "n1", "n2", "n3", "n4", "n5", "n6"}
	links, errs := make([]*Link, len(hosts)), make([]error, len(hosts))
	ConnectAll(t.Context(), s, 2, hosts, func(i int, l *Link, err error) { links[i], errs[i] = l, err })
	t.Cleanup(func() {
		for _, l := range slices.Backward(links) {
			if l != nil {
				l.Close()
			}
		}
	})
	return links, errs
}

// When a host in the middle of a tree is killed, the hosts below it end, and the errors name them.
// The other hosts go on. No process is left.
func TestAKilledHostOfATreeEndsItsSubtree(t *testing.T) {
	leak.Check(t)
	links, errs := tree(t, here(t))
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	pids := make([]int, len(links))
	for i, l := range links {
		pids[i] = pidOf(t, l)
	}
	if slices.Sort(slices.Clone(pids)); len(slices.Compact(slices.Sorted(slices.Values(pids)))) != len(pids) {
		t.Fatalf("got processes %v, want a different one for each host", pids)
	}
	syscall.Kill(pids[0], syscall.SIGKILL)
	for i, via := range map[int]string{0: "", 2: "n0", 3: "n0", 6: "n2"} {
		for range links[i].Events() {
		}
		want := fmt.Sprintf("n%d: the connection ", i)
		if via != "" {
			want += "through " + via + " has ended"
		}
		if err := links[i].Err(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("n%d: got %v, want %q", i, err, want)
		}
		waitGone(t, pids[i])
	}
	for _, i := range []int{1, 4, 5} {
		if got := pidOf(t, links[i]); got != pids[i] {
			t.Errorf("n%d: got process %d, want %d", i, got, pids[i])
		}
	}
}

// A host on the way kills an agent that goes on after the end of the tunnel's input, and reports
// how the agent has ended.
func TestAnAgentOnTheWayThatHangsIsKilled(t *testing.T) {
	leak.Check(t)
	l, _ := start(t, newTestHost())
	spec, err := json.Marshal(tunnelSpec{agent(t, `exec sleep 1000`), "n2", "remote"})
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.newStream(l.ctx, tunnelMethod)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SendMsg(&chunk{spec}); err != nil {
		t.Fatal(err)
	}
	s.CloseSend()
	if err := s.RecvMsg(new(chunk)); status.Code(err) != codes.Aborted {
		t.Errorf("got %v, want how the agent has ended", err)
	}
}

// A host that another host has started hangs. The host above it must kill it and go on, and the
// launcher must not wait.
func TestAHostThatHangsBelowAnotherIsKilled(t *testing.T) {
	leak.Check(t)
	links, errs := tree(t, here(t))
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	above, below := pidOf(t, links[0]), pidOf(t, links[2])
	syscall.Kill(below, syscall.SIGSTOP)
	links[2].fail(errors.New("it has been silent"))
	for range links[2].Events() {
	}
	if err := links[2].Err(); err == nil || err.Error() != "n2: it has been silent" {
		t.Errorf("n2: got %v, want that it has been silent", err)
	}
	waitGone(t, below)
	for range links[6].Events() {
	}
	if err := links[6].Err(); err == nil || !strings.HasPrefix(err.Error(), "n6: the connection through n2 has ended") {
		t.Errorf("n6: got %v, want the end of the connection through n2", err)
	}
	if got := pidOf(t, links[0]); got != above {
		t.Errorf("n0: got process %d, want %d", got, above)
	}
}

// The error of a host that another host starts is as precise as the error of a host that the
// launcher starts. The hosts below a host that cannot be started are not tried.
func TestErrorsInATreeNameTheHost(t *testing.T) {
	leak.Check(t)
	for bad, below := range map[string][]int{"n2": {6}, "n0": {2, 3, 6}} {
		t.Run(bad, func(t *testing.T) {
			s := agent(t, `[ $1 != `+bad+` ] || { echo 'Permission denied (publickey).' >&2; exit 255; }; shift; exec sh -c "$*"`)
			_, errs := tree(t, s)
			for i, err := range errs {
				host := fmt.Sprintf("n%d", i)
				want := ""
				switch {
				case host == bad:
					want = host + ": it refuses the key"
				case slices.Contains(below, i):
					want = host + ": not started, because "
				}
				if want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
					t.Errorf("%s: got %v, want %q", host, err, want)
				}
			}
		})
	}
}

// What ssh prints on a host in the middle arrives at the launcher.
func TestStandardErrorInATreeArrivesAsNotes(t *testing.T) {
	leak.Check(t)
	links, errs := tree(t, agent(t, `[ $1 != n2 ] || echo 'a banner' >&2; shift; exec sh -c "$*"`))
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if e := <-links[0].Events(); e == nil || e.Note == nil || e.Note.Text != "n2: a banner" {
		t.Errorf("got %+v, want the banner of n2", e)
	}
}

// A host on the way gets all options of ssh, although gRPC bounds headers to a few KiB.
func TestATunnelCarriesLongOptionsOfSSH(t *testing.T) {
	leak.Check(t)
	s := here(t)
	s.Args = []string{"-o", strings.Repeat("x", 100<<10)} // Linux allows 128 KiB for one argument
	s.Agent = []string{"/bin/sh", "-c", `[ ${#2} = 102400 ] || exit 1; shift 3; exec sh -c "$*"`, "ssh"}
	_, errs := tree(t, s)
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}
