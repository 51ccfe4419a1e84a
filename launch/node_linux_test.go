package launch

import (
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/tutti-go/tutti/internal/vars"
	"github.com/tutti-go/tutti/launch/internal/remote"
)

// startNode runs a node in this process, and returns the launcher's end of its connection. The
// function end ends the connection and waits for the node. The parameter guardian is as in Job.
func startNode(t *testing.T, guardian string) (l *remote.Link, end func()) {
	t.Helper()
	ours, theirs := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		serveNode(theirs, guardian, nil)
	}()
	l, err := remote.Connect(t.Context(), hostB, ours)
	if err != nil {
		t.Fatal(err)
	}
	end = func() {
		l.Close()
		<-done
	}
	t.Cleanup(end)
	return l, end
}

// await waits for an event.
func await(t *testing.T, l *remote.Link, wanted func(*remote.Event) bool) {
	t.Helper()
	for late := time.After(limit); ; {
		select {
		case e, ok := <-l.Events():
			if !ok {
				t.Fatalf("the connection has ended: %v", l.Err())
			}
			if wanted(e) {
				return
			}
		case <-late:
			t.Fatalf("got no such event within %v", limit)
		}
	}
}

// The launcher waits until a host reports that no process is left after the last start. The host
// must report this after each start, even if all starts have failed.
func TestANodeIsEmptyAfterEachFailedStart(t *testing.T) {
	l, _ := startNode(t, "")
	l.Send(&remote.Command{Prepare: &remote.Prepare{Job: "job-of-failures.1", Size: 2}})
	for process := range 2 {
		l.Send(&remote.Command{Start: &remote.Start{Process: process, Args: []string{"/nonexistent/program"}}})
		await(t, l, func(e *remote.Event) bool { return e.Empty != nil && e.Empty.Starts == process+1 })
	}
}

// bystander starts a process in which the variable of the job's name is empty. The process belongs
// to no job.
func bystander(t *testing.T) (isAlive func() bool) {
	t.Helper()
	cmd := exec.Command("cat") // ends when its input ends
	cmd.Env = []string{vars.JobPart + "="}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	return func() bool {
		_, err := io.WriteString(in, "x")
		n, _ := out.Read(make([]byte, 1))
		return err == nil && n == 1
	}
}

func TestTheEmptyNameIsThatOfNoJob(t *testing.T) {
	alive := bystander(t)
	if !alive() {
		t.Fatal("the bystander does not run")
	}
	if left := membersOf(nil, ""); len(left) != 0 {
		t.Errorf("got the processes %v, want none", left)
	}
	if !killJob("", nil) || !alive() {
		t.Error("the end of no job has killed a bystander")
	}
}

// A launcher that asks a host only for its processors starts no guardian there, and kills nothing.
func TestANodeThatIsOnlyAskedStartsNothing(t *testing.T) {
	alive := bystander(t)
	started := filepath.Join(t.TempDir(), "started")
	guardian := filepath.Join(t.TempDir(), "guardian")
	if err := os.WriteFile(guardian, []byte("#!/bin/sh\necho >"+started+"\nread -r line <&3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	l, end := startNode(t, guardian)
	l.Send(&remote.Command{Prepare: new(remote.Prepare)})
	await(t, l, func(e *remote.Event) bool { return e.Prepared != nil && len(e.Prepared.CPUs) > 0 })
	end() // the node waits for the end of its guardian
	if _, err := os.Stat(started); err == nil {
		t.Error("the node has started a guardian")
	}
	if !alive() {
		t.Error("the node has killed a bystander")
	}
}
