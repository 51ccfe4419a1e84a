package main

import (
	"context"
	"errors"

	"github.com/tutti-go/tutti/comm"
)

// A trial is one operation on vectors of one size. Its functions use the same buffers, and each
// rank calls all of them in the same order.
type trial struct {
	bytes  int                         // the whole vector
	load   func()                      // writes the input, and clears the output
	run    func(context.Context) error // the function that is timed
	wrong  func() int                  // number of wrong elements in this rank's output
	spoils bool                        // run overwrites its input, so load must precede each run
}

// vectors are the buffers of a rank, of any element type.
type vectors interface {
	trial(count int) trial
	on(c *comm.Comm) vectors // the same buffers, on another communicator of the same ranks
	alloc() (free func() error, err error)
}

// typedVectors makes trials of one element type. All trials share its buffers, and differ only in
// their size.
type typedVectors[T comm.Element] struct {
	c         *comm.Comm
	op        string
	of        number[T]
	elemSize  int
	send, out []T // the same slice in place
}

func newTypedVectors[T comm.Element](c *comm.Comm, o options, largest int, of number[T]) *typedVectors[T] {
	k := &typedVectors[T]{c: c, op: o.op, of: of, elemSize: o.dtype.Size(), send: make([]T, largest)}
	k.out = k.send
	if !o.inplace && o.op != "broadcast" {
		k.out = make([]T, largest)
	}
	return k
}

func (k *typedVectors[T]) on(c *comm.Comm) vectors {
	other := *k
	other.c = c
	return &other
}

// alloc moves the buffers into memory from comm.Alloc. The returned function free releases that
// memory.
func (k *typedVectors[T]) alloc() (free func() error, err error) {
	send, freeSend, err := comm.Alloc[T](k.c, len(k.send))
	if err != nil {
		return nil, err
	}
	inPlace := &k.send[0] == &k.out[0]
	k.send = send
	if inPlace {
		k.out = k.send
		return freeSend, nil
	}
	out, freeOut, err := comm.Alloc[T](k.c, len(k.out))
	if err != nil {
		return nil, errors.Join(err, freeSend())
	}
	k.out = out
	return func() error { return errors.Join(freeSend(), freeOut()) }, nil
}

// trial returns the trial of the operation on whole vectors of the given number of elements.
func (k *typedVectors[T]) trial(count int) trial {
	t := trial{bytes: count * k.elemSize}
	in, out := k.send[:count], k.out[:count]
	inPlace := &in[0] == &out[0]
	switch k.op {
	case "allreduce":
		k.allReduce(&t, in, out, inPlace)
	case "broadcast":
		k.broadcast(&t, out)
	case "allgather":
		k.allGather(&t, in, out, inPlace)
	case "reduce_scatter":
		k.reduceScatter(&t, in, out, inPlace)
	case "alltoall":
		k.allToAll(&t, in, out, inPlace)
	case "reduce":
		k.reduce(&t, in, out, inPlace)
	case "gather":
		k.gather(&t, in, out, inPlace)
	case "scatter":
		k.scatter(&t, in, out, inPlace)
	case "scan":
		k.scan(&t, in, out, inPlace)
	case "exscan":
		k.exScan(&t, in, out, inPlace)
	case "pingpong":
		k.pingPong(&t, in, out, inPlace, 1)
	case "barrier":
		k.barrier(&t)
	}
	return t
}

func (k *typedVectors[T]) allReduce(t *trial, in, out []T, inPlace bool) {
	mine, want := addend(k.of, k.c.Rank()), sum(k.of, k.c.Size())
	t.load = func() { clear(out); mine.fill(in, 0) }
	t.run = func(ctx context.Context) error { return comm.AllReduce(ctx, k.c, out, comm.Sum, comm.From(in)) }
	if inPlace {
		t.run = func(ctx context.Context) error { return comm.AllReduce(ctx, k.c, out, comm.Sum) }
	}
	t.wrong = func() int { return want.wrong(out, 0) }
	t.spoils = inPlace
}

func (k *typedVectors[T]) scan(t *trial, in, out []T, inPlace bool) {
	mine, want := addend(k.of, k.c.Rank()), sum(k.of, k.c.Rank()+1)
	t.load = func() { clear(out); mine.fill(in, 0) }
	t.run = func(ctx context.Context) error { return comm.Scan(ctx, k.c, out, comm.Sum, comm.From(in)) }
	if inPlace {
		t.run = func(ctx context.Context) error { return comm.Scan(ctx, k.c, out, comm.Sum) }
	}
	t.wrong = func() int { return want.wrong(out, 0) }
	t.spoils = inPlace
}

// exScan sets up t for exscan. It expects rank 0's output to stay as load has made it: cleared, or
// equal to its input if in place.
func (k *typedVectors[T]) exScan(t *trial, in, out []T, inPlace bool) {
	mine, want := addend(k.of, k.c.Rank()), sum(k.of, k.c.Rank())
	t.load = func() { clear(out); mine.fill(in, 0) }
	t.run = func(ctx context.Context) error { return comm.ExScan(ctx, k.c, out, comm.Sum, comm.From(in)) }
	if inPlace {
		t.run = func(ctx context.Context) error { return comm.ExScan(ctx, k.c, out, comm.Sum) }
		if k.c.Rank() == 0 {
			want = mine
		}
	}
	t.wrong = func() int { return want.wrong(out, 0) }
	t.spoils = inPlace
}

func (k *typedVectors[T]) broadcast(t *trial, buf []T) {
	root := moved(k.of, 0)
	t.load = func() {
		clear(buf)
		if k.c.Rank() == 0 {
			root.fill(buf, 0)
		}
	}
	t.run = func(ctx context.Context) error { return comm.Broadcast(ctx, k.c, buf, 0) }
	t.wrong = func() int { return root.wrong(buf, 0) }
}

// chunk returns the part of a vector that belongs to a rank, and its first index.
func (k *typedVectors[T]) chunk(whole []T, rank int) (part []T, first int) {
	m := len(whole) / k.c.Size()
	return whole[rank*m : (rank+1)*m], rank * m
}

func (k *typedVectors[T]) allGather(t *trial, in, out []T, inPlace bool) {
	mine := moved(k.of, k.c.Rank())
	part, _ := k.chunk(in, 0)
	if inPlace {
		part, _ = k.chunk(out, k.c.Rank())
	}
	t.load = func() { clear(out); mine.fill(part, 0) }
	t.run = func(ctx context.Context) error { return comm.AllGather(ctx, k.c, out, comm.From(part)) }
	t.wrong = func() int {
		return k.wrongChunks(out, 0)
	}
}

// wrongChunks counts the wrong elements of out, which consists of one chunk from each rank. Each
// chunk must equal the elements of its sender's vector from the index first on.
func (k *typedVectors[T]) wrongChunks(out []T, first int) int {
	wrong := 0
	for rank := range k.c.Size() {
		want := moved(k.of, rank)
		part, _ := k.chunk(out, rank)
		wrong += want.wrong(part, first)
	}
	return wrong
}

func (k *typedVectors[T]) reduceScatter(t *trial, in, out []T, inPlace bool) {
	mine, want := addend(k.of, k.c.Rank()), sum(k.of, k.c.Size())
	part, first := k.chunk(in, k.c.Rank())
	if !inPlace {
		part, _ = k.chunk(out, 0)
	}
	t.load = func() { clear(part); mine.fill(in, 0) }
	t.run = func(ctx context.Context) error { return comm.ReduceScatter(ctx, k.c, part, comm.Sum, comm.From(in)) }
	t.wrong = func() int { return want.wrong(part, first) }
	t.spoils = inPlace
}

func (k *typedVectors[T]) allToAll(t *trial, in, out []T, inPlace bool) {
	mine := moved(k.of, k.c.Rank())
	_, first := k.chunk(in, k.c.Rank())
	t.load = func() { clear(out); mine.fill(in, 0) }
	t.run = func(ctx context.Context) error { return comm.AllToAll(ctx, k.c, out, comm.From(in)) }
	t.wrong = func() int { return k.wrongChunks(out, first) }
	t.spoils = inPlace
}

func (k *typedVectors[T]) reduce(t *trial, in, out []T, inPlace bool) {
	mine, want := addend(k.of, k.c.Rank()), sum(k.of, k.c.Size())
	root := k.c.Rank() == 0
	t.load = func() { clear(out); mine.fill(in, 0) }
	t.run = func(ctx context.Context) error { return comm.Reduce(ctx, k.c, out, comm.Sum, 0, comm.From(in)) }
	t.wrong = func() int {
		if !root {
			return 0
		}
		return want.wrong(out, 0)
	}
	t.spoils = inPlace
}

func (k *typedVectors[T]) gather(t *trial, in, out []T, inPlace bool) {
	mine := moved(k.of, k.c.Rank())
	part, _ := k.chunk(in, 0)
	if inPlace {
		part, _ = k.chunk(out, k.c.Rank())
	}
	t.load = func() { clear(out); mine.fill(part, 0) }
	t.run = func(ctx context.Context) error { return comm.Gather(ctx, k.c, out, 0, comm.From(part)) }
	t.wrong = func() int {
		if k.c.Rank() > 0 {
			return 0
		}
		return k.wrongChunks(out, 0)
	}
}

func (k *typedVectors[T]) scatter(t *trial, in, out []T, inPlace bool) {
	root := moved(k.of, 0)
	part, first := k.chunk(out, k.c.Rank())
	t.load = func() {
		clear(out)
		if k.c.Rank() == 0 {
			root.fill(in, 0)
		}
	}
	t.run = func(ctx context.Context) error { return comm.Scatter(ctx, k.c, part, 0, comm.From(in)) }
	t.wrong = func() int { return root.wrong(part, first) }
}

// tag is the tag of a pingpong's messages.
const tag = 7

// pingPong sets up t for round trips between ranks 0 and 1, 2 and 3, and so on, in the given number
// of pairs at the same time.
func (k *typedVectors[T]) pingPong(t *trial, in, out []T, inPlace bool, pairs int) {
	me := k.c.Rank()
	peer := me ^ 1
	if me >= 2*pairs {
		t.load, t.wrong = func() {}, func() int { return 0 }
		t.run = func(context.Context) error { return nil }
		return
	}
	mine, want := moved(k.of, me), moved(k.of, peer)
	if inPlace {
		want = moved(k.of, min(me, peer)) // the other rank returns what it has received
	}
	t.load = func() { clear(out); mine.fill(in, 0) }
	send := func(ctx context.Context) error { return comm.Send(ctx, k.c, peer, tag, in) }
	recv := func(ctx context.Context) error {
		_, err := comm.Recv(ctx, k.c, peer, tag, out)
		return err
	}
	first, second := send, recv
	if me > peer {
		first, second = recv, send
	}
	t.run = func(ctx context.Context) error {
		if err := first(ctx); err != nil {
			return err
		}
		return second(ctx)
	}
	t.wrong = func() int { return want.wrong(out, 0) }
}

func (k *typedVectors[T]) barrier(t *trial) {
	t.load, t.wrong = func() {}, func() int { return 0 }
	t.run = func(ctx context.Context) error { return k.c.Barrier(ctx) }
}
