//go:build unix

package agent

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// maxLine is the maximum length of a line of a process's standard error in the log.
const maxLine = 4 << 10

// A job is one process and the connection of its launcher. The process leads a process group. When
// run returns, all goroutines of the job have ended.
type job struct {
	agent *Agent
	conn  *tls.Conn
	log   *slog.Logger
	begun time.Time

	cmd           *exec.Cmd
	in            *os.File // the write end of its standard input
	out, messages *os.File // the read ends of its standard output and standard error
}

// start starts the process.
func (j *job) start(args []string) (err error) {
	j.cmd = &exec.Cmd{
		Path: j.agent.program, Args: append([]string{"tuttirun"}, args...),
		Env:         append(os.Environ(), j.connection()),
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	var theirs [3]*os.File
	ours := [3]**os.File{&j.in, &j.out, &j.messages}
	defer func() {
		for i, f := range theirs {
			f.Close() // a nil *os.File returns an error
			if err != nil {
				(*ours[i]).Close()
			}
		}
	}()
	for i := range theirs {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		theirs[i], *ours[i] = w, r
		if i == 0 {
			theirs[i], *ours[i] = r, w
		}
	}
	j.cmd.Stdin, j.cmd.Stdout, j.cmd.Stderr = theirs[0], theirs[1], theirs[2]
	return j.cmd.Start()
}

// connection returns the variable SSH_CONNECTION, which tells tuttirun remote at which address the
// launcher has reached this host. sshd sets the same variable, so the agent may have inherited an
// unrelated value from the login that started it.
func (j *job) connection() string {
	fields := make([]string, 0, 4)
	for _, addr := range []net.Addr{j.conn.RemoteAddr(), j.conn.LocalAddr()} {
		host, port, _ := net.SplitHostPort(addr.String())
		fields = append(fields, host, port)
	}
	return "SSH_CONNECTION=" + strings.Join(fields, " ")
}

// run copies bytes until the process has ended. If the process does not end within endTimeout after
// the end of its input, run kills it. In either case run kills what is left of the process group.
func (j *job) run() {
	defer j.in.Close()
	defer j.out.Close()
	defer j.messages.Close()
	writeText(j.conn, "") // accepts; if the write fails, copyIn fails, too
	var input, output sync.WaitGroup
	because := make(chan error, 1) // why the input has ended; one value
	late := time.AfterFunc(time.Hour, func() {
		// After Wait, another process may have the number.
		if j.cmd.Process.Signal(syscall.Signal(0)) == nil {
			j.kill()
		}
	})
	late.Stop()
	input.Go(func() {
		because <- j.copyIn()
		j.in.Close()
		late.Reset(j.agent.limits.end)
	})
	output.Go(j.copyOut)
	output.Go(j.logMessages)

	j.cmd.Wait() // the error is in ProcessState
	// A process group keeps its number as long as it has members. Even an empty group's number is not
	// in use again yet, because the kernel assigns numbers in turn.
	j.kill()
	// A process outside the process group may still hold the pipes.
	end := time.Now().Add(j.agent.limits.end)
	j.out.SetReadDeadline(end)
	j.messages.SetReadDeadline(end)
	j.conn.SetWriteDeadline(end)
	output.Wait()
	j.conn.Close()
	input.Wait()
	late.Stop()
	j.log.Info("a job has ended", "after", time.Since(j.begun).Round(time.Millisecond), "status", j.cmd.ProcessState, "launcher", <-because)
}

// kill kills the process group.
func (j *job) kill() { syscall.Kill(-j.cmd.Process.Pid, syscall.SIGKILL) }

// errCut is the reason to end a job whose launcher's host does not answer.
var errCut = errors.New("the launcher's host has acknowledged nothing for a while")

// errStuck is the reason to end a process that does not read its input.
var errStuck = errors.New("the process did not read its input")

// copyIn copies from the launcher to the process, and returns why the copying has ended.
func (j *job) copyIn() error {
	buf := make([]byte, 32<<10)
	for {
		j.conn.SetReadDeadline(time.Now().Add(j.agent.limits.cut / 3))
		n, err := j.conn.Read(buf)
		if n > 0 {
			j.in.SetWriteDeadline(time.Now().Add(j.agent.limits.stuck))
			if _, err := j.in.Write(buf[:n]); errors.Is(err, os.ErrDeadlineExceeded) {
				return errStuck
			} else if err != nil {
				return err
			}
		}
		switch {
		case err == nil:
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		case isCut(j.conn.NetConn(), j.agent.limits.cut):
			return errCut
		}
	}
}

// copyOut copies from the process to the launcher.
func (j *job) copyOut() {
	if _, err := io.Copy(j.conn, j.out); err != nil {
		j.conn.NetConn().Close() // ends copyIn, and so the process
		return
	}
	j.conn.CloseWrite()
}

// logMessages logs what the process writes to its standard error.
func (j *job) logMessages() {
	lines := bufio.NewReaderSize(j.messages, maxLine)
	for {
		line, long, err := lines.ReadLine()
		if err != nil {
			return
		}
		j.log.Info("the process says", "line", string(line))
		for long && err == nil {
			_, long, err = lines.ReadLine()
		}
	}
}
