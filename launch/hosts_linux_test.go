package launch

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tutti-go/tutti/bootstrap"
	"github.com/tutti-go/tutti/internal/cpu"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/launch/internal/agent"
	"github.com/tutti-go/tutti/launch/internal/placement"
	"github.com/tutti-go/tutti/launch/internal/remote"
)

// This test binary is also tuttirun on the other hosts, its guardian, the ssh that starts tuttirun
// there, a launcher of the job in the variable testJob, and a rank whose program the variable
// testRank selects.
const (
	testJob  = "TUTTI_TEST_JOB"
	testRank = "TUTTI_TEST_RANK"
)

func TestMain(m *testing.M) {
	switch {
	case os.Args[0] == guardianName, len(os.Args) > 1 && slices.Contains([]string{"remote", "agent", probeVerb}, os.Args[1]):
		os.Exit(Main(os.Args, os.Environ(), os.Stdin, os.Stdout, os.Stderr))
	case len(os.Args) == 4 && os.Args[1] == "ssh":
		os.Exit(runHere(os.Args[3]))
	case os.Getenv(testJob) != "":
		os.Exit(launchTestJob())
	}
	if rank := testRanks[os.Getenv(testRank)]; rank != nil {
		os.Exit(rank())
	}
	os.Exit(m.Run())
}

// limit is the longest time that any action of a test may take on a busy machine.
const limit = time.Minute

// A hostsJob is a job on several hosts, all of which are this machine.
type hostsJob struct {
	Hosts []string // the name of each rank's host
	Args  remote.Strings
	Rank  string // the value of testRank
	Agent string // a script in place of ssh; "" is runHere
	By    agents // tuttirun agent in place of ssh, if set

	Preload bool
	TmpDir  string
	FanOut  int
	Verbose bool
}

// runHere is ssh, but runs the command on this machine.
func runHere(command string) int {
	cmd := exec.Command("sh", "-c", command)
	in, err := cmd.StdinPipe()
	if err != nil {
		panic(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		panic(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	go func() {
		io.Copy(in, os.Stdin)
		in.Close()
	}()
	io.Copy(os.Stdout, out)
	cmd.Wait()
	return cmd.ProcessState.ExitCode()
}

// job returns the Job.
func (h hostsJob) job() *Job {
	program, err := os.Executable()
	if err != nil {
		panic(err)
	}
	ssh := []string{program, "ssh"}
	if h.Agent != "" {
		ssh = []string{"sh", "-c", h.Agent, "ssh"}
	}
	env := append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	if h.Rank != "" {
		env = append(env, testRank+"="+h.Rank)
	}
	j := &Job{
		Env: env, Grace: 2 * time.Second, Guardian: program, Preload: h.Preload, TmpDir: h.TmpDir, FanOut: h.FanOut, Verbose: h.Verbose,
		Starter: &remote.SSH{Agent: ssh, Program: program},
	}
	if h.By != (agents{}) {
		if j.Starter, err = agent.NewDialer(h.By.Keys, h.By.Port); err != nil {
			panic(err)
		}
	}
	for _, name := range h.Hosts {
		host := []placement.Host{{Name: name, Slots: len(h.Hosts)}}
		j.Hosts = placement.Merge(append(j.Hosts, host...), isHere)
		j.Apps = append(j.Apps, App{Ranks: 1, Args: h.Args, Hosts: host})
	}
	return j
}

// launchTestJob is the program of a launcher that a test may kill.
func launchTestJob() int {
	var h hostsJob
	if err := json.Unmarshal([]byte(os.Getenv(testJob)), &h); err != nil {
		panic(err)
	}
	os.Unsetenv(testJob)
	j := h.job()
	j.Stdin, j.Stdout, j.Stderr = os.Stdin, os.Stdout, os.Stderr
	out := Run(context.Background(), j)
	for _, line := range out.Verdict {
		fmt.Fprintln(os.Stderr, line)
	}
	return out.Code
}

// A launched is a hostsJob in a launcher of its own.
type launched struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	lines  *bufio.Reader
	stderr logBuffer
	all    *leak.Processes
	killed time.Time // when kill was called
	wait   func() int
}

// launch starts a launcher. The cleanup checks that no process of its job is left.
func launch(t *testing.T, h hostsJob) *launched {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	stdout, theirs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	l := &launched{t: t, cmd: exec.Command(program), lines: bufio.NewReader(stdout), stderr: logBuffer{wrote: make(chan struct{}, 1)}}
	l.cmd.Env = append(os.Environ(), testJob+"="+string(text), "GORACE=atexit_sleep_ms=0")
	l.cmd.Stdout, l.cmd.Stderr = theirs, &l.stderr
	if l.stdin, err = l.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	l.all = leak.Start(t, l.cmd)
	stdout.SetReadDeadline(time.Now().Add(limit))
	l.wait = sync.OnceValue(func() int {
		stuck := time.AfterFunc(limit, func() { l.cmd.Process.Kill() })
		defer stuck.Stop()
		l.cmd.Wait()
		return l.cmd.ProcessState.ExitCode()
	})
	t.Cleanup(func() {
		l.stdin.Close()
		l.cmd.Process.Kill() // does nothing if the process has ended
		l.wait()
		l.nothingLeft(limit)
		stdout.Close()
		if t.Failed() {
			t.Logf("standard error:\n%s", l.stderr.String())
		}
	})
	return l
}

// A logBuffer is a bytes.Buffer that may be read while it is written.
type logBuffer struct {
	mu    sync.Mutex
	text  bytes.Buffer
	wrote chan struct{} // has an element after a Write
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case b.wrote <- struct{}{}:
	default:
	}
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// logs waits until standard error has the text.
func (l *launched) logs(text string) {
	l.t.Helper()
	for late := time.After(limit); !strings.Contains(l.stderr.String(), text); {
		select {
		case <-l.stderr.wrote:
		case <-late:
			l.cmd.Process.Kill()
			l.t.Fatalf("standard error does not say %q after %v:\n%s", text, limit, l.stderr.String())
		}
	}
}

// nothingLeft checks that all processes of the job end in time.
func (l *launched) nothingLeft(within time.Duration) {
	l.t.Helper()
	if err := l.all.Wait(within); err != nil {
		l.t.Error(err)
	}
	if !l.killed.IsZero() {
		l.t.Logf("%s\t1\t%d ns/op, from KILL to the end of the last process", l.t.Name(), time.Since(l.killed))
		l.killed = time.Time{}
	}
}

// kill kills a process. nothingLeft then prints the time that has passed. No test depends on it,
// because the machine may be busy.
func (l *launched) kill(pid int) {
	l.t.Helper()
	l.killed = time.Now()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		l.t.Fatal(err)
	}
}

// line returns the next line of the job's output.
func (l *launched) line() string {
	l.t.Helper()
	s, err := l.lines.ReadString('\n')
	if err != nil {
		l.cmd.Process.Kill()
		l.t.Fatalf("no more output: %v; standard error:\n%s", err, l.stderr.String())
	}
	return strings.TrimSuffix(s, "\n")
}

// sorted returns the next n lines, sorted.
func (l *launched) sorted(n int) (lines []string) {
	l.t.Helper()
	for range n {
		lines = append(lines, l.line())
	}
	slices.Sort(lines)
	return lines
}

// ends checks the exit code, and that standard error has the parts.
func (l *launched) ends(code int, parts ...string) {
	l.t.Helper()
	if got := l.wait(); got != code {
		l.t.Errorf("got exit code %d, want %d", got, code)
	}
	for _, p := range parts {
		if !strings.Contains(l.stderr.String(), p) {
			l.t.Errorf("standard error does not say %q", p)
		}
	}
}

// The names of two other hosts. Both are addresses of this machine, so that each process here can
// connect to them.
const (
	hostB = "127.0.0.2"
	hostC = "127.0.0.3"
)

func sh(text string) []string { return []string{"sh", "-c", text} }

func TestRanksRunOnSeveralHosts(t *testing.T) {
	l := launch(t, hostsJob{
		Hosts: []string{hostB, hostB, "localhost", hostC},
		Args:  sh(`read -r x; printf '%s of %s: %s %s\n' $TUTTI_RANK $TUTTI_SIZE "$x" "${TUTTI_ROOT%:*}"`),
	})
	fmt.Fprintln(l.stdin, " typed 'here' ")
	want := []string{"0 of 4: typed 'here' 127.0.0.2", "1 of 4:  127.0.0.2", "2 of 4:  127.0.0.2", "3 of 4:  127.0.0.2"}
	if got := l.sorted(4); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	l.ends(0)
}

// Arguments and variables reach other hosts unchanged, even if a shell would expand or split them.
func TestArgumentsReachOtherHostsUnchanged(t *testing.T) {
	odd := "a\nb 'c' \"d\" $HOME `e` \\ \xff"
	l := launch(t, hostsJob{Hosts: []string{hostB}, Args: []string{"printf", "%s|%s.", odd, ""}})
	text, err := l.lines.ReadString('.')
	if want := odd + "|."; err != nil || text != want {
		t.Errorf("got %q, %v, want %q", text, err, want)
	}
	l.ends(0)
}

// Input and output flow while their reader is slow, and end with their writer.
func TestALongInputReachesRank0Elsewhere(t *testing.T) {
	l := launch(t, hostsJob{Hosts: []string{hostB, hostC}, Args: sh("cat; echo end of $TUTTI_RANK")})
	const lines = 200000
	go func() {
		w := bufio.NewWriter(l.stdin)
		for i := range lines {
			fmt.Fprintln(w, i)
		}
		w.Flush()
		l.stdin.Close()
	}()
	ends := 0
	for next := 0; next < lines; {
		line := l.line()
		if strings.HasPrefix(line, "end of 1") {
			ends++
			continue
		}
		if line != strconv.Itoa(next) {
			t.Fatalf("got %q, want line %d", line, next)
		}
		next++
	}
	l.sorted(2 - ends)
	l.ends(0)
}

// What ranks have printed is not lost, although nobody reads it for a while after their end, and
// although a process that has left the job still has the ranks' output open.
func TestTheEndOfTheOutputWaitsForASlowReader(t *testing.T) {
	// The output of localhost fits into a pipe. The output of hostB fits into the buffers between
	// the ranks and the launcher.
	for host, lines := range map[string]string{"localhost": "12000", hostB: "40000"} {
		fifo := filepath.Join(t.TempDir(), "end")
		if err := unix.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
		holder, err := os.OpenFile(fifo, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		j := hostsJob{Hosts: []string{host}, Args: sh("env -i setsid sh -c 'read x <" + fifo + "' & seq " + lines)}.job()
		j.Output.Prefix = "%r "
		out, theirs := net.Pipe()
		j.Stdout = theirs
		code := make(chan int, 1)
		go func() {
			code <- Run(t.Context(), j).Code
			theirs.Close()
		}()
		// Reason: the length of the time without a reader is what is tested.
		time.Sleep(2 * killAfter)
		out.SetReadDeadline(time.Now().Add(limit))
		last := ""
		for r := bufio.NewScanner(out); r.Scan(); {
			last = r.Text()
		}
		out.Close()
		if last != "0 "+lines {
			t.Errorf("%s: the last line is %q, want 0 %s", host, last, lines)
		}
		select {
		case got := <-code:
			if got != 0 {
				t.Errorf("%s: got code %d, want 0", host, got)
			}
		case <-time.After(limit):
			t.Errorf("%s: the job waits for a process that has left it", host)
		}
		holder.WriteString("\n") // ends the process that has left the job
		holder.Close()
	}
}

// testRanks are the programs of ranks that a shell script cannot express, by the value of testRank.
var testRanks = map[string]func() int{"meet": rankThatMeets, "dies": rankThatSeesDeath, "counts": rankThatCounts}

// rankThatMeets connects to rank 0, which accepts as many connections as there are other ranks.
func rankThatMeets() int {
	job, err := bootstrap.Find(bootstrap.Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if job.Rank != 0 {
		c, err := net.DialTimeout("tcp", job.Root, limit)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer c.Close()
		io.Copy(io.Discard, c)
	} else {
		l, err := job.Listen(context.Background())
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		for range job.Size - 1 {
			c, err := l.Accept()
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
			defer c.Close()
		}
	}
	fmt.Printf("%d met, secret of %d\n", job.Rank, len(job.Secret))
	return 0
}

func TestRanksOnSeveralHostsMeetAtRank0(t *testing.T) {
	program, _ := os.Executable()
	for _, hosts := range [][]string{{hostB, "localhost", hostC}, {"localhost", hostB}, {hostC, hostC}} {
		l := launch(t, hostsJob{Hosts: hosts, Args: []string{program}, Rank: "meet"})
		for i, line := range l.sorted(len(hosts)) {
			if want := fmt.Sprintf("%d met, secret of 16", i); line != want {
				t.Errorf("%q: got %q, want %q", hosts, line, want)
			}
		}
		l.ends(0)
	}
}

// Only ssh's configuration knows the names of these hosts.
func TestRanksMeetAtAHostThatOnlySSHKnows(t *testing.T) {
	program, _ := os.Executable()
	const agent = `export SSH_CONNECTION="127.0.0.1 1 127.0.0.1 22"; shift; exec sh -c "$*"`
	l := launch(t, hostsJob{
		Hosts: []string{"b.invalid", "c.invalid"}, Args: []string{program}, Rank: "meet", Agent: agent,
	})
	for i, line := range l.sorted(2) {
		if want := fmt.Sprintf("%d met, secret of 16", i); line != want {
			t.Errorf("got %q, want %q", line, want)
		}
	}
	l.ends(0)
}

// The address by which the user has logged in to the launcher's host is not passed on, because it
// says nothing about other hosts.
func TestALoginToTheLaunchersHostIsNotPassedOn(t *testing.T) {
	t.Setenv("SSH_CONNECTION", "192.0.2.2 1 192.0.2.1 22")
	l := launch(t, hostsJob{Hosts: []string{"b.invalid", hostC}, Args: sh("echo ${TUTTI_ROOT%:*}")})
	if got, want := l.sorted(2), []string{"b.invalid", "b.invalid"}; !slices.Equal(got, want) {
		t.Errorf("got the address %q of rank 0, want %q", got, want)
	}
	l.ends(0)
}

func TestTheOwnAddressIsFoundByAnyHost(t *testing.T) {
	hosts := []*remoteHost{{hostName: "only-ssh.invalid"}, {hostName: "user@" + hostB}}
	if got, err := netip.ParseAddr(addressTowards(hosts)); err != nil || !got.IsLoopback() {
		t.Errorf("got %v, %v, want an address from which this host reaches %s", got, err, hostB)
	}
	if got := addressTowards(hosts[:1]); got != "" {
		t.Errorf("got %q, want none", got)
	}
}

// rankThatSeesDeath waits, on rank 0, until the record of ends says that rank 1 has died.
func rankThatSeesDeath() int {
	job, err := bootstrap.Find(bootstrap.Options{})
	if err != nil || job.Exited == nil {
		fmt.Fprintln(os.Stderr, "no record of ends:", err)
		return 1
	}
	if job.Rank == 1 {
		return 0
	}
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
	for ; !job.Exited(1); <-poll.C {
	}
	fmt.Println("rank 1 is dead")
	return 0
}

func TestADeathIsRecordedOnTheOtherHosts(t *testing.T) {
	program, _ := os.Executable()
	for _, hosts := range [][]string{{hostB, hostC}, {hostB, "localhost"}, {"localhost", hostB}} {
		l := launch(t, hostsJob{Hosts: hosts, Args: []string{program}, Rank: "dies"})
		if line := l.line(); line != "rank 1 is dead" {
			t.Errorf("%q: got %q", hosts, line)
		}
		l.ends(0)
	}
}

// rankThatCounts prints the signals INT and USR1 that it gets. It ends on TERM.
func rankThatCounts() int {
	got := make(chan os.Signal, 16)
	signal.Notify(got, syscall.SIGINT, syscall.SIGUSR1, syscall.SIGTERM)
	fmt.Println(os.Getenv("TUTTI_RANK"), "ready", os.Getpid())
	for s := range got {
		fmt.Println(os.Getenv("TUTTI_RANK"), "got", s)
		if s == syscall.SIGTERM {
			return 0
		}
	}
	return 1
}

func TestSignalsReachAllHosts(t *testing.T) {
	program, _ := os.Executable()
	l := launch(t, hostsJob{Hosts: []string{"localhost", hostB, hostC}, Args: []string{program}, Rank: "counts"})
	l.sorted(3)
	for _, step := range []struct {
		send syscall.Signal
		want string
	}{{syscall.SIGUSR1, "user defined signal 1"}, {syscall.SIGINT, "interrupt"}, {syscall.SIGINT, "terminated"}} {
		l.cmd.Process.Signal(step.send)
		want := []string{"0 got " + step.want, "1 got " + step.want, "2 got " + step.want}
		if got := l.sorted(3); !slices.Equal(got, want) {
			t.Errorf("after %v: got %q, want %q", step.send, got, want)
		}
	}
	l.ends(0)
}

// If a host cannot be reached, a job begins without the slots of this host, provided that the other
// hosts have enough slots.
func TestAnElasticJobBeginsWithoutAnUnreachableHost(t *testing.T) {
	for least, want := range map[int]int{1: 0, 2: exitNotRunning} {
		agent := `if [ "$1" = ` + hostB + ` ]; then echo no such route >&2; exit 255; fi; shift; exec sh -c "$*"`
		j := hostsJob{Hosts: []string{hostB}, Args: sh("echo rank $TUTTI_RANK of $TUTTI_SIZE"), Agent: agent}.job()
		j.Hosts, j.Apps[0].Hosts, j.Timeout, j.Recovery = nil, nil, limit, true
		j.Elastic = &Elastic{Min: least, Max: 2, WaitLimit: limit, Discovery: "echo " + hostB + ":1; echo " + hostC + ":1", Cooldown: [2]time.Duration{limit, limit}}
		var out, log bytes.Buffer
		j.Stdout, j.Stderr = &out, &log
		if o := Run(t.Context(), j); o.Code != want {
			t.Errorf("at least %d ranks: got %+v, want code %d:\n%s", least, o, want, log.String())
		}
		omitted := strings.Count(log.String(), "; the job begins without it")
		if want == 0 && (omitted != 1 || out.String() != "rank 1 of 1\n" || !strings.Contains(log.String(), "host "+hostB+": ")) || want != 0 && out.Len() > 0 {
			t.Errorf("at least %d ranks: got %q and\n%s", least, out.String(), log.String())
		}
	}
}

// If a host is lost after it has answered, the launcher still waits for the answer of the other
// host.
func TestALostHostDoesNotAnswerForAnother(t *testing.T) {
	a, b := &remoteHost{hostName: hostB, prepared: true}, &remoteHost{hostName: hostC}
	r := &run{
		job: &Job{Quiet: true}, epochs: &epochs{membership: newMembership(&Elastic{Min: 1, Max: 2})},
		ranks: []*rank{{host: a}, {host: b}}, others: others{hosts: []*remoteHost{a, b}, pending: 1},
	}
	if r.lost(a, io.EOF); r.others.pending != 1 || r.startErr != nil {
		t.Errorf("got %d hosts to wait for and %v, want 1", r.others.pending, r.startErr)
	}
	if r.lost(b, io.EOF); r.startErr == nil {
		t.Error("got no error although no host is left")
	}
}

// Ranks in slots that a discovery script adds while the job runs are bound like the first ranks. A
// rank is not bound if its host has no processors left.
func TestAddedSlotsAreBound(t *testing.T) {
	coreOf, all := make(map[int]int), make(map[int]bool)
	for _, c := range cpu.Topology() {
		coreOf[c.ID], all[c.Core] = c.Core, true
	}
	cores := len(all)
	dir := t.TempDir()
	list, fifo := filepath.Join(dir, "list"), filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(list, []byte("localhost:1"), 0o600); err != nil {
		t.Fatal(err)
	}
	// Rank 0 ends when the last of the added ranks has started.
	const script = `case $TUTTI_RANK in
		0) printf 'localhost:1\n%s:%s' "$2" "$3" >"$0.new"; mv "$0.new" "$0"; read x <"$1";;
		*) echo $(grep Cpus_allowed_list /proc/self/status); [ $TUTTI_RANK != $3 ] || echo >"$1";;
		esac`
	j := hostsJob{Hosts: []string{"localhost"}, Args: append(sh(script), list, fifo, hostB, strconv.Itoa(cores+1))}.job()
	j.Hosts, j.Apps[0].Hosts, j.Timeout = nil, nil, limit
	j.Elastic = &Elastic{Min: 1, Max: cores + 2, WaitLimit: limit, Discovery: "cat " + list}
	j.Recovery, j.Placement.Bind = true, placement.Core
	var out, log bytes.Buffer
	j.Stdout, j.Stderr = &out, &log
	if o := Run(t.Context(), j); o.Code != 0 {
		t.Errorf("got %+v", o)
	}
	bound := 0
	for line := range strings.Lines(out.String()) {
		got, err := placement.ParseCPUs(strings.TrimSpace(strings.TrimPrefix(line, "Cpus_allowed_list:")))
		if err != nil {
			t.Fatal(err)
		}
		used := make(map[int]bool)
		for _, id := range got {
			used[coreOf[id]] = true
		}
		if len(used) == 1 {
			bound++
		}
	}
	unbound := "rank " + strconv.Itoa(cores+1) + " is not bound to processors: host " + hostB + ": got "
	if bound < cores || !strings.Contains(log.String(), unbound) {
		t.Errorf("got %d bound ranks, want %d and one more that is not bound:\n%s%s", bound, cores, out.String(), log.String())
	}
}

// A host without a number of slots has one slot per core. The launcher learns the number of cores
// from the host.
func TestRanksAreBoundToTheCoresOfOtherHosts(t *testing.T) {
	cores := make(map[int]bool)
	for _, c := range cpu.Topology() {
		cores[c.Core] = true
	}
	j := hostsJob{Hosts: []string{hostB}, Args: sh("echo $TUTTI_LOCAL_SIZE $(grep Cpus_allowed_list /proc/self/status)")}.job()
	j.Apps, j.Hosts = []App{{Args: j.Apps[0].Args}}, []placement.Host{{Name: hostB}, {Name: hostC}}
	j.Placement.Bind = placement.Core
	var out bytes.Buffer
	j.Stdout = &out
	if o := Run(t.Context(), j); o.Code != 0 {
		t.Fatal(o)
	}
	count := make(map[string]int)
	for line := range strings.Lines(out.String()) {
		count[line]++
		if size, _, _ := strings.Cut(line, " "); size != strconv.Itoa(len(cores)) {
			t.Errorf("got %q, want %d ranks on each host", line, len(cores))
		}
	}
	for line, n := range count {
		if n != 2 {
			t.Errorf("got %q of %d ranks, want one on each of 2 hosts", line, n)
		}
	}
	if len(count) != len(cores) {
		t.Errorf("got the bindings %q, want one for each of %d cores", out.String(), len(cores))
	}
}

// The launcher connects to each host once: the connection over which the host has told its
// processors also starts its ranks. It stays even if the host has no rank, because the ranks of the
// hosts below it in the tree are started through it.
func TestAHostIsAskedAndUsedByOneConnection(t *testing.T) {
	logins := filepath.Join(t.TempDir(), "logins")
	j := hostsJob{Hosts: []string{hostC}, Args: sh("exit 0"), Agent: "echo $1 >>" + logins + `; shift; exec sh -c "$*"`}.job()
	j.Hosts = []placement.Host{{Name: hostB, Slots: 1}, {Name: hostC, Slots: 1}}
	j.FanOut, j.Placement.Bind = 1, placement.Core
	if out := Run(t.Context(), j); out.Code != 0 {
		t.Fatalf("got %+v, want success", out)
	}
	if text, err := os.ReadFile(logins); string(text) != hostB+"\n"+hostC+"\n" {
		t.Errorf("got the logins %q, %v, want one to each host", text, err)
	}
}

// If a host does not say which processors it has, the timeout or the end of ctx must still end the
// job.
func TestTheEndOfAJobEndsTheQuestionForProcessors(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		ctx     context.Context
		timeout time.Duration
		code    int
		want    string
	}{
		{t.Context(), time.Second, exitTimeout, "cannot start ranks on " + hostB + ": no answer: got none within 1s (--timeout)"},
		{canceled, 0, 128 + int(syscall.SIGTERM), "cannot start ranks on " + hostB + ": "},
	} {
		j := hostsJob{Hosts: []string{hostB}, Args: sh("exit 0"), Agent: "exec sleep 1000"}.job()
		j.Placement.Bind, j.Timeout = placement.Core, c.timeout
		if out := Run(c.ctx, j); out.Code != c.code || !strings.HasPrefix(strings.Join(out.Verdict, "\n"), c.want) {
			t.Errorf("got %+v, want code %d and %q", out, c.code, c.want)
		}
	}
}

func TestTheVerdictNamesTheHost(t *testing.T) {
	l := launch(t, hostsJob{
		Hosts: []string{"localhost", hostB, hostC},
		Args:  sh(`if [ $TUTTI_RANK = 1 ]; then echo oh no >&2; exit 7; fi; exec sleep 1000`),
	})
	l.ends(7, "rank 1 (sh, process ", " on "+hostB+") exited with code 7 after ", `: "oh no"`, "ranks 0, 2 did not end in time")
}

func TestStartErrorsNameTheHost(t *testing.T) {
	for name, c := range map[string]struct {
		job  hostsJob
		code int
		want []string
	}{
		"program": {hostsJob{Hosts: []string{"localhost", hostB}, Args: sh("exec sleep 1000")}, 127,
			[]string{"cannot start nope: no such program in PATH on " + hostB, "1 of 2 ranks had started, and were ended"}},
		"agent": {hostsJob{Hosts: []string{"localhost", hostB}, Args: sh("exit 0"), Agent: "echo no such route >&2; exit 255"}, 126,
			[]string{"cannot start ranks on " + hostB, "no such route", "0 of 2 ranks had started"}},
	} {
		t.Run(name, func(t *testing.T) {
			j := c.job.job()
			if name == "program" {
				j.Apps[1].Args = []string{"nope"}
			}
			out := Run(t.Context(), j)
			text := strings.Join(out.Verdict, "\n")
			for _, want := range c.want {
				if !strings.Contains(text, want) {
					t.Errorf("got %q, want %q", text, want)
				}
			}
			if out.Code != c.code || !out.Broken {
				t.Errorf("got %+v, want code %d", out, c.code)
			}
		})
	}
}

// If a host cannot be started, the hosts below it in the tree fail, too, and the launcher may
// notice their failures first. The error must name the host that could not be started.
func TestTheHostOnTheWayIsWhyAStartFails(t *testing.T) {
	r := &run{others: others{pending: 2}}
	r.lost(&remoteHost{hostName: hostC}, fmt.Errorf("%s: %w", hostC, &remote.ThroughError{Host: hostB}))
	r.lost(&remoteHost{hostName: hostB}, errors.New(hostB+": it refuses the key"))
	if want := "ranks on " + hostB + ": it refuses the key"; r.startErr == nil || r.startErr.Error() != want {
		t.Errorf("got %v, want %s", r.startErr, want)
	}
	if want := map[string]bool{hostB: true}; !maps.Equal(r.others.lost, want) {
		t.Errorf("got the lost hosts %v, want %v", r.others.lost, want)
	}
}

// With a fan-out of 1 each host is started by the host before it. Without a fan-out the launcher
// starts these three hosts itself.
func TestTheFanOutDecidesWhoStartsAHost(t *testing.T) {
	for fanOut, want := range map[int]int{0: 3, 1: 1} {
		t.Run(strconv.Itoa(fanOut), func(t *testing.T) {
			file := t.TempDir() + "/parents"
			j := hostsJob{
				Hosts: []string{"localhost", hostB, hostC, "127.0.0.4"}, Args: sh("exit 0"),
				Agent: "echo $PPID >>" + file + `; shift; exec sh -c "$*"`,
			}.job()
			if j.FanOut = fanOut; fanOut != 0 {
				// The option --fan-out must set the same field.
				req, err := parse([]string{"--fan-out", strconv.Itoa(fanOut), "prog"}, nil)
				if err != nil || req.job.FanOut != fanOut {
					t.Errorf("--fan-out: got %v and %+v", err, req)
				}
			}
			if out := Run(t.Context(), j); out.Code != 0 {
				t.Fatalf("got %+v, want success", out)
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			byUs := 0
			parents := strings.Fields(string(text))
			for _, pid := range parents {
				if pid == strconv.Itoa(os.Getpid()) {
					byUs++
				}
			}
			if byUs != want || len(parents) != 3 {
				t.Errorf("got parents %v, %d of them this process; want 3 parents, and %d", parents, byUs, want)
			}
		})
	}
}

// A signal ends a job whose hosts have not answered yet.
func TestASignalEndsAJobThatIsStillConnecting(t *testing.T) {
	l := launch(t, hostsJob{Hosts: []string{hostB}, Args: sh("exit 0"), Agent: "echo asked >/proc/$PPID/fd/1; exec sleep 1000"})
	l.line()
	l.cmd.Process.Signal(syscall.SIGINT)
	l.ends(130, "the job was asked to end (SIGINT)")
}

// family is a script whose rank has a child in its process group, and a child that has left the
// group.
const family = `sleep 1000 & setsid sleep 1000 & echo $TUTTI_RANK ready $$ $PPID; wait`

// parent returns the parent of a process.
func parent(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	parent, _ := strconv.Atoi(strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))[1])
	return parent
}

// One process of the job is killed. Whichever process it is, no process of the job is left on any
// host, and the verdict names the host that was lost.
func TestNothingIsLeftWhateverIsKilled(t *testing.T) {
	const lost = "rank 1 (sh, process %d on " + hostB + ") was lost after "
	node := func(_ *testing.T, _ *launched, _, node int) int { return node }
	for name, c := range map[string]struct {
		fanOut int
		victim func(t *testing.T, l *launched, rank, node int) int
		code   int
		want   string
		others string // in the verdict
	}{
		"launcher":        {0, func(_ *testing.T, l *launched, _, _ int) int { return l.cmd.Process.Pid }, -1, "", ""},
		"host":            {0, node, 255, lost, "rank 3 disappeared with host " + hostB},
		"host on the way": {1, node, 255, lost, "rank 2 disappeared with host " + hostC + ", reached through " + hostB},
		"ssh":             {0, func(t *testing.T, _ *launched, _, node int) int { return parent(t, node) }, 255, lost, "rank 3 disappeared with host " + hostB},
		"rank":            {0, func(_ *testing.T, _ *launched, rank, _ int) int { return rank }, 137, "rank 1 (sh, process %d on " + hostB + ") was killed by signal 9", ""},
	} {
		t.Run(name, func(t *testing.T) {
			l := launch(t, hostsJob{Hosts: []string{"localhost", hostB, hostC, hostB}, Args: sh(family), FanOut: c.fanOut, Verbose: true})
			var rank, node int
			for _, line := range l.sorted(4) {
				if strings.HasPrefix(line, "1 ready") {
					fmt.Sscanf(line, "1 ready %d %d", &rank, &node)
				}
			}
			// What a rank prints may arrive before the launcher knows its process.
			for id := range 4 {
				l.logs(fmt.Sprintf("rank %d is process ", id))
			}
			l.kill(c.victim(t, l, rank, node))
			if c.want != "" {
				c.want = fmt.Sprintf(c.want, rank)
			}
			l.ends(c.code, c.want, c.others)
			l.nothingLeft(limit)
		})
	}
}

// A host that is cut off kills its own ranks, and the launcher names the host. A short cut has no
// effect.
func TestACutHostKillsItsRanks(t *testing.T) {
	l := launch(t, hostsJob{Hosts: []string{hostB}, Args: sh(family)})
	var rank, node int
	fmt.Sscanf(l.line(), "0 ready %d %d", &rank, &node)
	ended, err := unix.PidfdOpen(rank, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ended)
	ssh := parent(t, node)
	runs := func(within time.Duration) bool {
		for until := time.Now().Add(within); ; {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(ended), Events: unix.POLLIN}}, int(time.Until(until).Milliseconds()))
			if !errors.Is(err, unix.EINTR) {
				return n == 0
			}
		}
	}
	syscall.Kill(ssh, syscall.SIGSTOP)
	if !runs(3 * time.Second) {
		t.Error("the rank did not survive a cut of 3s")
	}
	syscall.Kill(ssh, syscall.SIGCONT)
	if !runs(time.Second) {
		t.Error("the rank did not survive the end of a cut of 3s")
	}
	// A launcher that is stopped by STOP ends nothing, so the host itself ends the rank.
	syscall.Kill(l.cmd.Process.Pid, syscall.SIGSTOP)
	syscall.Kill(ssh, syscall.SIGSTOP)
	if runs(limit) {
		t.Errorf("the rank still runs, %v after its host was cut off", limit)
	}
	syscall.Kill(l.cmd.Process.Pid, syscall.SIGCONT)
	l.ends(255, fmt.Sprintf("rank 0 (sh, process %d on %s) was lost after ", rank, hostB))
}

// A job that is started again omits a host that was lost, if the other slots suffice. With a
// fan-out of 1, the connections to some other hosts pass through the lost host and end with it. The
// second start uses these other hosts again.
func TestARestartOmitsLostHosts(t *testing.T) {
	for _, c := range []struct {
		slots, fanOut, code int
		want                string
	}{
		{1, 0, 255, "the job is not started again on the hosts that are left: "},
		{2, 0, 0, "the job is started again"},
		{2, 1, 0, "host " + hostC + ": the connection through " + hostB + " has ended\n"},
	} {
		const script = `echo $TUTTI_RANK of start $TUTTI_INCARNATION
			[ $TUTTI_INCARNATION = 1 ] || [ $TUTTI_RANK = 1 ] || kill -9 $PPID
			[ $TUTTI_INCARNATION = 1 ] || exec sleep 1000`
		j := hostsJob{Hosts: []string{hostB}, Args: sh(script)}.job()
		j.Apps, j.Hosts = []App{{Ranks: 2, Args: j.Apps[0].Args}}, []placement.Host{{Name: hostB, Slots: 1}, {Name: hostC, Slots: c.slots}}
		j.Restarts, j.FanOut = 1, c.fanOut
		var out, log bytes.Buffer
		j.Stdout, j.Stderr = &out, &log
		o := Run(t.Context(), j)
		verdict := log.String() + strings.Join(o.Verdict, "\n")
		if o.Code != c.code || !strings.Contains(verdict, c.want) || !strings.Contains(verdict, "on "+hostB+") was lost after ") {
			t.Errorf("%+v: got %+v, want that code, the text, and that rank 0 was lost with %s:\n%s", c, o, hostB, log.String())
		}
		if got, want := strings.Count(out.String(), "of start 1"), 2*(c.slots-1); got != want {
			t.Errorf("%+v: got %d ranks in the second start, want %d:\n%s", c, got, want, log.String())
		}
	}
}

// A host that is silent is lost, also if a rank elsewhere fails meanwhile and the job is ended.
func TestARestartOmitsSilentHosts(t *testing.T) {
	cut := filepath.Join(t.TempDir(), "cut")
	if err := unix.Mkfifo(cut, 0o600); err != nil {
		t.Fatal(err)
	}
	// Rank 0 stops its own ssh. Rank 1, on the other host, then fails.
	script := `[ $TUTTI_INCARNATION = 0 ] || exit 0
		[ $TUTTI_RANK = 0 ] || { read -r x <` + cut + `; exit 1; }
		read -r x x x ssh x </proc/$PPID/stat; kill -STOP $ssh; echo >` + cut + `; exec sleep 1000`
	j := hostsJob{Hosts: []string{hostB}, Args: sh(script)}.job()
	j.Apps, j.Hosts = []App{{Ranks: 2, Args: j.Apps[0].Args}}, []placement.Host{{Name: hostB, Slots: 1}, {Name: hostC, Slots: 2}}
	j.Restarts, j.Grace = 1, 0
	var log bytes.Buffer
	j.Stderr = &log
	if o := Run(t.Context(), j); o.Code != 0 || !strings.Contains(log.String(), "host "+hostB+": it has been silent for 9s") {
		t.Errorf("got %+v, want a second start without %s, which was silent:\n%s", o, hostB, log.String())
	}
}

// A host that cannot be reached when a job is started again counts as lost, and the job is started
// once more without it.
func TestARestartOmitsUnreachableHosts(t *testing.T) {
	const hostD = "127.0.0.4"
	for _, bind := range []placement.Unit{placement.Node, placement.Core} {
		// The only rank of start 0 ends hostB, and from then on nobody can reach hostC.
		down := filepath.Join(t.TempDir(), "down")
		script := `echo start $TUTTI_INCARNATION; [ $TUTTI_INCARNATION != 0 ] || { : >` + down + `; kill -9 $PPID; exec sleep 1000; }`
		agent := `if [ "$1" = ` + hostC + ` ] && [ -e ` + down + ` ]; then echo no such route >&2; exit 255; fi; shift; exec sh -c "$*"`
		j := hostsJob{Hosts: []string{hostB}, Args: sh(script), Agent: agent}.job()
		j.Apps, j.Hosts = []App{{Ranks: 1, Args: j.Apps[0].Args}}, nil
		for _, name := range []string{hostB, hostC, hostD} {
			j.Hosts = append(j.Hosts, placement.Host{Name: name, Slots: 1})
		}
		j.Restarts, j.Placement.Bind = 2, bind
		var out, log bytes.Buffer
		j.Stdout, j.Stderr = &out, &log
		if o := Run(t.Context(), j); o.Code != 0 || !strings.HasSuffix(out.String(), "start 2\n") {
			t.Errorf("binding %v: got %+v and %q, want start 2 to succeed:\n%s", bind, o, out.String(), log.String())
		}
	}
}

// If a host cannot be reached in the first start, the job fails, although other hosts have free
// slots.
func TestARestartNeedsAFirstStart(t *testing.T) {
	j := hostsJob{Hosts: []string{hostB}, Args: sh("exit 0"), Agent: "exit 255"}.job()
	j.Apps, j.Hosts = []App{{Ranks: 1, Args: j.Apps[0].Args}}, []placement.Host{{Name: hostB, Slots: 1}, {Name: "localhost", Slots: 1}}
	j.Restarts = 1
	if out := Run(t.Context(), j); out.Code != exitNotRunning {
		t.Errorf("got %+v, want code %d", out, exitNotRunning)
	}
}

// A rank on another host may have written its part of the timeline there, so the launcher says only
// that no part is in the directory here.
func TestTheTimelineOfSeveralHostsNeedsASharedDirectory(t *testing.T) {
	for script, want := range map[string]string{
		"exit 0": " lacks rank 1: no part is in its directory here, want a directory that all hosts share\n",
		`[ $TUTTI_RANK != 1 ] || : >"$TUTTI_TIMELINE.rank1"; exit 3`: " is empty: no rank has started and closed a coordinator or a ps.Client\n",
	} {
		j := hostsJob{Hosts: []string{"localhost", hostB}, Args: sh(script)}.job()
		var log bytes.Buffer
		j.Stderr, j.Timeline = &log, filepath.Join(t.TempDir(), "out.json")
		Run(t.Context(), j)
		if want = "tuttirun: the timeline " + j.Timeline + want; log.String() != want {
			t.Errorf("%s: got %q, want %q", script, log.String(), want)
		}
	}
}

// A host may have sent events that the launcher has not received when it pauses the hosts before it
// stops itself. The answer comes after these events, so pauseOthers must receive them.
func TestPauseOthersReceivesWhatComesBeforeTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		senders := make(chan *remote.Sender, 1)
		go remote.Serve(theirs, func(s *remote.Sender) remote.CommandHandler {
			senders <- s
			return silentHost{}
		})
		l, err := remote.Connect(t.Context(), hostB, ours)
		if err != nil {
			t.Fatal(err)
		}
		h := &remoteHost{hostName: hostB}
		r := &run{job: &Job{Quiet: true}, others: others{hosts: []*remoteHost{h}, events: make(chan hostEvent)}}
		ctx, end := context.WithCancel(t.Context())
		over := make(chan struct{})
		var work sync.WaitGroup
		work.Go(func() { h.serve(ctx, l, nil, r.others.events, over) })
		r.fromHost(<-r.others.events) // the Link
		s := <-senders
		for range 200 {
			s.Send(&remote.Event{Note: &remote.Note{Text: "a note"}})
		}
		synctest.Wait()
		begin := time.Now()
		r.pauseOthers()
		if passed := time.Since(begin); passed > 0 {
			t.Errorf("the answer came after %v, want it at once", passed)
		}
		end()
		close(over)
		work.Wait()
	})
}

// A mute is a Starter. Its host sends heartbeats. It answers the command Prepare if prepares is
// set, and no other command.
type mute struct {
	prepares bool
	served   *sync.WaitGroup
}

func (m mute) Start(context.Context, string, string) (io.ReadWriteCloser, error) {
	ours, theirs := net.Pipe()
	m.served.Go(func() {
		remote.Serve(theirs, func(s *remote.Sender) remote.CommandHandler { return muteHost{m.prepares, s} })
	})
	return ours, nil
}

type muteHost struct {
	prepares bool
	events   *remote.Sender
}

func (h muteHost) Command(c *remote.Command) {
	if c.Prepare != nil && h.prepares {
		h.events.Send(&remote.Event{Prepared: &remote.Prepared{Addresses: []string{"127.0.0.1"}, Port: 1}})
	}
}
func (muteHost) Tunnels() bool                               { return false }
func (muteHost) Stream(_ int, _ remote.StreamID, c net.Conn) { c.Close() }

// The file system of a host may hang, so that the host answers neither Prepare nor Start. The
// launcher must give the host up after answerLimit.
func TestAHostThatAnswersNoCommandIsGivenUp(t *testing.T) {
	signals := make(chan os.Signal, 1) // starts the goroutine of package signal outside the bubble
	signal.Notify(signals, syscall.SIGUSR1)
	defer signal.Stop(signals)
	for _, prepares := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			j := hostsJob{Hosts: []string{hostB}, Args: sh("exit 0")}.job()
			j.Guardian, j.Timeout = "", time.Hour
			var served sync.WaitGroup
			j.Starter = mute{prepares, &served}
			var log bytes.Buffer
			j.Stderr = &log
			began := time.Now()
			out := Run(t.Context(), j)
			verdict := log.String() + strings.Join(out.Verdict, "\n")
			if out.Code == 0 || !strings.Contains(verdict, hostB+": it sends heartbeats, but has not answered") {
				t.Errorf("prepares %v: got %+v, want the host to be named:\n%s", prepares, out, verdict)
			}
			if d := time.Since(began); d < answerLimit || d > answerLimit+time.Minute {
				t.Errorf("prepares %v: the job ended after %v, want %v and the end of the connection", prepares, d, answerLimit)
			}
			served.Wait()
		})
	}
}

// A silentHost carries out no command.
type silentHost struct{}

func (silentHost) Command(*remote.Command)               {}
func (silentHost) Tunnels() bool                         { return false }
func (silentHost) Stream(int, remote.StreamID, net.Conn) {}

// A launcher that the user has stopped in the terminal is silent, and its hosts wait for it.
func TestAStoppedLauncherKeepsItsHosts(t *testing.T) {
	l := launch(t, hostsJob{Hosts: []string{hostB, hostC}, Args: sh("echo ready; cat; [ $TUTTI_RANK = 0 ] || exec sleep 14")})
	l.sorted(2)
	l.cmd.Process.Signal(syscall.SIGTSTP)
	// Reason: the length of the silence is what is tested.
	time.Sleep(12 * time.Second)
	l.cmd.Process.Signal(syscall.SIGCONT)
	l.stdin.Close()
	l.ends(0)
}

func TestLeftProcessesAreEndedOnAllHosts(t *testing.T) {
	l := launch(t, hostsJob{Hosts: []string{"localhost", hostB}, Args: sh("sleep 1000 & setsid sleep 1000 & exit 0")})
	l.ends(0, "ended ", ") on "+hostB, " that ranks had left behind")
}

func TestRootListensInTheRangeOfPorts(t *testing.T) {
	file, addr, err := listen(false, "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	used := int(addr.Port())
	if _, _, err := listen(false, fmt.Sprint(used)); !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "TUTTI_LISTEN") {
		t.Errorf("got %v, want an error that says that the port of TUTTI_LISTEN is in use", err)
	}
	file, addr, err = listen(false, fmt.Sprintf("%d-%d", used, used+100))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if got := int(addr.Port()); got <= used || got > used+100 {
		t.Errorf("got port %d, want one of the 100 after %d", got, used)
	}
}
