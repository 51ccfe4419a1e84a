//go:build unix

package launch

import (
	"bytes"
	"io"
	"net"
	"os"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/internal/pmi"
	"github.com/tutti-go/tutti/launch/internal/remote"
)

// A reader that begins at the same moment as finish still gets all that the pipe holds.
func TestATailIsReadWhileItIsFinished(t *testing.T) {
	const size = 64
	for range 2000 {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		end := &tail{File: r}
		finished := make(chan struct{})
		go func() {
			defer close(finished)
			end.finish()
		}()
		var got bytes.Buffer
		if _, err := io.Copy(&got, iotest.OneByteReader(end)); err != nil {
			t.Fatal(err)
		}
		<-finished
		r.Close()
		w.Close()
		if got.Len() != size {
			t.Fatalf("got %d bytes, want %d", got.Len(), size)
		}
	}
}

// What the pipe holds is copied although finish comes before the copy.
func TestATailIsCopiedAfterFinish(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	defer r.Close()
	if _, err := w.WriteString("the end"); err != nil {
		t.Fatal(err)
	}
	end := &tail{File: r}
	end.finish()
	var got bytes.Buffer
	if _, err := io.Copy(&got, end); err != nil || got.String() != "the end" {
		t.Errorf("got %q and %v, want the end", got.String(), err)
	}
}

// drainFar waits for the end of one stream of the host n1. The function ended reports whether the
// connection to the host has ended. drainFar returns the time until the end, and what the launcher has
// printed.
func drainFar(out io.Writer, far net.Conn, ended func() bool) (passed time.Duration, log string) {
	var printed bytes.Buffer
	r := &run{job: new(Job), err: &lineWriter{w: &printed}, policy: newPolicy(0, 0, 0), pmi: pmi.NewServer("", nil, nil)}
	src := &farTail{Conn: far, host: &remoteHost{hostName: "n1"}, ended: ended}
	r.pipes = []stream{src}
	r.copiers.Go((&lineCopier{src: src, dst: &lineWriter{w: out}}).run)
	begin := time.Now()
	r.drain()
	r.copiers.Wait()
	return time.Since(begin), printed.String()
}

// connected is for a connection that does not end.
func connected() bool { return false }

// A host is lost after its ranks have ended, but before the end of their output has arrived. The
// log must name the host.
func TestDrainNamesAHostWhoseOutputIsCut(t *testing.T) {
	ours, theirs := net.Pipe()
	go serveNode(theirs, "", nil)
	l, err := remote.Connect(t.Context(), "n1", ours)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	far := l.Stream(0, remote.Stdout)
	theirs.Close()
	const want = "tuttirun: host n1: the connection has ended before the output of its ranks, and what is missing is lost\n"
	if _, log := drainFar(io.Discard, far, l.HasEnded); log != want {
		t.Errorf("got %q, want %q", log, want)
	}
}

// A host that lives, and never ends the output of its ranks, does not hold up the end of the job.
func TestDrainGivesUpAStreamThatNeverEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		far, theirs := net.Pipe()
		defer theirs.Close()
		go theirs.Write([]byte("a line\n"))
		var out bytes.Buffer
		passed, log := drainFar(&out, far, connected)
		const want = "tuttirun: host n1 has not ended the output of its ranks within 1m0s, and what is missing is lost\n"
		if passed != time.Minute || log != want || out.String() != "a line\n" {
			t.Errorf("got %q, the line %q, after %v; want the line, %q, after 1m0s", out.String(), log, passed, want)
		}
	})
}

// The reader of the launcher's output may be slower than any host.
func TestDrainWaitsForASlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		far, theirs := net.Pipe()
		go func() {
			for range 3 {
				theirs.Write([]byte("a line\n"))
			}
			theirs.Close()
		}()
		slow := &slowWriter{each: time.Hour}
		if _, log := drainFar(slow, far, connected); log != "" || slow.String() != "a line\na line\na line\n" {
			t.Errorf("got %q and %q, want 3 lines only", slow.String(), log)
		}
	})
}

// A slowWriter takes a while for each Write.
type slowWriter struct {
	bytes.Buffer
	each time.Duration
}

func (w *slowWriter) Write(b []byte) (int, error) {
	// Reason: the writer is slow, by the bubble's clock.
	time.Sleep(w.each)
	return w.Buffer.Write(b)
}
