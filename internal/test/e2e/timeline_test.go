//go:build unix

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator"
	"github.com/tutti-go/tutti/internal/timeline"
)

// train sums several named tensors for several steps. If the victim is not -1, that rank reports
// that it is ready, and waits to be killed.
func train(ctx context.Context, a *rankProcess, c *comm.Comm) error {
	co, err := coordinator.Start(ctx, c)
	if err != nil {
		return err
	}
	for range 5 {
		var hs []*coordinator.Handle
		for i := range 4 {
			hs = append(hs, coordinator.AllReduce(co, fmt.Sprint("layer", i), make([]float32, a.Bytes/4), comm.Sum))
		}
		if err := coordinator.WaitAll(ctx, hs...); err != nil {
			return err
		}
	}
	if a.rank == a.Victim {
		a.log("trained", "")
		select {}
	}
	return co.Close(ctx)
}

func runTimeline(t *testing.T, file string, ranks int, o instruction) *job {
	t.Helper()
	j := newJob(t)
	o.Program = "train"
	args := []string{"-np", strconv.Itoa(ranks), "--timeline", file, "--grace", "20", self(t)}
	j.launcher = j.start(exec.Command(self(t), args...), nil, asLauncher+"=1", asRank+"="+o.encode())
	return j
}

// checkFile reads and checks a merged timeline.
func checkFile(t *testing.T, file string) ([]timeline.ReadSpan, []timeline.Info) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	spans, infos, err := timeline.Check(f)
	if err != nil {
		t.Fatal(err)
	}
	return spans, infos
}

func TestTheLauncherMergesTheTimelinesOfAllRanks(t *testing.T) {
	file := filepath.Join(t.TempDir(), "out.json")
	if err := os.WriteFile(timeline.PartName(file, 3), []byte("of an earlier job"), 0o644); err != nil {
		t.Fatal(err)
	}
	runTimeline(t, file, 4, instruction{Bytes: 4000, Victim: -1}).wantExit(0)
	spans, infos := checkFile(t, file)
	if len(infos) != 4 {
		t.Errorf("ranks %+v, want 4", infos)
	}
	for r := range 4 {
		n := 0
		for _, s := range spans {
			if s.Rank == r && s.Depth == 0 {
				n++
			}
		}
		if n != 20 {
			t.Errorf("rank %d: %d tensors, want 20", r, n)
		}
	}
	if left, _ := filepath.Glob(file + "?*"); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}

func TestATimelineNamesTheRankThatWasKilled(t *testing.T) {
	file := filepath.Join(t.TempDir(), "out.json")
	j := runTimeline(t, file, 3, instruction{Bytes: 4000, Victim: 1})
	pids := j.pids(3)
	j.events("trained", 1)
	j.signal(pids[1], syscall.SIGKILL)
	j.wantExit(128+int(syscall.SIGKILL), file+" lacks rank 1")
	if spans, infos := checkFile(t, file); len(infos) != 2 || len(spans) == 0 {
		t.Errorf("ranks %+v, want 2; %d spans", infos, len(spans))
	}
}
