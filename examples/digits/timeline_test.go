//go:build unix

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/tutti-go/tutti/internal/timeline"
	"github.com/tutti-go/tutti/launch"
)

// The test binary is also tuttirun, its guardian and the program of the ranks.
const (
	asLauncher = "DIGITS_TEST_LAUNCHER"
	asRank     = "DIGITS_TEST_RANK"
)

func TestMain(m *testing.M) {
	if os.Args[0] == "tutti-guardian" {
		launch.Main(os.Args, nil, nil, nil, nil)
		// A race build would wait in Exit, and tuttirun would wait for it.
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	if os.Getenv(asLauncher) != "" {
		os.Unsetenv(asLauncher)
		os.Exit(launch.Main(os.Args, os.Environ(), os.Stdin, os.Stdout, os.Stderr))
	}
	if os.Getenv(asRank) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// trainTimeline trains with 4 processes, and returns the timeline of that run.
func trainTimeline(t *testing.T) ([]timeline.ReadSpan, []timeline.Info) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "out.json")
	cmd := exec.Command(self, "-np", "4", "--timeline", file, self, "-coordinator", "-bar=false", "-epochs", "12", "-out", t.TempDir())
	cmd.Env = append(os.Environ(), asLauncher+"=1", asRank+"=1", "GORACE=atexit_sleep_ms=0")
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	limit := time.AfterFunc(2*time.Minute, func() { cmd.Process.Signal(syscall.SIGQUIT) })
	defer limit.Stop()
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v:\n%s", err, output.String())
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// Check checks that spans nest, and the other requirements of viewers.
	spans, infos, err := timeline.Check(f)
	if err != nil {
		t.Fatal(err)
	}
	return spans, infos
}

func TestTheTimelineOfATrainingShowsAllRanksInOneTime(t *testing.T) {
	spans, infos := trainTimeline(t)
	if len(infos) != 4 {
		t.Fatalf("there are %d parts, want 4", len(infos))
	}
	var off int64 // the largest error between any two clocks
	for r, i := range infos {
		if i.Rank != r || i.Host == "" || i.Dropped != 0 {
			t.Errorf("part %d is %+v", r, i)
		}
		off = max(off, 2*i.Error+2)
	}
	// moments are the times of one tensor on one rank, by step: begun when the rank submitted the
	// tensor, and agreed when the rank learned that all ranks had submitted it.
	type moments struct{ begun, agreed []int64 }
	seen := make(map[string]*[4]moments)
	for _, s := range spans {
		if seen[s.Thread] == nil {
			seen[s.Thread] = new([4]moments)
		}
		m := &seen[s.Thread][s.Rank]
		switch {
		case s.Depth == 0:
			m.begun = append(m.begun, s.Begin)
		case s.Name == "negotiate":
			m.agreed = append(m.agreed, s.End)
		}
	}
	if len(seen) < 4 {
		t.Errorf("only %d tensors are shown", len(seen))
	}
	for on, ranks := range seen {
		steps := len(ranks[0].begun)
		for r := range ranks {
			if n := len(ranks[r].begun); n != steps || len(ranks[r].agreed) != steps {
				t.Fatalf("%s: rank %d shows it %d times, agreed on %d times, and rank 0 %d times", on, r, n, len(ranks[r].agreed), steps)
			}
			for other := range ranks {
				for i, at := range ranks[r].agreed {
					if begun := ranks[other].begun[i]; at+off < begun {
						t.Fatalf("%s, step %d: rank %d knows at %d ns that all have submitted it, and rank %d does so at %d, with clocks within %d", on, i, r, at, other, begun, off)
					}
				}
			}
		}
	}
}
