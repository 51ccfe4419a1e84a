package comm_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/comm"
)

// value is what rank r contributes at index i: small, so that sums stay exact.
func value(r, i int) int { return (r*31+i*7)%1000 - 300 }

// run checks one call of every collective on n ranks for vectors of count elements.
type collectiveCase struct {
	name string
	run  func(ctx context.Context, c *comm.Comm, count int) error
}

func vector[T int32 | float32](r, count int) []T {
	v := make([]T, count)
	for i := range v {
		v[i] = T(value(r, i))
	}
	return v
}

func wantSum[T int32 | float32](n, i int) T {
	s := 0
	for r := range n {
		s += value(r, i)
	}
	return T(s)
}

func same[T comparable](what string, got, want []T) error {
	if len(got) != len(want) {
		return fmt.Errorf("%s: %d elements, want %d", what, len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			return fmt.Errorf("%s: element %d of %d is %v, want %v", what, i, len(got), got[i], want[i])
		}
	}
	return nil
}

func sums[T int32 | float32](n, count int) []T {
	v := make([]T, count)
	for i := range v {
		v[i] = wantSum[T](n, i)
	}
	return v
}

func joined[T int32 | float32](n, count int) []T {
	var v []T
	for r := range n {
		v = append(v, vector[T](r, count)...)
	}
	return v
}

// unequal are the counts of the v-variants: rank r has r+count%3, some have none.
func unequal(n, count int) (counts []int, total int) {
	counts = make([]int, n)
	for r := range counts {
		counts[r] = (count + r*r) % (count/2 + 3)
		if r == n/2 {
			counts[r] = 0
		}
		total += counts[r]
	}
	return counts, total
}

func offset(counts []int, r int) (lo, hi int) {
	for _, n := range counts[:r] {
		lo += n
	}
	return lo, lo + counts[r]
}

func collectives[T int32 | float32]() []collectiveCase {
	return []collectiveCase{
		{"allreduce", func(ctx context.Context, c *comm.Comm, count int) error {
			buf := vector[T](c.Rank(), count)
			if err := comm.AllReduce(ctx, c, buf, comm.Sum); err != nil {
				return err
			}
			src, dst := vector[T](c.Rank(), count), make([]T, count)
			if err := comm.AllReduceTo(ctx, c, dst, src, comm.Sum); err != nil {
				return err
			}
			if err := same("src", src, vector[T](c.Rank(), count)); err != nil {
				return err
			}
			if err := same("dst", dst, sums[T](c.Size(), count)); err != nil {
				return err
			}
			return same("buf", buf, sums[T](c.Size(), count))
		}},
		{"reduce", func(ctx context.Context, c *comm.Comm, count int) error {
			root := c.Size() - 1
			src, dst := vector[T](c.Rank(), count), make([]T, count)
			if err := comm.Reduce(ctx, c, dst, src, comm.Sum, root); err != nil {
				return err
			}
			if err := comm.Reduce(ctx, c, src, src, comm.Sum, 0); err != nil {
				return err
			}
			if c.Rank() == 0 {
				if err := same("in place", src, sums[T](c.Size(), count)); err != nil {
					return err
				}
			}
			if c.Rank() == root {
				return same("dst", dst, sums[T](c.Size(), count))
			}
			return same("dst elsewhere", dst, make([]T, count))
		}},
		{"broadcast", func(ctx context.Context, c *comm.Comm, count int) error {
			for root := range c.Size() {
				buf := vector[T](c.Rank(), count)
				if err := comm.Broadcast(ctx, c, buf, root); err != nil {
					return err
				}
				if err := same("buf", buf, vector[T](root, count)); err != nil {
					return err
				}
			}
			return nil
		}},
		{"allgather", func(ctx context.Context, c *comm.Comm, count int) error {
			dst := make([]T, c.Size()*count)
			if err := comm.AllGather(ctx, c, dst, vector[T](c.Rank(), count)); err != nil {
				return err
			}
			if err := same("dst", dst, joined[T](c.Size(), count)); err != nil {
				return err
			}
			clear(dst)
			own := dst[c.Rank()*count : (c.Rank()+1)*count]
			copy(own, vector[T](c.Rank(), count))
			if err := comm.AllGather(ctx, c, dst, own); err != nil {
				return err
			}
			return same("in place", dst, joined[T](c.Size(), count))
		}},
		{"gather and scatter", func(ctx context.Context, c *comm.Comm, count int) error {
			root := c.Size() / 2
			var all []T
			if c.Rank() == root {
				all = make([]T, c.Size()*count)
			}
			if err := comm.Gather(ctx, c, all, vector[T](c.Rank(), count), root); err != nil {
				return err
			}
			if c.Rank() == root {
				if err := same("gathered", all, joined[T](c.Size(), count)); err != nil {
					return err
				}
			}
			back := make([]T, count)
			if err := comm.Scatter(ctx, c, back, all, root); err != nil {
				return err
			}
			return same("scattered", back, vector[T](c.Rank(), count))
		}},
		{"reduce_scatter", func(ctx context.Context, c *comm.Comm, count int) error {
			lo, hi := collective.Chunk(count, c.Size(), c.Rank())
			src, dst := vector[T](c.Rank(), count), make([]T, hi-lo)
			if err := comm.ReduceScatter(ctx, c, dst, src, comm.Sum); err != nil {
				return err
			}
			if err := same("src", src, vector[T](c.Rank(), count)); err != nil {
				return err
			}
			return same("dst", dst, sums[T](c.Size(), count)[lo:hi])
		}},
		{"alltoall", func(ctx context.Context, c *comm.Comm, count int) error {
			n := c.Size()
			src, dst, want := make([]T, n*count), make([]T, n*count), make([]T, n*count)
			for r := range n {
				copy(src[r*count:], vector[T](c.Rank()*n+r, count))
				copy(want[r*count:], vector[T](r*n+c.Rank(), count))
			}
			if err := comm.AllToAll(ctx, c, dst, src); err != nil {
				return err
			}
			if err := same("dst", dst, want); err != nil {
				return err
			}
			if err := comm.AllToAll(ctx, c, src, src); err != nil {
				return err
			}
			return same("in place", src, want)
		}},
		{"v-variants", func(ctx context.Context, c *comm.Comm, count int) error {
			counts, total := unequal(c.Size(), count)
			lo, hi := offset(counts, c.Rank())
			whole := vector[T](3, total)
			dst := make([]T, total)
			if err := comm.AllGatherV(ctx, c, dst, whole[lo:hi], counts); err != nil {
				return err
			}
			if err := same("allgatherv", dst, whole); err != nil {
				return err
			}
			clear(dst)
			if err := comm.GatherV(ctx, c, dst, whole[lo:hi], counts, 0); err != nil {
				return err
			}
			if c.Rank() == 0 {
				if err := same("gatherv", dst, whole); err != nil {
					return err
				}
			}
			part := make([]T, hi-lo)
			if err := comm.ScatterV(ctx, c, part, whole, counts, 0); err != nil {
				return err
			}
			if err := same("scatterv", part, whole[lo:hi]); err != nil {
				return err
			}
			if err := comm.ReduceScatterV(ctx, c, part, vector[T](c.Rank(), total), counts, comm.Sum); err != nil {
				return err
			}
			return same("reduce_scatterv", part, sums[T](c.Size(), total)[lo:hi])
		}},
		{"alltoallv", func(ctx context.Context, c *comm.Comm, count int) error {
			n, me := c.Size(), c.Rank()
			sends, recvs := make([]int, n), make([]int, n)
			var src, want []T
			for r := range n {
				sends[r] = (me*n + r + count) % 7 * (count/100 + 1)
				recvs[r] = (r*n + me + count) % 7 * (count/100 + 1)
				src = append(src, vector[T](me*n+r, sends[r])...)
				want = append(want, vector[T](r*n+me, recvs[r])...)
			}
			dst := make([]T, len(want))
			if err := comm.AllToAllV(ctx, c, dst, src, recvs, sends); err != nil {
				return err
			}
			return same("dst", dst, want)
		}},
		{"barrier", func(ctx context.Context, c *comm.Comm, count int) error { return comm.Barrier(ctx, c) }},
	}
}

// counts are the lengths every collective is tried with on n ranks.
func testCounts(n int) []int { return []int{0, 1, n - 1, n, n + 1, 1000, 100_003} }

// transports are the wires every collective is tried over.
var transports = wires()

func wires() []string {
	if runtime.GOOS == "linux" {
		return []string{"memory", "tcp", "grpc", "shm"}
	}
	return []string{"memory", "tcp", "grpc"}
}

func TestEveryCollectiveOverEveryTransportRankCountAndLength(t *testing.T) {
	for _, wire := range transports {
		for n := 1; n <= 9; n++ {
			t.Run(fmt.Sprintf("%s/%d ranks", wire, n), func(t *testing.T) {
				err := comm.Local(n, func(ctx context.Context, c *comm.Comm) error {
					for _, count := range testCounts(n) {
						for _, cs := range [][]collectiveCase{collectives[float32](), collectives[int32]()} {
							for _, cc := range cs {
								if err := cc.run(ctx, c, count); err != nil {
									return fmt.Errorf("%s of %d elements: %w", cc.name, count, err)
								}
							}
						}
					}
					return nil
				}, comm.WithTransport(wire))
				if err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}
