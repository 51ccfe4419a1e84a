package comm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/internal/test/worldtest"
	"github.com/tutti-go/tutti/reduce"
)

// roundRobinHosts assigns ranks to the given number of hosts in turn, with two hosts per rack.
func roundRobinHosts(hosts int) comm.Option {
	return comm.WithPlaces(func(rank int) (host, rack string) {
		h := rank % hosts
		return fmt.Sprintf("n%d", h), fmt.Sprintf("r%d", h/2)
	})
}

func TestRanksAreVisitedByHostAndRack(t *testing.T) {
	leak.Check(t)
	err := comm.Local(7, func(ctx context.Context, c *comm.Comm) error {
		check := func(c *comm.Comm, order []int, text string) error {
			if got := c.Layout().Order(); !slices.Equal(got, order) || c.Layout().String() != text {
				return fmt.Errorf("rank %d: got %v and %s, want %v and %s", c.Rank(), got, c.Layout().String(), order, text)
			}
			return nil
		}
		if err := check(c, []int{0, 3, 6, 1, 4, 2, 5}, "r0/n0[0 3 6] r0/n1[1 4] r1/n2[2 5]"); err != nil {
			return err
		}
		dup, err := c.Dup(ctx)
		if err != nil {
			return err
		}
		if err := check(dup, c.Layout().Order(), c.Layout().String()); err != nil {
			return err
		}
		half, err := c.Split(ctx, c.Rank()/4, -c.Rank()) // ranks in the order 3 2 1 0, and 6 5 4
		if err != nil {
			return err
		}
		want, text := []int{0, 3, 2, 1}, "r0/n0[0 3] r0/n1[2] r1/n2[1]"
		if c.Rank() >= 4 {
			want, text = []int{0, 2, 1}, "r0/n0[0] r0/n1[2] r1/n2[1]"
		}
		if err := check(half, want, text); err != nil {
			return err
		}
		if c.Rank() < 2 {
			return nil
		}
		some, err := c.Sub(ctx, 6, 5, 4, 3, 2)
		if err != nil {
			return err
		}
		return check(some, []int{0, 3, 2, 1, 4}, "r0/n0[0 3] r0/n1[2] r1/n2[1 4]")
	}, roundRobinHosts(3))
	if err != nil {
		t.Fatal(err)
	}
}

// All collectives must be right on several hosts, with the table's algorithms. The test uses large
// and small vectors, and hosts whose ranks share memory or do not. Communicators made from other
// communicators have their own shared memory.
func TestCollectivesOverSeveralHosts(t *testing.T) {
	for _, hosts := range []int{2, 3} {
		for _, share := range []bool{true, false} {
			for _, n := range []int{4, 7} {
				t.Run(fmt.Sprintf("%d ranks on %d hosts, shared %v", n, hosts, share), func(t *testing.T) {
					leak.Check(t)
					opts := []comm.Option{roundRobinHosts(hosts)}
					if !share {
						opts = append(opts, comm.WithParameters(comm.Parameters{NoSharedMemory: true}))
					}
					if err := comm.Local(n, func(ctx context.Context, c *comm.Comm) error { return overHosts(ctx, c, hosts, share) }, opts...); err != nil {
						t.Fatal(err)
					}
				})
			}
		}
	}
}

func overHosts(ctx context.Context, c *comm.Comm, hosts int, share bool) error {
	alone := c.Rank()+hosts >= c.Size() && c.Rank() < hosts // the only rank on its host
	if got := c.HostShares(); got != (share && !alone) {
		return fmt.Errorf("rank %d of %d: memory is shared: %v", c.Rank(), c.Size(), got)
	}
	if small, large := c.Bridge().Algorithm("allreduce", 100, comm.Sum), c.Bridge().Algorithm("allreduce", 1<<20, comm.Sum); small != "hierarchical" || large != "hierarchical_split" {
		return fmt.Errorf("the table chooses %s and %s", small, large)
	}
	dup, err := c.Dup(ctx)
	if err != nil {
		return err
	}
	for _, on := range []*comm.Comm{c, dup} {
		counts := []int{0, 1, 1000, 40_000}
		if raceEnabled {
			counts = []int{1, 1000}
		}
		for _, count := range counts {
			for _, call := range worldtest.Collectives[float32]() {
				if err := call.Run(ctx, on, count, new(worldtest.BufferTracker)); err != nil {
					return fmt.Errorf("%s of %d: %w", call.Name, count, err)
				}
			}
		}
	}
	return dup.Close(ctx)
}

// Blocking collectives must use a host's shared memory while non-blocking collectives run by
// messages.
func TestNonBlockingCollectivesUseNoHostMemory(t *testing.T) {
	leak.Check(t)
	err := comm.Local(6, func(ctx context.Context, c *comm.Comm) error {
		const rounds, count = 10, 20_000
		var requests []*comm.Request
		var bufs [][]int32
		for i := range rounds {
			buf := slices.Repeat([]int32{int32(c.Rank() + i)}, count)
			bufs = append(bufs, buf)
			requests = append(requests, comm.IAllReduce(c, buf, comm.Sum))
			own := slices.Repeat([]int32{int32(c.Rank())}, count)
			if err := comm.AllReduce(ctx, c, own, comm.Sum); err != nil {
				return err
			}
			if own[0] != 15 || own[count-1] != 15 {
				return fmt.Errorf("round %d: got %d and %d, want 15", i, own[0], own[count-1])
			}
		}
		for i, rq := range requests {
			if _, err := rq.Wait(ctx); err != nil {
				return err
			}
			if want := int32(15 + 6*i); bufs[i][0] != want || bufs[i][count-1] != want {
				return fmt.Errorf("request %d: got %d, want %d", i, bufs[i][0], want)
			}
		}
		return nil
	}, roundRobinHosts(2))
	if err != nil {
		t.Fatal(err)
	}
}

// first returns its first argument, so as an operator it does not commute.
func first(a, _ int64) int64 { return a }

func TestOperatorsThatDoNotCommuteKeepRankOrderOverHosts(t *testing.T) {
	leak.Check(t)
	op := reduce.Func("first", reduce.RankOrder, first)
	blocks := comm.WithPlaces(func(rank int) (host, rack string) { return fmt.Sprintf("n%d", rank/2), "" })
	for _, c := range []struct {
		name  string
		where comm.Option
		force string
		want  string // part of the error; "" for no error
	}{
		{"in order", blocks, "", ""},
		{"in order, forced", blocks, "allreduce:hierarchical", ""},
		{"in turn", roundRobinHosts(2), "", ""},
		{"in turn, forced", roundRobinHosts(2), "allreduce:hierarchical", "does not commute"},
	} {
		err := comm.Local(4, func(ctx context.Context, cm *comm.Comm) error {
			buf := []int64{int64(10 + cm.Rank())}
			err := comm.AllReduce(ctx, cm, buf, op)
			if c.want != "" {
				if !errors.Is(err, fault.Misuse) || !strings.Contains(err.Error(), c.want) {
					return fmt.Errorf("got %v, want fault.Misuse that says %q", err, c.want)
				}
				return nil
			}
			if err == nil && buf[0] != 10 {
				err = fmt.Errorf("got %d, want rank 0's 10", buf[0])
			}
			return err
		}, c.where, comm.WithAlgorithm(c.force))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestRankZeroReadsTheTopologyFileForAll(t *testing.T) {
	leak.Check(t)
	host, err := os.Hostname()
	if err != nil {
		// Reason: the topology file needs the name of this host.
		t.Skip(err)
	}
	file := filepath.Join(t.TempDir(), "racks")
	if err := os.WriteFile(file, []byte(host+" hall-7 # this one\nelsewhere hall-8\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out lockedBuffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	err = comm.Local(3, func(_ context.Context, c *comm.Comm) error {
		if got, want := c.Layout().String(), "hall-7/"+host+"[0 1 2]"; got != want {
			return fmt.Errorf("got %s, want %s", got, want)
		}
		return nil
	}, comm.WithParameters(comm.Parameters{Topology: file}), comm.WithLogger(log))
	if err != nil {
		t.Fatal(err)
	}
	if line := "[0 1 2]"; strings.Count(out.String(), "visit the ranks") != 1 || !strings.Contains(out.String(), line) {
		t.Errorf("the log says %q, want one line with the order", out.String())
	}
}

// A lockedBuffer is a bytes.Buffer that several goroutines may use.
type lockedBuffer struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func TestInvalidTopologyEndsInit(t *testing.T) {
	leak.Check(t)
	file := filepath.Join(t.TempDir(), "racks")
	if err := os.WriteFile(file, []byte("elsewhere hall-8\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	torn := comm.WithPlaces(func(rank int) (host, rack string) { return "n0", fmt.Sprintf("r%d", rank) })
	for _, c := range []struct {
		name string
		opt  comm.Option
		want string
	}{
		{"no file", comm.WithParameters(comm.Parameters{Topology: file + "x"}), "cannot be read"},
		{"a host that is not listed", comm.WithParameters(comm.Parameters{Topology: file}), "is not listed"},
		{"a host in two racks", torn, `rack of host "n0": got "r0" from rank 0`},
		{"a name that is none", comm.WithParameters(comm.Parameters{Rack: "a b"}), "rack, from TUTTI_RACK or Parameters.Rack"},
	} {
		err := comm.Local(3, func(context.Context, *comm.Comm) error { return nil }, c.opt)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want what says %q", c.name, err, c.want)
		}
	}
}
