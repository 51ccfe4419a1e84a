package launch

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
)

// each writes the pieces to a pipe, one at a time, and returns what the copier writes.
func each(t *testing.T, prefix string, pieces ...string) string {
	t.Helper()
	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	r := &lineCopier{src: from, from: origin{rank: "3"}, dst: &lineWriter{w: &out}, prefix: prefix, last: new(lastError)}
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
		if got := each(t, rankPrefix, c.in...); got != c.want {
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

// If nobody reads the launcher's output any more, the next write of the rank must fail, as it would
// without a launcher.
func TestCopierEndsWhenNobodyReads(t *testing.T) {
	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	var done sync.WaitGroup
	done.Go((&lineCopier{src: from, dst: &lineWriter{w: closedWriter{}}, prefix: "[0] "}).run)
	io.WriteString(to, "lost\n")
	done.Wait()
	if _, err := io.WriteString(to, "more\n"); err == nil {
		t.Error("the writer was not told")
	}
}

func TestPatternsAreExpanded(t *testing.T) {
	o := origin{rank: "7", size: 128, host: "n1", stream: "stderr", incarnation: 2}
	for pattern, want := range map[string]string{
		"":                  "",
		"plain":             "plain",
		"%r/%h: ":           "7/n1: ",
		tagPrefix:           "[3,7]<stderr>:",
		rankDir + "%s":      "3/rank.007/stderr",
		"100%% of %g":       "100% of 2",
		"%%r%%":             "%r%",
		"%r%r%r":            "777",
		"é%hé":              "én1é",
		"of%%/%j/rank.%R/é": "of%/3/rank.007/é",
	} {
		if err := checkPattern(pattern); err != nil {
			t.Errorf("%q: %v", pattern, err)
		}
		if got := o.expand(pattern); got != want {
			t.Errorf("%q: got %q, want %q", pattern, got, want)
		}
	}
	restarted := origin{rank: "7.1", size: 10}
	if got := restarted.expand("%R"); got != "07.1" {
		t.Errorf("a rank that has been started again: got %q, want 07.1", got)
	}
	for _, pattern := range []string{"%", "a%", "%x", "%é", "%r%%%"} {
		if err := checkPattern(pattern); err == nil {
			t.Errorf("%q: got no error", pattern)
		}
	}
}

func TestLinesBeginWithTheTimeAsMpirunWritesIt(t *testing.T) {
	before := time.Now().Truncate(time.Second)
	line := each(t, "%t"+tagPrefix, "a\n")
	stamp, rest, _ := strings.Cut(line, "[")
	at, err := time.ParseInLocation("Mon Jan _2 15:04:05 2006", stamp, time.Local)
	if err != nil || at.Before(before) || at.After(time.Now()) || rest != "1,3]<>:a\n" {
		t.Errorf("got %q (%v)", line, err)
	}
}

// The colour ends before the line begins, and a file gets no colours.
func TestOnlyThePrefixOnATerminalHasAColour(t *testing.T) {
	var screen, file bytes.Buffer
	r := &lineCopier{from: origin{rank: "1", slot: 1}, prefix: rankPrefix, dst: &lineWriter{w: &screen, colors: true}, file: &lineWriter{w: &file}}
	r.write([]byte("a\nb\n"))
	if got, want := screen.String(), "\x1b[35m[1] \x1b[0ma\n\x1b[35m[1] \x1b[0mb\n"; got != want {
		t.Errorf("on the terminal: got %q, want %q", got, want)
	}
	if got, want := file.String(), "[1] a\n[1] b\n"; got != want {
		t.Errorf("in the file: got %q, want %q", got, want)
	}
	colors := make(map[string]bool)
	for slot := range 12 {
		colors[r.dst.colored("x", slot)] = true
	}
	if len(colors) != 12 {
		t.Errorf("got %d colours for 12 ranks", len(colors))
	}
	if got := r.dst.colored("", 0); got != "" {
		t.Errorf("without a prefix: got %q, want nothing", got)
	}
}

func TestProgressIsErased(t *testing.T) {
	var screen bytes.Buffer
	w := &lineWriter{w: &screen, terminal: true}
	const one, two = "tuttirun: 1 of 3 hosts have started", "tuttirun: 2 of 3 hosts have started"
	w.showProgress(1, 3)
	w.showProgress(2, 3)
	w.logf("note")
	w.showProgress(2, 3)
	w.showProgress(3, 3)
	w.write([]byte("line\n"))
	const erase = "\r\x1b[K"
	if got, want := screen.String(), one+erase+two+erase+"tuttirun: note\n"+two+erase+"line\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	screen.Reset()
	w.terminal = false
	w.showProgress(1, 3)
	if screen.Len() > 0 {
		t.Errorf("got %q where there is no terminal", &screen)
	}
}

// With nocopy, a line must be printed if it cannot be written to the file, and only then. A file
// must go on getting lines after the screen can no longer be written.
func TestLinesThatAFileLacksArePrinted(t *testing.T) {
	var screen bytes.Buffer
	var reported []error
	full := &lineWriter{w: closedWriter{}, onFail: func(err error) { reported = append(reported, err) }}
	r := &lineCopier{dst: &lineWriter{w: &screen}, file: full, fileOnly: true}
	if !r.write([]byte("a\n")) || !r.write([]byte("b\n")) {
		t.Error("the copier has given up")
	}
	if screen.String() != "a\nb\n" || len(reported) != 1 {
		t.Errorf("got %q printed and the errors %v, want both lines and one error", &screen, reported)
	}
	var file bytes.Buffer
	screen.Reset()
	r.file = &lineWriter{w: &file}
	if !r.write([]byte("c\n")) || screen.Len() != 0 || file.String() != "c\n" {
		t.Errorf("got %q printed and %q in the file, want the line in the file only", &screen, &file)
	}
	// Nobody reads the screen: the file goes on getting lines.
	r.dst, r.fileOnly = &lineWriter{w: closedWriter{}}, false
	if !r.write([]byte("d\n")) || file.String() != "c\nd\n" {
		t.Errorf("got %q in the file", &file)
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
