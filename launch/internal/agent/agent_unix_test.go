//go:build unix

package agent

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tutti-go/tutti/internal/test/leak"
)

// limit is far above what a busy machine needs for one step of a test.
const limit = 2 * time.Minute

// aliveFile names the FIFO that processes of the tests hold open. A reader of the FIFO gets its end
// when the last of these processes has ended.
const aliveFile = "TUTTI_TEST_ALIVE"

// TestMain also is the program that agents start, and the program tuttirun agent.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "agent":
			os.Exit(Main(os.Args[2:], program, os.Stdout, os.Stderr))
		case "remote":
			os.Exit(echo())
		case "stubborn":
			os.Exit(stubborn())
		case "orphan":
			child := exec.Command(program, "hang")
			child.ExtraFiles = []*os.File{hold()}
			child.Start()
			os.Exit(0)
		case "hang":
			signal.Ignore(syscall.SIGTERM, syscall.SIGHUP)
			select {}
		case "fail":
			fmt.Fprintln(os.Stderr, "cannot go on")
			os.Exit(3)
		}
	}
	os.Exit(m.Run())
}

// program is this program, even for a user who cannot read its directory.
const program = "/proc/self/exe"

// hold opens the FIFO, if the variable aliveFile names one, and keeps it open until the process
// ends.
func hold() *os.File {
	path := os.Getenv(aliveFile)
	if path == "" {
		return nil
	}
	fifo, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		panic(err)
	}
	return fifo
}

// echo writes its arguments, its user and how it was reached, and then its input.
func echo() int {
	defer hold().Close()
	fmt.Println(os.Args[1:], os.Geteuid(), os.Getenv("SSH_CONNECTION"))
	io.Copy(os.Stdout, os.Stdin)
	return 0
}

// stubborn starts a child in its process group, and ignores the end of its input.
func stubborn() int {
	child := exec.Command(program, "hang")
	child.ExtraFiles = []*os.File{hold()}
	if err := child.Start(); err != nil {
		return 1
	}
	fmt.Println("begun")
	child.Wait()
	return 0
}

// alive makes the FIFO, and returns a function that waits until no process of the test holds it. At
// least one process must have opened the FIFO when the function is called.
func alive(t *testing.T) (wait func()) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "alive")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(aliveFile, path)
	// The test opens the FIFO for writing, too, so that it neither waits here for a process nor
	// reads an end before a process has opened the FIFO.
	fifo, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { fifo.Close(); own.Close() })
	return func() {
		t.Helper()
		own.Close()
		fifo.SetReadDeadline(time.Now().Add(limit))
		if _, err := fifo.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("processes of the job: got %v, want their end", err)
		}
	}
}

// secretIn writes a secret into a file and returns the file's name.
func secretIn(t *testing.T, secret string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const ourSecret = "what agents and launchers know"

// A logBuffer keeps lines of a log.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// An agentUnderTest is an Agent on loopback.
type agentUnderTest struct {
	*Agent
	addr *net.TCPAddr
	logs logBuffer
	over chan struct{} // closed when Serve has returned
}

// serve starts an Agent in this process. It ends with the test. The parameter tune may change the
// Agent before it serves.
func serve(t *testing.T, c Keys, tune func(*Agent)) *agentUnderTest {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveOn(t, c, ln, tune)
}

func serveOn(t *testing.T, c Keys, ln net.Listener, tune func(*Agent)) *agentUnderTest {
	t.Helper()
	config, err := c.server()
	if err != nil {
		t.Fatal(err)
	}
	a := &agentUnderTest{addr: ln.Addr().(*net.TCPAddr), over: make(chan struct{})}
	a.Agent = New(config, program, map[string][]string{
		"remote": {"remote", "--max-ranks", "7"}, "stubborn": {"stubborn"}, "fail": {"fail"}, "orphan": {"orphan"},
	}, 4, slog.New(slog.NewTextHandler(&a.logs, nil)))
	if tune != nil {
		tune(a.Agent)
	}
	go func() {
		defer close(a.over)
		a.Serve(ln)
	}()
	t.Cleanup(func() {
		a.End()
		<-a.over
	})
	return a
}

// dialer returns the Dialer of a launcher.
func (a *agentUnderTest) dialer(t *testing.T, c Keys) *Dialer {
	t.Helper()
	return dialerTo(t, c, a.addr)
}

func dialerTo(t *testing.T, c Keys, addr net.Addr) *Dialer {
	t.Helper()
	_, port, _ := net.SplitHostPort(addr.String())
	d, err := NewDialer(c, port)
	if err != nil {
		t.Fatal(err)
	}
	d.absent = 0
	return d
}

// begin starts a job and reads the first line of its process.
func begin(t *testing.T, d *Dialer, verb string) (conn *tls.Conn, line string) {
	t.Helper()
	rwc, err := d.Start(t.Context(), "127.0.0.1", verb)
	if err != nil {
		t.Fatal(err)
	}
	conn = rwc.(*tls.Conn)
	t.Cleanup(func() { conn.NetConn().Close() })
	conn.SetDeadline(time.Now().Add(limit))
	if line, err = readLine(conn); err != nil {
		t.Fatal(err)
	}
	return conn, line
}

// readLine reads a line and no further byte.
func readLine(r io.Reader) (string, error) {
	var line []byte
	for b := make([]byte, 1); ; {
		if _, err := io.ReadFull(r, b); err != nil {
			return string(line), err
		}
		if b[0] == '\n' {
			return string(line), nil
		}
		line = append(line, b[0])
	}
}

// waitFor waits until the log has a text.
func (a *agentUnderTest) waitFor(t *testing.T, text string) {
	t.Helper()
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
	late := time.After(limit)
	for !strings.Contains(a.logs.String(), text) {
		select {
		case <-poll.C:
		case <-late:
			t.Fatalf("got the log\n%s\nwant %q in it", a.logs.String(), text)
		}
	}
}

func TestBytesPassBetweenALauncherAndItsProcess(t *testing.T) {
	leak.Check(t)
	wait := alive(t)
	t.Setenv("SSH_CONNECTION", "10.9.9.9 9 10.9.9.8 22") // of the login that has started the agent
	c := Keys{Secret: secretIn(t, ourSecret)}
	a := serve(t, c, func(a *Agent) { a.limits.end = limit })
	conn, line := begin(t, a.dialer(t, c), "remote")
	own, port := conn.LocalAddr().(*net.TCPAddr).Port, a.addr.Port
	if want := fmt.Sprintf("[remote --max-ranks 7] %d 127.0.0.1 %d 127.0.0.1 %d", os.Geteuid(), own, port); line != want {
		t.Errorf("the process says %q, want %q", line, want)
	}
	state := conn.ConnectionState()
	if state.Version != tls.VersionTLS13 || state.DidResume || state.NegotiatedProtocol != proto {
		t.Errorf("got version %x, resumed: %v, protocol %q", state.Version, state.DidResume, state.NegotiatedProtocol)
	}
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<17) // more than all buffers hold
	go func() {
		conn.Write(sent)
		conn.CloseWrite()
	}()
	if got, err := io.ReadAll(conn); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("got %d bytes and %v, want the %d that were sent", len(got), err, len(sent))
	}
	wait()
	a.waitFor(t, "a job has ended")
	for _, want := range []string{"verb=remote", "name=\"CN=" + whoAmI(), "from=127.0.0.1:", "status=\"exit status 0\""} {
		if !strings.Contains(a.logs.String(), want) {
			t.Errorf("got the log\n%s\nwant %s in it", a.logs.String(), want)
		}
	}
}

func TestStandardErrorOfAProcessIsLogged(t *testing.T) {
	leak.Check(t)
	c := Keys{Secret: secretIn(t, ourSecret)}
	a := serve(t, c, nil)
	conn, err := a.dialer(t, c).Start(t.Context(), "127.0.0.1", "fail")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if n, err := conn.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("got %d bytes, %v, want the end", n, err)
	}
	a.waitFor(t, "exit status 3")
	if !strings.Contains(a.logs.String(), `line="cannot go on"`) {
		t.Errorf("got the log\n%s\nwant the line of the process in it", a.logs.String())
	}
}

// A process that ignores the end of its input is killed, with its children. The connection ends in
// each way in which a launcher can end.
func TestTheEndOfALauncherEndsItsProcesses(t *testing.T) {
	for name, end := range map[string]func(a *agentUnderTest, conn *tls.Conn){
		"killed":      func(_ *agentUnderTest, conn *tls.Conn) { conn.NetConn().Close() },
		"closed":      func(_ *agentUnderTest, conn *tls.Conn) { conn.Close() },
		"half closed": func(_ *agentUnderTest, conn *tls.Conn) { conn.CloseWrite() },
		"reset": func(_ *agentUnderTest, conn *tls.Conn) {
			conn.NetConn().(*net.TCPConn).SetLinger(0)
			conn.NetConn().Close()
		},
		"agent's turn": func(a *agentUnderTest, _ *tls.Conn) { a.End() },
	} {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			wait := alive(t)
			c := Keys{Secret: secretIn(t, ourSecret)}
			a := serve(t, c, func(s *Agent) { s.limits.end = 50 * time.Millisecond })
			conn, _ := begin(t, a.dialer(t, c), "stubborn")
			end(a, conn)
			wait()
			a.waitFor(t, "a job has ended")
		})
	}
}

func TestTheEndOfAProcessEndsItsChildren(t *testing.T) {
	leak.Check(t)
	wait := alive(t)
	c := Keys{Secret: secretIn(t, ourSecret)}
	a := serve(t, c, nil)
	conn, err := a.dialer(t, c).Start(t.Context(), "127.0.0.1", "orphan")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	a.waitFor(t, "a job has ended")
	wait()
}

// A process that does not read must not keep the agent from seeing that its launcher has gone.
func TestAProcessThatDoesNotReadIsKilled(t *testing.T) {
	leak.Check(t)
	wait := alive(t)
	c := Keys{Secret: secretIn(t, ourSecret)}
	a := serve(t, c, func(a *Agent) { a.limits.end, a.limits.stuck = 20*time.Millisecond, 20*time.Millisecond })
	conn, err := a.dialer(t, c).Start(t.Context(), "127.0.0.1", "stubborn")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.Write(make([]byte, 1<<20)) // ends with an error when the agent has given up
	a.waitFor(t, errStuck.Error())
	wait()
}

func TestAnAgentRefusesMoreJobsThanItMayRun(t *testing.T) {
	leak.Check(t)
	c := Keys{Secret: secretIn(t, ourSecret)}
	a := serve(t, c, func(s *Agent) { s.maxJobs = 1 })
	d := a.dialer(t, c)
	conn, _ := begin(t, d, "remote")
	for verb, want := range map[string]string{"remote": "the agent runs 1 jobs, as many as its --max-jobs allows", "sh": `the agent does not know verb "sh"`} {
		if _, err := d.Start(t.Context(), "127.0.0.1", verb); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q in the error", verb, err, want)
		}
	}
	conn.Close()
	a.waitFor(t, "a job has ended")
	begin(t, d, "remote")
}

func TestADrainingAgentKeepsItsJobs(t *testing.T) {
	leak.Check(t)
	c := Keys{Secret: secretIn(t, ourSecret)}
	a := serve(t, c, nil)
	d := a.dialer(t, c)
	conn, _ := begin(t, d, "remote")
	a.Drain()
	if _, err := d.Start(t.Context(), "127.0.0.1", "remote"); err == nil || !strings.Contains(err.Error(), "no agent is there (connection refused)") {
		t.Errorf("a new job: got %v, want a refusal", err)
	}
	fmt.Fprintln(conn, "still here")
	if line, err := readLine(conn); err != nil || line != "still here" {
		t.Errorf("the old job: got %q, %v, want its echo", line, err)
	}
	conn.Close()
	<-a.over
}

// startAgent starts tuttirun agent as a process, and returns the process and its address.
func startAgent(t *testing.T, attr *syscall.SysProcAttr, args ...string) (*exec.Cmd, net.Addr, *bufio.Reader) {
	t.Helper()
	cmd := exec.Command(program, append([]string{"agent", "--listen", "127.0.0.1:0", "--allow-run-as-root"}, args...)...)
	cmd.SysProcAttr = attr
	cmd.Dir = "/"
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	stderr.(*os.File).SetReadDeadline(time.Now().Add(limit))
	lines := bufio.NewReader(stderr)
	line, err := lines.ReadString('\n')
	_, rest, ok := strings.Cut(line, "address=")
	if err != nil || !ok {
		t.Fatalf("the agent says %q, %v, want its address", line, err)
	}
	addr, err := net.ResolveTCPAddr("tcp", strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return cmd, addr, lines
}

func TestTheEndOfAnAgentEndsItsProcesses(t *testing.T) {
	wait := alive(t)
	c := Keys{Secret: secretIn(t, ourSecret)}
	cmd, addr, _ := startAgent(t, nil, "--secret-file", c.Secret)
	conn, _ := begin(t, dialerTo(t, c, addr), "remote")
	cmd.Process.Kill()
	wait()
	if n, err := conn.Read(make([]byte, 1)); err == nil {
		t.Errorf("the launcher got %d bytes, want the end of the connection", n)
	}
}

func TestSignalsDrainAndEndAnAgent(t *testing.T) {
	wait := alive(t)
	c := Keys{Secret: secretIn(t, ourSecret)}
	cmd, addr, lines := startAgent(t, nil, "--secret-file", c.Secret)
	conn, _ := begin(t, dialerTo(t, c, addr), "remote")
	logged := func(want string) {
		t.Helper()
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatalf("got %v, want a line with %q", err, want)
			}
			if strings.Contains(line, want) {
				return
			}
		}
	}
	cmd.Process.Signal(syscall.SIGTERM)
	logged("signal=terminated")
	fmt.Fprintln(conn, "still here")
	if line, err := readLine(conn); err != nil || line != "still here" {
		t.Errorf("after TERM: got %q, %v, want the job's echo", line, err)
	}
	cmd.Process.Signal(syscall.SIGTERM)
	logged("a job has ended")
	wait()
	io.Copy(io.Discard, lines)
	if err := cmd.Wait(); err != nil {
		t.Errorf("after the second TERM: got %v, want exit code 0", err)
	}
}

// Two users run agents on one host. Each starts processes as its own user only, refuses the other
// user's launcher, and cannot read the other user's secret.
func TestTwoUsersAgentsOnOneHostAreSeparate(t *testing.T) {
	if os.Geteuid() != 0 {
		// Reason: only root can start a process as another user.
		t.Skip("this is not root")
	}
	users, secrets := [2]uint32{65533, 65534}, [2]Keys{}
	var addrs [2]net.Addr
	for i, uid := range users {
		secrets[i].Secret = secretIn(t, secretOf(uid))
		readable(t, secrets[i].Secret)
		if err := os.Chown(secrets[i].Secret, int(uid), int(uid)); err != nil {
			t.Fatal(err)
		}
	}
	for i, uid := range users {
		attr := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		_, addrs[i], _ = startAgent(t, attr, "--secret-file", secrets[i].Secret)
		other := exec.Command(program, "agent", "--secret-file", secrets[1-i].Secret)
		other.SysProcAttr, other.Dir = attr, "/"
		if out, err := other.CombinedOutput(); err == nil || !strings.Contains(string(out), "permission denied") {
			t.Errorf("user %d, the other one's secret: got %q, %v, want a refusal", uid, out, err)
		}
	}
	for i, uid := range users {
		// This process runs both launchers, so its user has a copy of each secret in a file.
		mine := Keys{Secret: secretIn(t, secretOf(uid))}
		others := Keys{Secret: secretIn(t, secretOf(users[1-i]))}
		if _, line := begin(t, dialerTo(t, mine, addrs[i]), "remote"); !strings.HasPrefix(line, fmt.Sprintf("[remote --max-ranks 512] %d ", uid)) {
			t.Errorf("the process says %q, want user %d", line, uid)
		}
		if _, err := dialerTo(t, others, addrs[i]).Start(t.Context(), "127.0.0.1", "remote"); err == nil || !strings.Contains(err.Error(), "another secret") {
			t.Errorf("the other user's launcher: got %v, want a refusal", err)
		}
	}
}

// secretOf returns a user's secret.
func secretOf(uid uint32) string { return fmt.Sprintf("what user %d knows and nobody else", uid) }

// readable lets other users reach a file in a directory of the test.
func readable(t *testing.T, path string) {
	t.Helper()
	for dir := filepath.Dir(path); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAnAgentDoesNotRunAsRootUnasked(t *testing.T) {
	_, err := parse([]string{"--secret-file", "x"})
	if refused := err != nil && strings.Contains(err.Error(), "--allow-run-as-root"); refused != (os.Geteuid() == 0) {
		t.Errorf("as user %d: got %v", os.Geteuid(), err)
	}
	if _, err := parse([]string{"--secret-file", "x", "--allow-run-as-root"}); err != nil {
		t.Errorf("with the option: got %v", err)
	}
}

func TestBadCommandLinesAreRefused(t *testing.T) {
	for line, want := range map[string]string{
		"bin/hello":                        `got the argument "bin/hello"`,
		"--max-jobs 0":                     "--max-jobs: got 0",
		"--max-ranks 0":                    "--max-ranks: got 0",
		"--np 4":                           "not defined: -np",
		"":                                 "got no --secret-file",
		"--cert a --key b":                 "want one, or all of --cert, --key and --ca",
		"--cert a --secret-file b":         "want one of the two",
		"--secret-file /dev/null":          "is not a regular file",
		"--cert a --key /dev/null --ca c":  "--key /dev/null: the file is not a regular file",
		"--secret-file /nonexistent/tutti": "--secret-file /nonexistent/tutti: the file cannot be read",
	} {
		var out bytes.Buffer
		code := Main(append(strings.Fields(line), "--allow-run-as-root"), program, io.Discard, &out)
		if code == 0 || !strings.Contains(out.String(), want) || strings.Count(out.String(), "\n") != 1 {
			t.Errorf("%q: got exit code %d and %q, want one line with %q", line, code, out.String(), want)
		}
	}
	for listen, want := range map[string]string{
		"": "127.0.0.1:" + Port, "10.0.0.1": "10.0.0.1:" + Port, "10.0.0.1:7": "10.0.0.1:7", ":7": ":7",
		"::1": "[::1]:" + Port, "[::1]": "[::1]:" + Port, "[::]:7": "[::]:7", "n1": "n1:" + Port,
	} {
		args := []string{"--allow-run-as-root"}
		if listen != "" {
			args = append(args, "--listen", listen)
		}
		if o, err := parse(args); err != nil || o.listen != want {
			t.Errorf("--listen %q: got %+v, %v, want %s", listen, o, err, want)
		}
	}
}

// bound returns a TCP socket that has a port of loopback, and does not listen yet.
func bound(t *testing.T) (file *os.File, addr net.Addr) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	file = os.NewFile(uintptr(fd), "socket")
	t.Cleanup(func() { file.Close() })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return file, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: name.(*syscall.SockaddrInet4).Port}
}

// A script may start agents and their launcher at the same time.
func TestALauncherWaitsForAnAgent(t *testing.T) {
	leak.Check(t)
	c := Keys{Secret: secretIn(t, ourSecret)}
	socket, addr := bound(t)
	d := dialerTo(t, c, addr)
	d.absent = 30 * time.Millisecond
	began := time.Now()
	_, err := d.Start(t.Context(), "127.0.0.1", "remote")
	if err == nil || !strings.Contains(err.Error(), "no agent is there (connection refused)") {
		t.Errorf("got %v, want no agent", err)
	}
	if waited := time.Since(began); waited < d.absent {
		t.Errorf("the launcher has waited for %v, want %v", waited, d.absent)
	}
	d.absent = limit
	started := make(chan error, 1)
	go func() {
		conn, err := d.Start(t.Context(), "127.0.0.1", "remote")
		if err == nil {
			conn.Close()
		}
		started <- err
	}()
	// Reason: nothing tells that the launcher has been refused. If it has not, the test still passes.
	time.Sleep(50 * time.Millisecond)
	if err := syscall.Listen(int(socket.Fd()), 1); err != nil {
		t.Fatal(err)
	}
	ln, err := net.FileListener(socket)
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, c, ln, nil)
	if err := <-started; err != nil {
		t.Errorf("got %v, want the agent that came later", err)
	}
}

func TestStartEndsWithItsContext(t *testing.T) {
	leak.Check(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0") // accepts in the kernel, and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	d := dialerTo(t, Keys{Secret: secretIn(t, ourSecret)}, ln.Addr())
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, err := d.Start(ctx, "127.0.0.1", "remote"); err == nil || !strings.Contains(err.Error(), context.Canceled.Error()) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}
