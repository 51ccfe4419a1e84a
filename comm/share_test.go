package comm_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/internal/cpu"
	"github.com/tutti-go/tutti/transport/flaky"
)

// The ranks agree on sharing memory by collectives. These collectives cannot use the shared memory
// yet. They must succeed even if an algorithm that needs shared memory is forced.
func TestAlgorithmsInSharedMemoryMayBeForced(t *testing.T) {
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		buf := []int32{1}
		if err := comm.AllReduce(ctx, c, buf, comm.Sum); err != nil {
			return err
		}
		if got := c.Bridge().Algorithm("allreduce", 4, comm.Sum); got != "shared" || buf[0] != 3 {
			t.Errorf("rank %d: algorithm %q brought %d", c.Rank(), got, buf[0])
		}
		return comm.Broadcast(ctx, c, buf, 1)
	}, comm.WithAlgorithm("allreduce:shared,broadcast:shared"))
	if err != nil {
		t.Fatal(err)
	}
}

// Results larger than the CPU caches are written by stores that bypass the caches. These results
// must be right, too.
func TestSharedCollectivesAreRightWhenTheirResultsFitNoCache(t *testing.T) {
	const n = 3
	const count = cpu.MinNonTemporal/4/n/n*n + 7*n
	at := func(rank, i int) int32 { return int32(rank*count + i) }
	err := comm.Local(n, func(ctx context.Context, c *comm.Comm) error {
		src, dst := make([]int32, count), make([]int32, count)
		for i := range src {
			src[i] = at(c.Rank(), i)
		}
		check := func(name string, want func(i int) int32) error {
			if got := c.Bridge().Algorithm(name, 4*count, comm.Sum); got != "shared" {
				return fmt.Errorf("%s runs by %q", name, got)
			}
			for i := range dst {
				if dst[i] != want(i) {
					return fmt.Errorf("%s: element %d is %d, want %d", name, i, dst[i], want(i))
				}
			}
			return nil
		}
		const part = count / n
		for _, step := range []struct {
			name string
			run  func() error
			want func(i int) int32
		}{
			{"allreduce", func() error { return comm.AllReduce(ctx, c, dst, comm.Sum, comm.From(src)) }, func(i int) int32 { return at(0, i) + at(1, i) + at(2, i) }},
			{"reduce", func() error { return comm.Reduce(ctx, c, dst, comm.Max, 1, comm.From(src)) }, func(i int) int32 {
				if c.Rank() == 1 {
					return at(2, i)
				}
				// This rank is not the root, so the buffer is unchanged since the allreduce.
				return at(0, i) + at(1, i) + at(2, i)
			}},
			{"alltoall", func() error { return comm.AllToAll(ctx, c, dst, comm.From(src)) }, func(i int) int32 { return at(i/part, c.Rank()*part+i%part) }},
			{"allgather", func() error { return comm.AllGather(ctx, c, dst, comm.From(src[:part])) }, func(i int) int32 { return at(i/part, i%part) }},
			{"broadcast", func() error {
				if c.Rank() == 2 {
					copy(dst, src)
				}
				return comm.Broadcast(ctx, c, dst, 2)
			}, func(i int) int32 { return at(2, i) }},
		} {
			if err := step.run(); err != nil {
				return err
			}
			if err := check(step.name, step.want); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// If one rank cannot share the memory, all ranks must use messages, and that rank must log the
// reason. The rank may fail before the others map the memory, or after all ranks have mapped it.
func TestWhereOneRankCannotShareMemoryAllGoByMessages(t *testing.T) {
	const n = 4
	for _, hosts := range []int{1, 2} {
		for _, m := range []flaky.Moment{0, flaky.Before, flaky.After} {
			for victim := range n {
				if m == 0 && victim > 0 {
					continue // no rank fails in this case
				}
				t.Run(fmt.Sprintf("%d hosts/%v rank %d has come", hosts, m, victim), func(t *testing.T) {
					o := flaky.Options{Counts: func(s flaky.Step) bool { return s.Kind == flaky.Share }}
					if m != 0 {
						o.Rules = []flaky.Rule{flaky.Cut(m, 1).From(victim)}
					}
					script := flaky.New(o)
					// The test runs in a bubble, because the other ranks wait some seconds for a
					// rank that does not come.
					synctest.Test(t, func(t *testing.T) { failSharing(t, script, n, hosts, victim, m != 0) })
					if m != 0 && !script.Fired(0) {
						t.Error("no sharing failed")
					}
				})
			}
		}
	}
}

// failSharing starts n ranks. One of them may fail to share memory with the other ranks of its
// host.
func failSharing(t *testing.T, script *flaky.Script, n, hosts, victim int, fails bool) {
	var log lockedBuffer
	err := comm.Local(n, func(ctx context.Context, c *comm.Comm) error {
		shares := !fails || hosts > 1 && c.Rank()%hosts != victim%hosts
		if got := c.Bridge().Algorithm("allreduce", 4, comm.Sum) == "shared"; hosts == 1 && got != shares {
			return fmt.Errorf("rank %d: allreduce goes by %q; want shared memory: %v", c.Rank(), c.Bridge().Algorithm("allreduce", 4, comm.Sum), shares)
		}
		if got := c.HostShares(); hosts > 1 && got != shares {
			return fmt.Errorf("rank %d: its host shares memory: %v, want %v", c.Rank(), got, shares)
		}
		buf := []int32{1}
		if err := comm.AllReduce(ctx, c, buf, comm.Sum); err != nil {
			return err
		}
		if buf[0] != int32(n) {
			return fmt.Errorf("rank %d: the sum is %d", c.Rank(), buf[0])
		}
		return nil
	}, roundRobinHosts(hosts), comm.WithWrap(wrapBy(script)), comm.WithFlagHook(script.Publish), comm.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	if err != nil {
		t.Error(err)
	}
	if got := strings.Contains(log.String(), "cannot share memory"); got != fails {
		t.Errorf("the log says that memory cannot be shared: %v, want %v; the log:\n%s", got, fails, log.String())
	}
}
