package leak

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"
)

// Processes are a command and all processes that descend from it.
type Processes struct {
	ended *os.File // end of file once all of them have ended
}

// Start starts a command on Unix. All processes that descend from it inherit a pipe, so the pipe's end
// of file proves that none is left. The pipe is at descriptor 7, because tuttirun gives ranks other
// files at the descriptors 3 to 6.
func Start(tb testing.TB, cmd *exec.Cmd) *Processes {
	tb.Helper()
	ended, inherited, err := os.Pipe()
	if err != nil {
		tb.Fatal(err)
	}
	defer inherited.Close()
	cmd.ExtraFiles = []*os.File{nil, nil, nil, nil, inherited}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { ended.Close() })
	return &Processes{ended}
}

// Wait waits until all processes have ended. It returns an error if one is left after the given time.
func (p *Processes) Wait(limit time.Duration) error {
	p.ended.SetReadDeadline(time.Now().Add(limit))
	switch _, err := p.ended.Read(make([]byte, 1)); {
	case err == io.EOF:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("a process that was started is left after %v", limit)
	default:
		return fmt.Errorf("got %v from the pipe of all processes, want its end", err)
	}
}
