package ps_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/ps"
	"github.com/tutti-go/tutti/ps/optimizer"
)

const modelSize, modelWidth = 5000, 3

// A model has one tensor of each kind that differs in a snapshot.
type model struct {
	adam, mean, async *ps.Tensor[float32]
	table             *ps.Table[float32]
	rows              []int64
}

func declareModel(ctx context.Context, cl *ps.Client) (m model, err error) {
	if m.adam, err = ps.Declare[float32](ctx, cl, "adam", modelSize, ps.Optimizer(optimizer.Adam{Rate: 0.01}), ps.Initial(ps.Uniform(-1, 1, 3))); err != nil {
		return m, err
	}
	if m.mean, err = ps.Declare[float32](ctx, cl, "mean", modelSize); err != nil {
		return m, err
	}
	if m.async, err = ps.Declare[float32](ctx, cl, "async", modelSize, ps.Asynchronous(), ps.Optimizer(optimizer.SGD{Rate: 1})); err != nil {
		return m, err
	}
	m.table, err = ps.DeclareTable[float32](ctx, cl, "table", modelWidth, ps.Optimizer(optimizer.Adagrad{Rate: 0.1}), ps.Initial(ps.Uniform(-1, 1, 3)))
	for i := range 500 {
		m.rows = append(m.rows, int64(i*i))
	}
	return m, err
}

// step pushes what depends on the worker and the step only, whole numbers to the asynchronous one.
func (m *model) step(ctx context.Context, worker, step int) error {
	ones := make([]float32, modelSize)
	for i := range ones {
		ones[i] = float32(-1 - worker)
	}
	some := m.rows[:(step*37+worker*11)%len(m.rows)]
	return ps.WaitAll(ctx, m.adam.IPush(vector(worker, step, modelSize)), m.mean.IPush(vector(worker, step+1000, modelSize)),
		m.async.IPush(ones), m.table.IPush(some, vector(worker, step, len(some)*modelWidth)))
}

// values returns all values.
func (m *model) values(ctx context.Context) ([]float32, error) {
	all := make([]float32, 3*modelSize+len(m.rows)*modelWidth)
	a, b, c, d := all[:modelSize], all[modelSize:2*modelSize], all[2*modelSize:3*modelSize], all[3*modelSize:]
	return all, ps.WaitAll(ctx, m.adam.IPull(a), m.mean.IPull(b), m.async.IPull(c), m.table.IPull(m.rows, d))
}

var snapshotWires = []string{"memory", "tcp"}

// synchronousVersions checks that a snapshot has the same version of all synchronous tensors.
func synchronousVersions(s *ps.Snapshot, version uint64) error {
	for _, v := range s.Versions {
		if v.Name != "async" && v.Version != version {
			return fmt.Errorf("snapshot has %v, want version %d of %s", s.Versions, version, v.Name)
		}
	}
	if len(s.Versions) != 4 {
		return fmt.Errorf("snapshot has %v, want four tensors", s.Versions)
	}
	return nil
}

// Two workers train on two servers, worker 0 takes a snapshot after five steps, and both go on. The
// snapshot is restored in a job with other servers, which goes on from step five. It must end with the
// bits of the first job.
func TestARestoredJobGoesOnWithTheSameBits(t *testing.T) {
	const at, steps = 5, 9
	for _, wire := range snapshotWires {
		dir := t.TempDir()
		var want []float32
		train := func(ctx context.Context, cl *ps.Client, first int, between func(step int) error) ([]float32, error) {
			m, err := declareModel(ctx, cl)
			if err != nil {
				return nil, err
			}
			for step := first; step < steps; step++ {
				if err := between(step); err != nil {
					return nil, err
				}
				if err := m.step(ctx, cl.Workers().Rank(), step); err != nil {
					return nil, err
				}
			}
			if err := cl.Workers().Barrier(ctx); err != nil {
				return nil, err
			}
			return m.values(ctx)
		}
		leak.Check(t)
		err := run(wire, 4, ps.Servers(2), func(ctx context.Context, cl *ps.Client) error {
			values, err := train(ctx, cl, 0, func(step int) error {
				if step != at {
					return nil
				}
				// Worker 1 goes on only as far as worker 0's pushes allow it, except in the asynchronous tensor.
				if err := cl.Workers().Barrier(ctx); err != nil {
					return err
				}
				if cl.Workers().Rank() == 0 {
					s, err := cl.Snapshot(ctx, dir)
					if err != nil {
						return err
					}
					if err := synchronousVersions(s, at); err != nil {
						return err
					}
				}
				return cl.Workers().Barrier(ctx)
			})
			if cl.Workers().Rank() == 0 {
				want = values
			}
			return err
		}, ps.WithPart(4000))
		if err != nil {
			t.Fatalf("%s: %v", wire, err)
		}
		for _, job := range []struct {
			ranks int
			p     ps.Placement
		}{{3, ps.Servers(1)}, {5, ps.Servers(3)}, {2, ps.Everywhere()}} {
			err := run(wire, job.ranks, job.p, func(ctx context.Context, cl *ps.Client) error {
				if cl.Workers().Rank() == 0 {
					r, err := cl.Restore(ctx, dir)
					if err != nil {
						return err
					}
					if got := r.Tensors[0]; got != (ps.RestoredTensor{Name: "adam", After: at}) || len(r.Tensors) != 4 || r.Skipped != nil {
						return fmt.Errorf("restored %+v", r)
					}
				}
				if err := cl.Workers().Barrier(ctx); err != nil {
					return err
				}
				got, err := train(ctx, cl, at, func(int) error { return nil })
				if err != nil {
					return err
				}
				return equal(fmt.Sprint(job.p), got, want)
			}, ps.WithPart(8000)) // the parts are those of the snapshot
			if err != nil {
				t.Errorf("%s, %v: %v", wire, job.p, err)
			}
		}
	}
}

// Worker 0 takes snapshots while the other workers push as fast as they can. Each snapshot must hold
// one version of the synchronous tensors, and of the asynchronous one whole pushes in each part.
func TestASnapshotDuringPushesIsConsistent(t *testing.T) {
	const steps = 12
	for _, wire := range snapshotWires {
		leak.Check(t)
		dir := t.TempDir()
		var last *ps.Snapshot
		var version uint64
		err := run(wire, 5, ps.Servers(2), func(ctx context.Context, cl *ps.Client) error {
			m, err := declareModel(ctx, cl)
			if err != nil {
				return err
			}
			for step := range steps {
				if err := m.step(ctx, cl.Workers().Rank(), step); err != nil {
					return err
				}
				if cl.Workers().Rank() != 0 || step%4 != 2 {
					continue
				}
				pushes := m.mean.IPush(make([]float32, modelSize)) // does not belong to it, or every part has it
				if last, err = cl.Snapshot(ctx, dir); err != nil {
					return err
				}
				version = uint64(step+1) + uint64(step/4)
				for _, v := range last.Versions {
					want := uint64(step + 1)
					if v.Name == "mean" {
						want = version + 1
					}
					if v.Name != "async" && v.Version != want {
						return fmt.Errorf("step %d: got %v, want version %d of %s", step, last.Versions, want, v.Name)
					}
				}
				if err := pushes.Wait(ctx); err != nil {
					return err
				}
			}
			for range 3 * min(cl.Workers().Rank(), 1) { // the extra pushes of worker 0 complete rounds
				if err := m.mean.Push(ctx, make([]float32, modelSize)); err != nil {
					return err
				}
			}
			return nil
		}, ps.WithPart(4000))
		if err != nil {
			t.Fatalf("%s: %v", wire, err)
		}
		err = run(wire, 2, ps.Servers(1), func(ctx context.Context, cl *ps.Client) error {
			r, err := cl.Restore(ctx, dir)
			if err != nil {
				return err
			}
			if r.Dir != last.Dir {
				return fmt.Errorf("restored %s, want %s", r.Dir, last.Dir)
			}
			m, err := declareModel(ctx, cl)
			if err != nil {
				return err
			}
			got := make([]float32, modelSize)
			if err := m.async.Pull(ctx, got); err != nil {
				return err
			}
			for i := range got {
				if got[i] != got[i/1000*1000] || got[i] < steps/4 || got[i] > 6*steps { // 1000 elements are a part
					return fmt.Errorf("asynchronous element %d: got %v, and %v at the begin of its part", i, got[i], got[i/1000*1000])
				}
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", wire, err)
		}
	}
}

// A worker restores an older snapshot in the job that took it.
func TestRestoreReturnsTheVersionsThatAreLost(t *testing.T) {
	leak.Check(t)
	dir := t.TempDir()
	err := run("memory", 4, ps.Servers(2), func(ctx context.Context, cl *ps.Client) error {
		me := cl.Workers().Rank()
		m, err := declareModel(ctx, cl)
		if err != nil {
			return err
		}
		w := cl.Workers()
		var s *ps.Snapshot
		var want []float32
		for step := range 6 {
			if err := m.step(ctx, me, step); err != nil {
				return err
			}
			if err := w.Barrier(ctx); err != nil {
				return err
			}
			if step == 2 && me == 0 {
				if s, err = cl.Snapshot(ctx, dir); err != nil {
					return err
				}
				if want, err = m.values(ctx); err != nil {
					return err
				}
			}
			if err := w.Barrier(ctx); err != nil {
				return err
			}
		}
		if me == 1 {
			// The push counts for a version that the restored one replaces. It is lost, too.
			if err := m.mean.Push(ctx, vector(me, 7, modelSize)); err != nil {
				return err
			}
		}
		if err := w.Barrier(ctx); err != nil {
			return err
		}
		if me == 0 {
			r, err := cl.Restore(ctx, s.Dir)
			if err != nil {
				return err
			}
			wanted := []ps.RestoredTensor{{"adam", 6, 3}, {"mean", 6, 3}, {"async", 12, 6}, {"table", 6, 3}}
			if !reflect.DeepEqual(r.Tensors, wanted) || r.Dir != s.Dir || r.Time.IsZero() {
				return fmt.Errorf("got %+v, want %+v of %s", r, wanted, s.Dir)
			}
			got, err := m.values(ctx)
			if err != nil {
				return err
			}
			if err := equal("restored values", got, want); err != nil {
				return err
			}
		}
		if err := w.Barrier(ctx); err != nil {
			return err
		}
		// The next version has one push of each worker.
		buf := vector(me, 3, modelSize)
		if err := m.mean.PushPull(ctx, buf, buf); err != nil {
			return err
		}
		return equal("version 4", buf, reduced(2, 3, modelSize, true))
	}, ps.WithPart(4000))
	if err != nil {
		t.Error(err)
	}
}

func TestBadSnapshots(t *testing.T) {
	leak.Check(t)
	dir := t.TempDir()
	err := run("memory", 3, ps.Servers(2), func(ctx context.Context, cl *ps.Client) error {
		if _, err := cl.Snapshot(ctx, dir); !errors.Is(err, fault.Misuse) || !strings.Contains(err.Error(), "got none, want at least one") {
			return fmt.Errorf("without tensors: got %v", err)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
			return fmt.Errorf("after a snapshot that failed: got %v and %v, want nothing", entries, err)
		}
		if _, err := cl.Restore(ctx, dir); err == nil || !strings.Contains(err.Error(), "got no complete snapshot") {
			return fmt.Errorf("of an empty directory: got %v", err)
		}
		m, err := declareModel(ctx, cl)
		if err != nil {
			return err
		}
		for step := range 2 {
			if err := m.step(ctx, 0, step); err != nil {
				return err
			}
			if _, err := cl.Snapshot(ctx, dir); err != nil {
				return err
			}
		}
		before, err := m.values(ctx)
		if err != nil {
			return err
		}

		file := filepath.Join(dir, "a file")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			return err
		}
		if _, err := cl.Snapshot(ctx, file); err == nil || !strings.Contains(err.Error(), file) {
			return fmt.Errorf("in a file: got %v, want its name", err)
		}
		canceled, cancel := context.WithCancel(ctx)
		cancel()
		if _, err := cl.Snapshot(canceled, dir); !errors.Is(err, fault.Canceled) {
			return fmt.Errorf("canceled: got %v", err)
		}
		if _, err := cl.Restore(canceled, dir); !errors.Is(err, fault.Canceled) {
			return fmt.Errorf("canceled: got %v", err)
		}

		second := filepath.Join(dir, "snapshot-00000002")
		files, err := filepath.Glob(filepath.Join(second, "server-*"))
		if err != nil || len(files) != 2 {
			return fmt.Errorf("got %v and %v, want a file of each server", files, err)
		}
		manifest := filepath.Join(second, "manifest.json")
		for name, c := range map[string]struct {
			path   string
			change func(b []byte) []byte
			want   string
		}{
			"a changed byte":    {files[0], func(b []byte) []byte { b[len(b)/2]++; return b }, "the file is damaged"},
			"another format":    {files[1], func(b []byte) []byte { b[8]++; return b }, "got format 2, want 1"},
			"another manifest":  {manifest, func(b []byte) []byte { return []byte(strings.Replace(string(b), `"format":1`, `"format":9`, 1)) }, "got format 9, want 1"},
			"a changed version": {manifest, func(b []byte) []byte { return []byte(strings.Replace(string(b), `"number":2`, `"number":3`, 1)) }, "got the checksum"},
		} {
			b, err := os.ReadFile(c.path)
			if err != nil {
				return err
			}
			if err := os.WriteFile(c.path, c.change(slices.Clone(b)), 0o600); err != nil {
				return err
			}
			if _, err := cl.Restore(ctx, dir); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.path) {
				return fmt.Errorf("%s: got %v, want %q and %s", name, err, c.want, c.path)
			}
			if err := os.WriteFile(c.path, b, 0o600); err != nil {
				return err
			}
		}
		after, err := m.values(ctx)
		if err != nil {
			return err
		}
		if err := equal("after refused snapshots", after, before); err != nil {
			return err
		}

		// A torn snapshot is skipped.
		if err := os.Truncate(files[0], 100); err != nil {
			return err
		}
		r, err := cl.Restore(ctx, dir)
		if err != nil {
			return err
		}
		if filepath.Base(r.Dir) != "snapshot-00000001" || len(r.Skipped) != 1 || !strings.Contains(r.Skipped[0], files[0]+": got 100 bytes") {
			return fmt.Errorf("got %+v, want snapshot 1, and 2 skipped because of %s", r, files[0])
		}
		return nil
	}, ps.WithPart(4000))
	if err != nil {
		t.Error(err)
	}
}

// The snapshot does not fit the job that restores it.
func TestASnapshotOfAnotherModelIsRefused(t *testing.T) {
	leak.Check(t)
	dir := t.TempDir()
	err := run("memory", 3, ps.Servers(2), func(ctx context.Context, cl *ps.Client) error {
		m, err := declareModel(ctx, cl)
		if err != nil {
			return err
		}
		if err := m.step(ctx, 0, 0); err != nil {
			return err
		}
		_, err = cl.Snapshot(ctx, dir)
		return err
	}, ps.WithPart(4000))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		declare func(ctx context.Context, cl *ps.Client) error
		opts    []ps.Option
		kind    fault.Kind
		want    string
	}{
		"other length": {func(ctx context.Context, cl *ps.Client) error {
			_, err := ps.Declare[float32](ctx, cl, "mean", 1)
			return err
		}, nil, fault.Mismatch, "got float32 [5000] synchronous mean zeros() on rank 0, want float32 [1]"},
		"other parts": {func(ctx context.Context, cl *ps.Client) error {
			_, err := declareModel(ctx, cl)
			return err
		}, nil, fault.Mismatch, "restore before the first worker declares it"},
		"little memory": {func(context.Context, *ps.Client) error { return nil },
			[]ps.Option{ps.WithMemory(100_000)}, fault.Exhausted, "raise the server's bound on memory, or add a server"},
		"second declaration": {func(ctx context.Context, cl *ps.Client) error {
			if _, err := cl.Restore(ctx, dir); err != nil {
				return err
			}
			if _, err := ps.DeclareTable[float32](ctx, cl, "table", 1); !errors.Is(err, fault.Mismatch) || !strings.Contains(err.Error(), "snapshot_test.go") {
				return fmt.Errorf("declared differently: got %v, want fault.Mismatch and the place of Restore", err)
			}
			return errors.New("none left")
		}, nil, 0, "none left"},
	} {
		err := run("memory", 2, ps.Servers(1), func(ctx context.Context, cl *ps.Client) error {
			if err := c.declare(ctx, cl); err != nil {
				return err
			}
			_, err := cl.Restore(ctx, dir)
			return err
		}, c.opts...)
		if err == nil || c.kind != 0 && !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %v with %q", name, err, c.kind, c.want)
		}
	}
}

// Worker 0's snapshot waits for a push of worker 1 that comes too late. Nothing is left of it.
func TestASnapshotThatIsGivenUpIsRemoved(t *testing.T) {
	leak.Check(t)
	dir := t.TempDir()
	err := run("memory", 3, ps.Servers(1), func(ctx context.Context, cl *ps.Client) error {
		m, err := declareModel(ctx, cl)
		if err != nil {
			return err
		}
		me := cl.Workers().Rank()
		if me == 0 {
			if err := m.step(ctx, 0, 0); err != nil {
				return err
			}
			short, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			if _, err := cl.Snapshot(short, dir); !errors.Is(err, fault.Timeout) {
				return fmt.Errorf("got %v, want a timeout", err)
			}
		}
		if err := cl.Workers().Barrier(ctx); err != nil {
			return err
		}
		if me == 1 {
			return m.step(ctx, 1, 0)
		}
		s, err := cl.Snapshot(ctx, dir)
		if err != nil {
			return err
		}
		if filepath.Base(s.Dir) != "snapshot-00000001" {
			return fmt.Errorf("got %s, want the number 1 again", s.Dir)
		}
		return synchronousVersions(s, 1)
	}, ps.WithPart(4000))
	if err != nil {
		t.Error(err)
	}
}

// Two workers take snapshots at once. One of them is told to wait for the other, or both succeed.
func TestTwoSnapshotsAtOnce(t *testing.T) {
	leak.Check(t)
	dir := t.TempDir()
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		return ps.Run(ctx, c, ps.Servers(1), func(ctx context.Context, cl *ps.Client) error {
			m, err := declareModel(ctx, cl)
			if err != nil {
				return err
			}
			if err := m.step(ctx, cl.Workers().Rank(), 0); err != nil {
				return err
			}
			_, err = cl.Snapshot(ctx, filepath.Join(dir, fmt.Sprint(c.Rank())))
			if err != nil && (!errors.Is(err, fault.Misuse) || !strings.Contains(err.Error(), "one at a time")) {
				return err
			}
			if err := cl.Workers().Barrier(ctx); err != nil {
				return err
			}
			if c.Rank() == 0 {
				_, err = cl.Snapshot(ctx, dir)
				return err
			}
			return nil
		}, nil)
	})
	if err != nil {
		t.Error(err)
	}
}

// One of two servers has no memory for a tensor, and an optimizer is known to the worker only. Both
// declarations fail. A snapshot then has the other tensors, and a later job can restore it.
func TestASnapshotOmitsFailedDeclarations(t *testing.T) {
	leak.Check(t)
	const n = 1000
	dir := t.TempDir()
	job := func(worker func(context.Context, *ps.Client) error) {
		t.Helper()
		err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
			memory := int64(1 << 20)
			if c.Rank() == 2 {
				memory = 20_000
			}
			return ps.Run(ctx, c, ps.Servers(2), worker, nil, ps.WithPart(1000), ps.WithMemory(memory))
		})
		if err != nil {
			t.Error(err)
		}
	}
	job(func(ctx context.Context, cl *ps.Client) error {
		w, err := ps.Declare[float32](ctx, cl, "w", n)
		if err != nil {
			return err
		}
		for range 2 {
			_, err = ps.Declare[float32](ctx, cl, "large", 20*n)
			if err := refusal("a large tensor", err, fault.Exhausted, "declare large"); err != nil {
				return err
			}
		}
		unknown := optimizer.Func{Name: "unknown", Float32: func([]float32, []float32, [][]float32, int64) {}}
		_, err = ps.Declare[float32](ctx, cl, "unknown", n, ps.Optimizer(unknown))
		if err := refusal("an optimizer that no server has", err, fault.Misuse, "declare unknown"); err != nil {
			return err
		}
		if err := w.Push(ctx, vector(0, 0, n)); err != nil {
			return err
		}
		s, err := cl.Snapshot(ctx, dir)
		if err != nil {
			return err
		}
		if want := []ps.TensorVersion{{Name: "w", Version: 1}}; !slices.Equal(s.Versions, want) {
			return fmt.Errorf("got a snapshot of %v, want %v", s.Versions, want)
		}
		return nil
	})
	job(func(ctx context.Context, cl *ps.Client) error {
		if _, err := cl.Restore(ctx, dir); err != nil {
			return err
		}
		w, err := ps.Declare[float32](ctx, cl, "w", n)
		if err != nil {
			return err
		}
		got := make([]float32, n)
		if err := w.Pull(ctx, got); err != nil {
			return err
		}
		return equal("restored", got, vector(0, 0, n))
	})
}

// Worker 1 has pushed five times more than worker 0 when worker 0 takes a snapshot of a bounded tensor.
// After the restoration both have pushed equally often, so worker 1 does not wait for worker 0.
func TestARestoredBoundedTensorBeginsWithEqualClocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		err := run("memory", 3, ps.Servers(1), func(ctx context.Context, cl *ps.Client) error {
			me := cl.Workers().Rank()
			buf := []float32{1, 2, 3}
			w, err := ps.Declare[float32](ctx, cl, "w", 3, ps.Bounded(1))
			if err != nil {
				return err
			}
			for range 5 * me {
				if err := w.Push(ctx, buf); err != nil {
					return err
				}
			}
			if err := cl.Workers().Barrier(ctx); err != nil {
				return err
			}
			if me == 0 {
				if _, err := cl.Snapshot(ctx, dir); err != nil {
					return err
				}
				if _, err := cl.Restore(ctx, dir); err != nil {
					return err
				}
			}
			if err := cl.Workers().Barrier(ctx); err != nil {
				return err
			}
			limited, cancel := context.WithTimeout(ctx, time.Minute) // ends a deadlock
			defer cancel()
			for step := range 3 {
				if err := w.Pull(limited, buf); err != nil {
					return fmt.Errorf("step %d: %w", step, err)
				}
				if err := w.Push(ctx, buf); err != nil {
					return err
				}
				if err := cl.Workers().Barrier(limited); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// Worker 0 gives two snapshots up that wait for a push of worker 1, and takes a third one. What is left
// of the first two must not stand in its way.
func TestASnapshotFollowsThoseThatWereGivenUp(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		err := run("memory", 3, ps.Servers(1), func(ctx context.Context, cl *ps.Client) error {
			table, err := ps.DeclareTable[float32](ctx, cl, "t", 1)
			if err != nil {
				return err
			}
			if cl.Workers().Rank() == 1 {
				if _, err := comm.Recv(ctx, cl.Workers(), 0, 0, make([]int, 1)); err != nil {
					return err
				}
				return table.Push(ctx, []int64{1}, []float32{1})
			}
			if err := table.Push(ctx, []int64{1}, []float32{1}); err != nil {
				return err
			}
			for range 2 {
				ended, end := context.WithTimeout(ctx, time.Second)
				defer end()
				_, err := cl.Snapshot(ended, dir)
				if err := refusal("the snapshot", err, fault.Timeout, "snapshot "); err != nil {
					return err
				}
			}
			third := make(chan error)
			go func() {
				_, err := cl.Snapshot(ctx, dir)
				third <- err
			}()
			synctest.Wait() // until it waits, too
			return errors.Join(comm.Send(ctx, cl.Workers(), 1, 0, []int{1}), <-third)
		})
		if err != nil {
			t.Error(err)
		}
	})
}

func TestASnapshotRemovesOlderOnesIfItIsAskedTo(t *testing.T) {
	leak.Check(t)
	dir := t.TempDir()
	err := run("memory", 1, ps.Everywhere(), func(ctx context.Context, cl *ps.Client) error {
		if _, err := ps.Declare[float32](ctx, cl, "w", 3); err != nil {
			return err
		}
		for range 3 {
			if _, err := cl.Snapshot(ctx, dir); err != nil {
				return err
			}
		}
		_, err := cl.Snapshot(ctx, dir, ps.KeepNewest(0))
		if err := refusal("keep none", err, fault.Misuse, "KeepNewest: got 0 snapshots, want at least 1"); err != nil {
			return err
		}
		_, err = cl.Snapshot(ctx, dir, ps.KeepNewest(2))
		return err
	})
	left, globErr := filepath.Glob(filepath.Join(dir, "*"))
	want := []string{filepath.Join(dir, "snapshot-00000003"), filepath.Join(dir, "snapshot-00000004")}
	if err != nil || globErr != nil || !slices.Equal(left, want) {
		t.Errorf("got %v, %v and %v, want %v", left, err, globErr, want)
	}
}
