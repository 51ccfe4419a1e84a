package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator"
)

// A program runs until a call fails. Its random numbers are equal on all ranks.
type program func(ctx context.Context, c *comm.Comm, rng *rand.Rand) error

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
	}
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

// step runs one random collective.
func step(ctx context.Context, c *comm.Comm, rng *rand.Rand) error {
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

func collectives(ctx context.Context, c *comm.Comm, rng *rand.Rand) error {
	for {
		if err := step(ctx, c, rng); err != nil {
			return err
		}
	}
}

// requests has several non-blocking collectives under way.
func requests(ctx context.Context, c *comm.Comm, rng *rand.Rand) error {
	for {
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
	}
}

// ring passes vectors around a ring of all ranks.
func ring(ctx context.Context, c *comm.Comm, rng *rand.Rand) error {
	to, from := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
	for i := int32(0); ; i++ {
		n := size(rng)
		in := make([]int32, n)
		if _, err := comm.SendRecv(ctx, c, to, 1, filled(n, i+int32(c.Rank())), from, 1, in); err != nil {
			return err
		}
		if err := equal("exchange", in, i+int32(from)); err != nil {
			return err
		}
	}
}

// chain passes vectors from each rank to the next rank, and back. If a rank does not need the lost
// rank, it learns of the loss only when its neighbour ends.
func chain(ctx context.Context, c *comm.Comm, rng *rand.Rand) error {
	last := c.Size() - 1
	for i := int32(0); ; i++ {
		n := size(rng)
		if c.Rank() > 0 {
			in := make([]int32, n)
			if _, err := comm.Recv(ctx, c, c.Rank()-1, 1, in); err != nil {
				return err
			}
			if err := equal("recv", in, i); err != nil {
				return err
			}
		}
		if c.Rank() < last {
			if err := comm.Send(ctx, c, c.Rank()+1, 1, filled(n, i)); err != nil {
				return err
			}
			if _, err := comm.Recv(ctx, c, c.Rank()+1, 2, make([]int32, 1)); err != nil {
				return err
			}
		}
		if c.Rank() > 0 {
			if err := comm.Send(ctx, c, c.Rank()-1, 2, []int32{i}); err != nil {
				return err
			}
		}
	}
}

// named passes named tensors around a ring of all ranks.
func named(ctx context.Context, c *comm.Comm, rng *rand.Rand) error {
	to, from := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
	for i := uint64(0); ; i++ {
		sent := make(chan error, 1)
		if err := c.SendNamed(i, to, "w", comm.NewTensor(filled(size(rng), int32(i))), func(err error) { sent <- err }); err != nil {
			return err
		}
		t, err := c.RecvNamed(ctx, i, from, "w", nil)
		if err != nil {
			return err
		}
		if err := equal("recvnamed", comm.Values[int32](t), int32(i)); err != nil {
			return err
		}
		if err := <-sent; err != nil {
			return err
		}
		// When the tensor of step i is back at rank 0, all ranks are past step i-n.
		if n := uint64(c.Size()); c.Rank() == 0 && i > n {
			c.EndStep(i-n-1, nil)
		}
	}
}

// makers makes communicators, uses them and closes them.
func makers(ctx context.Context, c *comm.Comm, rng *rand.Rand) error {
	for {
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
		if err := made.Close(ctx); err != nil {
			return err
		}
	}
}

// closeSoon runs some collectives and ends, so that ranks may be killed in Close.
func closeSoon(ctx context.Context, c *comm.Comm, rng *rand.Rand) error {
	for range 500 + rng.IntN(1500) {
		if err := step(ctx, c, rng); err != nil {
			return err
		}
	}
	return nil
}

// coordinate starts coordinators one after the other, and reduces named tensors with each of them.
func coordinate(ctx context.Context, c *comm.Comm, rng *rand.Rand) error {
	for {
		co, err := coordinator.Start(ctx, c)
		if err != nil {
			return err
		}
		err = train(ctx, c, co, rng)
		if e := co.Close(ctx); err == nil {
			err = e
		}
		if err != nil {
			return err
		}
	}
}

// train runs some steps with a few tensors each.
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
