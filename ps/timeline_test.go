package ps_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/internal/timeline"
	"github.com/tutti-go/tutti/ps"
)

// mergedTimeline merges the parts of n ranks, and returns the checked timeline.
func mergedTimeline(t *testing.T, file string, n int) ([]timeline.ReadSpan, []timeline.Info) {
	t.Helper()
	var parts []io.Reader
	for r := range n {
		b, err := os.ReadFile(timeline.PSPartName(file, r))
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, bytes.NewReader(b))
	}
	var all bytes.Buffer
	if err := timeline.Merge(&all, parts...); err != nil {
		t.Fatal(err)
	}
	spans, infos, err := timeline.Check(&all)
	if err != nil {
		t.Fatal(err)
	}
	return spans, infos
}

// Two workers push and pull a tensor of three parts and a table. Each request shows once on its worker
// and once on its server, with the phases of each.
func TestATimelineShowsEveryRequestOnBothSides(t *testing.T) {
	const steps, parts = 3, 3
	for _, wire := range wires() {
		for _, row := range []struct {
			ranks int
			p     ps.Placement
		}{{3, ps.Servers(1)}, {2, ps.Everywhere()}} {
			t.Run(fmt.Sprint(wire, "/", row.p), func(t *testing.T) {
				leak.Check(t)
				file := filepath.Join(t.TempDir(), "out.json")
				t.Setenv("TUTTI_TIMELINE", file)
				err := run(wire, row.ranks, row.p, func(ctx context.Context, cl *ps.Client) error {
					w, err := ps.Declare[float32](ctx, cl, "w", 3*5000)
					if err != nil {
						return err
					}
					table, err := ps.DeclareTable[float32](ctx, cl, "t", 2, ps.Asynchronous())
					if err != nil {
						return err
					}
					buf := make([]float32, 3*5000)
					for range steps {
						if err := ps.WaitAll(ctx, w.IPushPull(buf, buf), table.IPush([]int64{7}, []float32{1, 2})); err != nil {
							return err
						}
						if err := table.Pull(ctx, []int64{7}, buf[:2]); err != nil {
							return err
						}
					}
					return nil
				}, ps.WithPart(20_000))
				if err != nil {
					t.Fatal(err)
				}
				spans, infos := mergedTimeline(t, file, row.ranks)
				if len(infos) != row.ranks || infos[0].Dropped != 0 {
					t.Errorf("parts: got %+v, want %d", infos, row.ranks)
				}
				const workers = 2
				got := make(map[string]int)
				for _, s := range spans {
					thread, _, _ := strings.Cut(s.Thread, " #")
					got[fmt.Sprint(thread, ": ", s.Name, " at depth ", s.Depth)]++
				}
				for what, want := range map[string]int{
					"push and pull w: pushpull at depth 0": workers * steps * parts,
					"push and pull t: push at depth 0":     workers * steps,
					"push and pull t: pull at depth 0":     workers * steps,
					"serve w: pushpull at depth 0":         workers * steps * parts,
					"serve t: push at depth 0":             workers * steps,
					"serve t: pull at depth 0":             workers * steps,
					"serve w: work at depth 1":             workers * steps * parts,
				} {
					if got[what] != want {
						t.Errorf("%s: got %d spans, want %d", what, got[what], want)
					}
				}
				for _, what := range []string{"serve w: wait at depth 1", "push and pull w: server at depth 1"} {
					if got[what] == 0 { // it is left out where it takes no time
						t.Errorf("%s: got no span, want some", what)
					}
				}
			})
		}
	}
}

// A push begins on its worker before it reaches the server, in the times of rank 0, which serves in this
// job.
func TestTheTimesOfATimelineAreThoseOfRank0(t *testing.T) {
	leak.Check(t)
	file := filepath.Join(t.TempDir(), "out.json")
	t.Setenv("HOROVOD_TIMELINE", file)
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		if c.Rank() == 0 {
			return ps.Serve(ctx, c)
		}
		cl, err := ps.Connect(ctx, c)
		if err != nil {
			return err
		}
		w, err := ps.Declare[float32](ctx, cl, "w", 100_000)
		if err != nil {
			return err
		}
		if err := w.Push(ctx, make([]float32, 100_000)); err != nil {
			return err
		}
		return cl.Close(ctx)
	})
	if err != nil {
		t.Fatal(err)
	}
	spans, infos := mergedTimeline(t, file, 2)
	var client, server timeline.ReadSpan
	for _, s := range spans {
		switch {
		case s.Depth > 0:
		case s.Rank == 0:
			server = s
		default:
			client = s
		}
	}
	within := infos[1].Error + 1000 // the server marks the arrival of the head a little later
	if server.Begin < client.Begin-within || server.Begin > client.End+within {
		t.Errorf("the server has the push at %d ns, want within the client's %d to %d, within %d", server.Begin, client.Begin, client.End, within)
	}
	if infos[1].Error == 0 {
		t.Error("the clock of rank 1 was not compared")
	}
}

func TestATimelineThatCannotBeWrittenIsAWarning(t *testing.T) {
	leak.Check(t)
	t.Setenv("TUTTI_TIMELINE", filepath.Join(t.TempDir(), "no", "folder"))
	var log bytes.Buffer
	err := run("memory", 1, ps.Everywhere(), func(ctx context.Context, cl *ps.Client) error {
		w, err := ps.Declare[float32](ctx, cl, "w", 3)
		if err != nil {
			return err
		}
		return w.Push(ctx, make([]float32, 3))
	}, ps.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	if err != nil || !strings.Contains(log.String(), "the timeline is not written") {
		t.Errorf("got %v and the log %q, want a warning", err, log.String())
	}
}
