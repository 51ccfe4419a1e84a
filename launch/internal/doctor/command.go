package doctor

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"time"
)

const (
	maxStderr = 4 << 10         // of what a command prints on standard error
	endLimit  = 2 * time.Second // that a command has to end after its input has ended
)

// Command returns a Start that runs a command on this host.
func Command(argv ...string) func(context.Context) (io.ReadWriteCloser, error) {
	return func(context.Context) (io.ReadWriteCloser, error) {
		p := &process{cmd: exec.Command(argv[0], argv[1:]...)}
		p.cmd.Stderr = &p.stderr
		p.cmd.WaitDelay = endLimit // a child of the command may hold its output
		var err error
		if p.WriteCloser, err = p.cmd.StdinPipe(); err != nil {
			return nil, err
		}
		if p.Reader, err = p.cmd.StdoutPipe(); err != nil {
			return nil, err
		}
		return p, p.cmd.Start()
	}
}

// A process is a command that Command has started.
type process struct {
	io.WriteCloser // its standard input
	io.Reader
	cmd    *exec.Cmd
	stderr bounded
	once   sync.Once
	err    error
}

// Close ends the standard input of the command, and kills it if it does not end then. The error is
// what it has printed on standard error, as one line, if it has failed.
func (p *process) Close() error {
	p.once.Do(func() {
		p.WriteCloser.Close()
		kill := time.AfterFunc(endLimit, func() { p.cmd.Process.Kill() })
		defer kill.Stop()
		if err := p.cmd.Wait(); err != nil {
			text := strings.Join(strings.FieldsFunc(string(p.stderr), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
			p.err = fmt.Errorf("%w: %s", err, text)
		}
	})
	return p.err
}

// A bounded keeps the first maxStderr bytes that are written to it.
type bounded []byte

// Write implements io.Writer.
func (b *bounded) Write(text []byte) (int, error) {
	*b = append(*b, text[:min(len(text), maxStderr-len(*b))]...)
	return len(text), nil
}
