package remote

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
)

const (
	maxLines = 32      // how many lines of standard error are kept until tuttirun has answered
	maxLine  = 1 << 10 // bytes; the rest of a longer line is dropped
)

// A process is a child of this process, such as ssh. Its standard input and output are used as a
// connection. It has its own process group, so that Ctrl-C in the terminal does not reach it.
type process struct {
	program, agent, host string // for Explain

	cmd    *exec.Cmd
	stdin  *os.File
	stdout *os.File
	stderr *os.File

	onClose sync.Once
	exited  chan struct{} // closed when the process has ended and cmd.ProcessState is set
	logged  chan struct{} // closed when the process's standard error has ended

	mu        sync.Mutex
	connected bool     // Connected has been called, so new lines go to log
	lines     []string // the last lines before Connected

	logging sync.Mutex // held while log gets lines, so that they stay in order; locked before mu
	log     func(line string)
}

// startProcess starts a command. After Connected, the function log gets the lines of the command's
// standard error.
func startProcess(argv []string, log func(line string)) (*process, error) {
	p := &process{cmd: exec.Command(argv[0], argv[1:]...), log: log, exited: make(chan struct{}), logged: make(chan struct{})}
	var theirs []*os.File
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
	}()
	ours := []**os.File{&p.stdin, &p.stdout, &p.stderr}
	for i := range ours {
		r, w, err := os.Pipe()
		if err != nil {
			p.closeFiles()
			return nil, err
		}
		if i == 0 {
			r, w = w, r
		}
		*ours[i], theirs = r, append(theirs, w)
	}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = theirs[0], theirs[1], theirs[2]
	// The variable may be left from a login to this host. On the other host, tuttirun remote must see
	// only the value that its own sshd sets. Commands other than ssh would pass on the old value.
	p.cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "SSH_CONNECTION=") })
	p.cmd.SysProcAttr = ownGroup()
	if err := p.cmd.Start(); err != nil {
		p.closeFiles()
		return nil, err
	}
	go p.readStderr()
	go func() {
		p.cmd.Wait()
		close(p.exited)
	}()
	return p, nil
}

func (p *process) closeFiles() {
	for _, f := range []*os.File{p.stdin, p.stdout, p.stderr} {
		if f != nil {
			f.Close()
		}
	}
}

func (p *process) Read(b []byte) (int, error)  { return p.stdout.Read(b) }
func (p *process) Write(b []byte) (int, error) { return p.stdin.Write(b) }

// Close closes the process's input, at which the process ends. A process that has not ended after
// closeLimit is killed. Close does not wait for the end; Explain does.
func (p *process) Close() error {
	p.onClose.Do(func() {
		p.stdin.Close()
		p.stdout.Close()
		go func() {
			await(p.exited)
			killGroup(p.cmd.Process)
			<-p.exited
			// Another process may still have standard error open, such as ssh's connection master.
			await(p.logged)
			p.stderr.Close()
		}()
	})
	return nil
}

// await waits until done is closed, at most closeLimit.
func await(done <-chan struct{}) {
	late := time.NewTimer(closeLimit)
	defer late.Stop()
	select {
	case <-done:
	case <-late.C:
	}
}

// Connected makes log get the lines of standard error, beginning with those that were kept. It does
// not wait for log, which may block on a terminal that the user has stopped.
func (p *process) Connected() {
	if p.isConnected() {
		return
	}
	p.logging.Lock()
	p.mu.Lock()
	lines := p.lines
	p.connected, p.lines = true, nil
	p.mu.Unlock()
	go func() {
		defer p.logging.Unlock()
		for _, line := range lines {
			p.log(line)
		}
	}()
}

func (p *process) isConnected() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.connected
}

// readStderr reads lines until standard error ends.
func (p *process) readStderr() {
	defer func() {
		p.logging.Lock() // Connected may still log lines
		defer p.logging.Unlock()
		close(p.logged)
	}()
	r := bufio.NewReaderSize(p.stderr, maxLine)
	for {
		line, long, err := r.ReadLine()
		if err != nil {
			return
		}
		p.add(printable(string(line)))
		for long && err == nil {
			_, long, err = r.ReadLine()
		}
	}
}

func (p *process) add(line string) {
	p.logging.Lock()
	defer p.logging.Unlock()
	switch {
	case strings.TrimSpace(line) == "":
	case p.isConnected():
		p.log(line)
	default:
		p.keep(line)
	}
}

// keep adds a line to the last maxLines lines, which Explain and Connected use.
func (p *process) keep(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lines = append(p.lines, line)
	p.lines = p.lines[max(0, len(p.lines)-maxLines):]
}

// printable removes every character that is not graphic in the sense of unicode.IsGraphic, except
// for tabs. So a line of a remote program cannot send control sequences to the launcher's terminal.
func printable(line string) string {
	return strings.Map(func(r rune) rune {
		if r != '\t' && !unicode.IsGraphic(r) {
			return -1
		}
		return r
	}, line)
}

// Explain waits for the end of the process, which Close has initiated, and says why the connection
// has ended.
func (p *process) Explain(err error) error {
	<-p.exited
	await(p.logged)
	p.mu.Lock()
	connected, lines := p.connected, p.lines
	p.mu.Unlock()
	switch {
	case !connected && (errors.Is(err, errUnanswered) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)):
		return p.explainSSH(err, p.cmd.ProcessState.ExitCode(), lines)
	case errors.Is(err, errBroken):
		return fmt.Errorf("%w: %s has ended: %v", err, p.agent, p.cmd.ProcessState)
	}
	return err
}
