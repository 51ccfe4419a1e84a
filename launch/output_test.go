package launch

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/tutti-go/tutti/fault"
)

// each writes the pieces to a pipe, one at a time, and returns what the copier writes.
func each(t *testing.T, tag string, pieces ...string) string {
	t.Helper()
	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	r := &lineCopier{src: from, dst: &lineWriter{w: &out}, tag: tag, last: new(lastError)}
	var done sync.WaitGroup
	done.Go(r.run)
	for _, p := range pieces {
		if _, err := io.WriteString(to, p); err != nil {
			t.Fatal(err)
		}
	}
	to.Close()
	done.Wait()
	return out.String()
}

func TestRelayTagsWholeLines(t *testing.T) {
	long := strings.Repeat("x", maxLine)
	for name, c := range map[string]struct {
		in   []string
		want string
	}{
		"nothing":               {nil, ""},
		"one line in pieces":    {[]string{"a", "b", "c\n"}, "[3] abc\n"},
		"two lines in one":      {[]string{"a\nb\n"}, "[3] a\n[3] b\n"},
		"empty lines":           {[]string{"\n\n"}, "[3] \n[3] \n"},
		"no newline at the end": {[]string{"a\nb"}, "[3] a\n[3] b\n"},
		"too long, cut":         {[]string{long, "yz\n"}, "[3] " + long + "\n[3] yz\n"},
	} {
		if got := each(t, "[3] ", c.in...); got != c.want {
			t.Errorf("%s: got %.80q, want %.80q", name, got, c.want)
		}
	}
}

func TestRelayWithoutTagPassesBytesAsTheyAre(t *testing.T) {
	text := "a\n\nb\x00\r" + strings.Repeat("x", 3*maxLine) + "\nno newline"
	if got := each(t, "", text); got != text {
		t.Errorf("got %d bytes, want %d", len(got), len(text))
	}
}

// The copier must not hold back an unfinished line: the line must appear while the writer waits.
func TestCopierShowsAnUnfinishedLine(t *testing.T) {
	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	shown, out := io.Pipe()
	var done sync.WaitGroup
	done.Go((&lineCopier{src: from, dst: &lineWriter{w: out}}).run)
	io.WriteString(to, "password: ")
	buf := make([]byte, 10)
	if _, err := io.ReadFull(shown, buf); err != nil || string(buf) != "password: " {
		t.Errorf("got %q, %v", buf, err)
	}
	to.Close()
	done.Wait()
}

type closedWriter struct{}

func (closedWriter) Write([]byte) (int, error) { return 0, errors.New("nobody reads") }

// If nobody reads the launcher's output any more, the rank must learn of it as it would without a
// launcher: its next write must fail.
func TestCopierEndsWhenNobodyReads(t *testing.T) {
	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	var done sync.WaitGroup
	done.Go((&lineCopier{src: from, dst: &lineWriter{w: closedWriter{}}, tag: "[0] "}).run)
	io.WriteString(to, "lost\n")
	done.Wait()
	if _, err := io.WriteString(to, "more\n"); err == nil {
		t.Error("the writer was not told")
	}
}

func TestLastErrorFindsTheCause(t *testing.T) {
	lost := fault.New(fault.PeerLost, "allreduce", 1, "gone").Error()
	for name, c := range map[string]struct {
		in, want string
		kind     fault.Kind
	}{
		"silence":                 {"", "", 0},
		"blank lines":             {"a\n\n  \n", "a", 0},
		"no newline":              {"a\nb", "b", 0},
		"an error of ours":        {"2026/01/02 03:04:05 " + lost + "\nexit status 1\n", "2026/01/02 03:04:05 " + lost, fault.PeerLost},
		"the last one of ours":    {lost + "\nbcast: rank 1: timeout\n", "bcast: rank 1: timeout", fault.Timeout},
		"a panic and its stack":   {"warning\npanic: oh\n\ngoroutine 1 [running]:\n" + strings.Repeat("\tmain.go:1\n", 1000), "panic: oh", 0},
		"ours before a panic":     {lost + "\npanic: oh\n", lost, fault.PeerLost},
		"a rank that is no error": {"done: rank 3: timeout of 3 s chosen: rank x: timeout\n", "done: rank 3: timeout of 3 s chosen: rank x: timeout", fault.Timeout},
		"a rank without a kind":   {"hello: rank 3: fine\n", "hello: rank 3: fine", 0},
		"a line without end":      {strings.Repeat("x", 5*maxQuoteLine), strings.Repeat("x", maxQuoteLine), 0},
	} {
		for _, step := range []int{1, 7, 1 << 20} {
			var e lastError
			for in := []byte(c.in); len(in) > 0; in = in[min(step, len(in)):] {
				e.write(in[:min(step, len(in))])
			}
			if got, kind := e.quote(); got != c.want || kind != c.kind {
				t.Errorf("%s, by %d: got %.80q (%v), want %.80q (%v)", name, step, got, kind, c.want, c.kind)
			}
		}
	}
}
