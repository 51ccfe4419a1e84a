//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator"
)

// A program returns a function step. Each rank calls step until it returns an error, which is
// errEnd when the program is over. The random numbers are equal on all ranks.
type program func(c *comm.Comm, rng *rand.Rand) (step func(ctx context.Context) error)

// errEnd ends a program without an error.
var errEnd = errors.New("the program is over")

// A waitError is the error of a call that has waited for one rank only. If that rank is not the
// lost one, the call ends only when that rank closes or exits.
type waitError struct {
	rank int
	err  error
}

func (e *waitError) Error() string { return e.err.Error() }
func (e *waitError) Unwrap() error { return e.err }

// waitFor returns the error of a call that has waited for the given rank only.
func waitFor(rank int, err error) error {
	if err == nil {
		return nil
	}
	return &waitError{rank, err}
}

func programs() map[string]program {
	return map[string]program{
		"collectives": collectives,
		"requests":    requests,
		"ring":        ring,
		"chain":       chain,
		"named":       named,
		"split":       makers,
		"close":       closeSoon,
		"coordinator": coordinate,
		shrinks:       nil, // see runShrinking
	}
}

// runProgram runs a program until it fails, or until rank 0 has set over.
func runProgram(ctx context.Context, c *comm.Comm, in *instruction, over *atomic.Bool) error {
	if in.Program == shrinks {
		return runShrinking(ctx, c, in, over)
	}
	step := programs()[in.Program](c, newRandom(in.Seed))
	for i := 1; ; i++ {
		err := step(ctx)
		if err == errEnd {
			return nil
		}
		if err != nil {
			return err
		}
		if !in.Ends || i%4 != 0 {
			continue
		}
		if end, err := agreeToEnd(ctx, c, over); err != nil || end {
			return err
		}
	}
}

// agreeToEnd reports on all ranks whether rank 0 has set over.
func agreeToEnd(ctx context.Context, c *comm.Comm, over *atomic.Bool) (bool, error) {
	flag := []int32{0}
	if over.Load() {
		flag[0] = 1
	}
	err := comm.AllReduce(ctx, c, flag, comm.Max)
	return flag[0] == 1, err
}

func programNames() []string { return slices.Sorted(maps.Keys(programs())) }

func newRandom(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }

// size returns a random number of elements: often small, sometimes a hundred thousand.
func size(rng *rand.Rand) int { return 1 + rng.IntN(1<<rng.IntN(18)) }

// equal returns an error unless all elements of got equal want.
func equal(what string, got []int32, want int32) error {
	for i, x := range got {
		if x != want {
			return fmt.Errorf("%w: %s: element %d is %d, want %d", errWrong, what, i, x, want)
		}
	}
	return nil
}

// filled returns n elements of one value.
func filled(n int, value int32) []int32 {
	buf := make([]int32, n)
	for i := range buf {
		buf[i] = value
	}
	return buf
}

// sum runs an allreduce in which rank r contributes r+1.
func sum(ctx context.Context, c *comm.Comm, n int) error {
	buf := filled(n, int32(c.Rank()+1))
	if err := comm.AllReduce(ctx, c, buf, comm.Sum); err != nil {
		return err
	}
	return equal("allreduce", buf, int32(c.Size()*(c.Size()+1)/2))
}

// collective runs one random collective.
func collective(ctx context.Context, c *comm.Comm, rng *rand.Rand) error {
	n, root := size(rng), rng.IntN(c.Size())
	switch rng.IntN(5) {
	case 0:
		return c.Barrier(ctx)
	case 1:
		buf := filled(n, int32(c.Rank()))
		if err := comm.Broadcast(ctx, c, buf, root); err != nil {
			return err
		}
		return equal("broadcast", buf, int32(root))
	case 2:
		buf := make([]int32, c.Size()*n)
		if err := comm.AllGather(ctx, c, buf, comm.From(filled(n, int32(c.Rank())))); err != nil {
			return err
		}
		for r := range c.Size() {
			if err := equal("allgather", buf[r*n:(r+1)*n], int32(r)); err != nil {
				return err
			}
		}
		return nil
	case 3:
		buf := filled(n, 1)
		if err := comm.Reduce(ctx, c, buf, comm.Sum, root); err != nil || c.Rank() != root {
			return err
		}
		return equal("reduce", buf, int32(c.Size()))
	}
	return sum(ctx, c, n)
}

func collectives(c *comm.Comm, rng *rand.Rand) func(context.Context) error {
	return func(ctx context.Context) error { return collective(ctx, c, rng) }
}

// requests keeps several non-blocking collectives active at the same time.
func requests(c *comm.Comm, rng *rand.Rand) func(context.Context) error {
	return func(ctx context.Context) error {
		var rs []*comm.Request
		var bufs [][]int32
		for range 1 + rng.IntN(4) {
			bufs = append(bufs, filled(size(rng), int32(c.Rank()+1)))
			rs = append(rs, comm.IAllReduce(c, bufs[len(bufs)-1], comm.Sum))
		}
		if err := comm.WaitAll(ctx, rs...); err != nil {
			return err
		}
		for _, buf := range bufs {
			if err := equal("iallreduce", buf, int32(c.Size()*(c.Size()+1)/2)); err != nil {
				return err
			}
		}
		return nil
	}
}

// ring passes vectors around a ring of all ranks.
func ring(c *comm.Comm, rng *rand.Rand) func(context.Context) error {
	to, from := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
	i := int32(-1)
	return func(ctx context.Context) error {
		i++
		n := size(rng)
		in := make([]int32, n)
		sent := comm.ISend(c, to, 1, filled(n, i+int32(c.Rank())))
		if _, err := comm.Recv(ctx, c, from, 1, in); err != nil {
			return waitFor(from, err)
		}
		if _, err := sent.Wait(ctx); err != nil {
			return waitFor(to, err)
		}
		return equal("recv", in, i+int32(from))
	}
}

// chain passes vectors from each rank to the next rank, and back. A rank that does not communicate
// with the lost rank learns of the loss only when its neighbour ends.
func chain(c *comm.Comm, rng *rand.Rand) func(context.Context) error {
	last := c.Size() - 1
	i := int32(-1)
	return func(ctx context.Context) error {
		i++
		n := size(rng)
		if c.Rank() > 0 {
			in := make([]int32, n)
			if _, err := comm.Recv(ctx, c, c.Rank()-1, 1, in); err != nil {
				return waitFor(c.Rank()-1, err)
			}
			if err := equal("recv", in, i); err != nil {
				return err
			}
		}
		if c.Rank() < last {
			if err := comm.Send(ctx, c, c.Rank()+1, 1, filled(n, i)); err != nil {
				return waitFor(c.Rank()+1, err)
			}
			if _, err := comm.Recv(ctx, c, c.Rank()+1, 2, make([]int32, 1)); err != nil {
				return waitFor(c.Rank()+1, err)
			}
		}
		if c.Rank() > 0 {
			return waitFor(c.Rank()-1, comm.Send(ctx, c, c.Rank()-1, 2, []int32{i}))
		}
		return nil
	}
}

// named passes named tensors around a ring of all ranks.
func named(c *comm.Comm, rng *rand.Rand) func(context.Context) error {
	to, from := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
	next := uint64(0)
	return func(ctx context.Context) error {
		i := next
		next++
		sent := make(chan error, 1)
		if err := c.SendNamed(i, to, "w", comm.NewTensor(filled(size(rng), int32(i))), func(err error) { sent <- err }); err != nil {
			return waitFor(to, err)
		}
		t, err := c.RecvNamed(ctx, i, from, "w", nil)
		if err != nil {
			return waitFor(from, err)
		}
		if err := equal("recvnamed", comm.Values[int32](t), int32(i)); err != nil {
			return err
		}
		if err := <-sent; err != nil {
			return waitFor(to, err)
		}
		// When the tensor of step i is back at rank 0, all ranks have finished step i-n.
		if n := uint64(c.Size()); c.Rank() == 0 && i > n {
			c.EndStep(i-n-1, nil)
		}
		return nil
	}
}

// makers makes a communicator in each step, runs an allreduce on it and closes it.
func makers(c *comm.Comm, rng *rand.Rand) func(context.Context) error {
	return func(ctx context.Context) error {
		var made *comm.Comm
		var err error
		switch rng.IntN(3) {
		case 0:
			made, err = c.Dup(ctx)
		case 1:
			made, err = c.Split(ctx, c.Rank()%2, -c.Rank())
		default:
			all := make([]int, c.Size())
			for i := range all {
				all[i] = c.Size() - 1 - i
			}
			made, err = c.Sub(ctx, all...)
		}
		if err != nil {
			return err
		}
		if err := sum(ctx, made, size(rng)); err != nil {
			return err
		}
		return made.Close(ctx)
	}
}

// closeSoon runs some collectives and ends, so that ranks may be killed in Close.
func closeSoon(c *comm.Comm, rng *rand.Rand) func(context.Context) error {
	left := 500 + rng.IntN(1500)
	return func(ctx context.Context) error {
		if left--; left < 0 {
			return errEnd
		}
		return collective(ctx, c, rng)
	}
}

// coordinate starts a coordinator in each step, reduces named tensors with it and closes it.
func coordinate(c *comm.Comm, rng *rand.Rand) func(context.Context) error {
	return func(ctx context.Context) error {
		co, err := coordinator.Start(ctx, c)
		if err != nil {
			return err
		}
		err = train(ctx, c, co, rng)
		if e := co.Close(ctx); err == nil {
			err = e
		}
		return err
	}
}

// train runs 1 to 20 training steps, each of which reduces 1 to 6 tensors through co.
func train(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator, rng *rand.Rand) error {
	for range 1 + rng.IntN(20) {
		var handles []*coordinator.Handle
		var bufs [][]float32
		for i := range 1 + rng.IntN(6) {
			buf := make([]float32, size(rng))
			for k := range buf {
				buf[k] = float32(c.Rank() + 1)
			}
			bufs = append(bufs, buf)
			handles = append(handles, coordinator.AllReduce(co, fmt.Sprintf("w%d", i), buf, comm.Sum))
		}
		var first error
		for _, h := range handles { // waits for all handles, so that no buffer is in use any more
			if err := h.Wait(ctx); err != nil && first == nil {
				first = err
			}
		}
		if first != nil {
			return first
		}
		want := float32(c.Size() * (c.Size() + 1) / 2)
		for _, buf := range bufs {
			for k, x := range buf {
				if x != want {
					return fmt.Errorf("%w: tensor: element %d is %v, want %v", errWrong, k, x, want)
				}
			}
		}
	}
	return nil
}
