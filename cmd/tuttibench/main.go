// Command tuttibench times one operation over a sweep of sizes, verifies every
// result, and prints a line per size:
//
//	tuttirun -np 4 tuttibench -op allreduce -transport tcp -format csv
//
// # What is timed
//
// Each iteration starts with a barrier. Every rank times its own call, and the
// slowest one counts, as the operation is over only then. After three
// iterations that do not count, the ranks repeat this until the times add up to
// -time and five iterations are done, or -iterations (20,000). Operations run out of place
// unless -inplace is given; broadcast has one buffer only.
// Peers that are timed in the same way can be set beside these figures.
//
// A pingpong is the round trip between ranks 0 and 1; other ranks look on.
// For allgather, reduce_scatter and alltoall, elements are rounded down to a
// multiple of the ranks, at least one each, and bytes is that whole vector.
// A barrier moves nothing; its one line stands under -min.
//
// # What the columns say
//
//	op, transport      the operation; the wire that was really taken
//	algorithm          the one that the job's table chose for this size, or - for none
//	ranks, dtype       how many ranks; what the vector is made of
//	bytes              of the whole vector
//	iterations         that count
//	median_us, min_us  of the slowest ranks' times, in microseconds
//	p99_us             99 of 100 iterations took at most this
//	algbw_MBps         bytes over the median time, in 10^6 bytes per second
//	busbw_MBps         what each rank's link carried one way, if the algorithm is as
//	                   thrifty as can be: algbw times 2(n-1)/n for allreduce; times
//	                   (n-1)/n for allgather, reduce_scatter and alltoall; times 2
//	                   for pingpong (two ways, one after the other); as it is for
//	                   broadcast. See nccl-tests, doc/PERFORMANCE.md
//	allocs_per_op      heap allocations of rank 0's process per iteration, of its
//	                   barrier and its search for the slowest rank, too
//	wrong              elements that differ from what they must be, on all ranks
//	                   together, in the last timed run and in one more after it
//
// Rank 0 prints; lines that begin with # are comments, which CSV has on standard
// error: its first line is the header. The exit code is not 0
// when anything was wrong.
//
// With -cpuprofile rank 0 writes where its process spent its time meanwhile, barriers
// and verification included, for go tool pprof.
//
// # A model's gradients
//
//	tuttirun -np 4 tuttibench -op coordinator -model resnet50 -format csv
//
// reduces the gradients of a model, float32 tensors of the sizes that its layers
// have, in three ways, and prints a row for each: coordinator, which each rank
// gives them in another order in every step; separate, as one blocking allreduce
// after the other in one order; and whole, as one allreduce of all of them. A fourth
// row, negotiation, is what a coordinator needs for as many tensors of no elements,
// from the submission of the last of a step until all of them are done. The four
// take turns; bytes are those of all tensors. A comment below the rows has the median
// of what the coordinator took of each other way's time in the same turn, which a
// machine that changes its pace disturbs less than the rows.
//
// # Other commands
//
//	tuttirun -np 4 tuttibench tune -transport tcp -o tcp.json
//	tuttirun -np 2 tuttibench limits
//	TUTTI_TUNING=tcp.json tuttirun -np 4 tuttibench explain -op broadcast
//
// tune times all algorithms of all collectives, and segments, at some sizes, and
// writes the tuning file that TUTTI_TUNING names; docs/tuning.md says more. limits
// sets an allreduce beside the time to copy its vector and to add (n-1)/n of it, on
// all ranks at once and from memory that no cache holds. explain prints what would
// run, why, and what the other algorithms are predicted to take. Each has flags of
// its own: tuttibench tune -h lists them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/internal/version"
)

func main() {
	err := run(context.Background(), os.Args[1:], os.Stdout, os.Stderr)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "tuttibench:", err)
		os.Exit(1)
	}
}

// run is this process's part in the benchmark, from its arguments to Close. Help and
// remarks go to usage.
func run(ctx context.Context, args []string, out, usage io.Writer) error {
	if known, err := subcommand(ctx, args, out, usage); known {
		return err
	}
	o, err := parseFlags(args, usage)
	if err != nil {
		return err
	}
	if o.version {
		_, err := fmt.Fprintln(out, version.Line("tuttibench"))
		return err
	}
	if o.local > 0 {
		return comm.Local(o.local, func(ctx context.Context, c *comm.Comm) error {
			return measureAll(ctx, c, o, out, usage)
		}, o.comm()...)
	}
	c, err := comm.Init(ctx, o.comm()...)
	if err != nil {
		return err
	}
	return errors.Join(measureAll(ctx, c, o, out, usage), c.Close(ctx))
}

func measureAll(ctx context.Context, c *comm.Comm, o options, out, notes io.Writer) error {
	return profiled(ctx, c, o.profile, func() error {
		if o.op == named {
			return sweepNamed(ctx, c, o, out, notes)
		}
		return sweep(ctx, c, o, out, notes)
	})
}
