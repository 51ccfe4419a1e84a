// Command tuttibench times one operation over a sweep of sizes, verifies every result, and
// prints a line per size:
//
//	tuttirun -np 4 tuttibench -op allreduce -transport tcp -format csv
//
// # What is timed
//
// Each iteration starts with a barrier. Every rank times its own call, and the time of the slowest
// rank counts, because the operation is complete only when all ranks have finished. The first three
// iterations do not count. The ranks then repeat until the times add up to -time and at least five
// iterations are done, or until -iterations (20,000) are done. Operations run out of place unless
// -inplace is given; broadcast has only one buffer. These results can be compared with those of
// programs that time in the same way.
//
// A pingpong is a round trip between ranks 0 and 1; other ranks do nothing. For allgather,
// reduce_scatter and alltoall, the whole vector has one part per rank: its number of elements is
// rounded down to a multiple of the number of ranks, with at least one element each. A barrier
// moves no data; it has one line, for -min.
//
// # What the columns mean
//
//	op, transport      the operation; the transport that was used
//	algorithm          the one that the job's table chose for this size, or - for none
//	ranks, dtype       the number of ranks; the element type
//	bytes              of the whole vector
//	iterations         that count
//	median_us, min_us  of the slowest ranks' times, in microseconds
//	p99_us             99 of 100 iterations took at most this
//	algbw_MBps         bytes over the median time, in 10^6 bytes per second
//	busbw_MBps         what each rank's link carried in one direction, if the algorithm
//	                   has the least traffic: algbw times 2(n-1)/n for allreduce; times
//	                   (n-1)/n for allgather, reduce_scatter and alltoall; times 2 for
//	                   pingpong (both directions in turn); unchanged for broadcast. See
//	                   nccl-tests, doc/PERFORMANCE.md
//	allocs_per_op      heap allocations of rank 0's process per iteration, including its
//	                   barrier and its search for the slowest rank
//	wrong              wrong elements on all ranks together, in the last timed run and in
//	                   one more after it; in every run if several ways take turns
//
// Rank 0 prints. Lines that begin with # are comments. For CSV they are on standard error, so
// that the first line is the header. The exit code is not 0 if a result was wrong.
//
// With -cpuprofile rank 0 writes a CPU profile of its process, barriers and verification
// included, for go tool pprof.
//
// # A model's gradients
//
//	tuttirun -np 4 tuttibench -op coordinator -model resnet50 -format csv
//
// reduces the gradients of a model in three ways. The gradients are float32 tensors with the sizes
// of the model's layers. The command also runs the negotiation alone. It prints a row for each of
// the four:
//
//	coordinator   each rank submits them to a coordinator, in another order in every step
//	separate      one blocking allreduce after the other, in one order
//	whole         one allreduce of all of them
//	negotiation   what a coordinator needs for the same number of empty tensors, from
//	              the last submission of a step until all are done
//
// The four take turns. Bytes are those of all tensors. A comment below the rows has two median
// ratios: the coordinator's time divided by the time of separate, and of whole, in the same turn.
// Changes of the machine's speed disturb these ratios less than they disturb the rows.
//
// # Parameter servers
//
//	tuttirun -np 3 tuttibench -op pushpull -servers 1 -min 64Mi
//	tuttirun -np 3 tuttibench -op sparse -servers 1
//
// The last -servers ranks serve, and the others work; by default every rank does both. Several ways
// take turns, and each has a row. Its algorithm is a name for the way, such as 2w+1s for two
// workers and a server, or 2ws for two ranks that do both. In the column busbw_MBps, the bytes that
// cross between processes, in all directions together, are divided by the median time. Every run is
// verified.
//
// pushpull times a dense vector. Each worker pushes its vector, and pulls the sum of all. In the
// row pingpong, pairs of ranks exchange such vectors, with as many pairs as the ranks allow. In the
// row allreduce, the workers reduce them. The comment below the rows compares the time of pushpull
// with the time in which the pairs move as many bytes, and with the time of the allreduce.
//
// sparse times steps in which each worker pushes gradients of -indices random rows of a table, and
// pulls these rows. The rows are uniformly distributed, or have a Zipf distribution with exponent
// 1.1. In another row, one pair of ranks exchanges as many bytes as a worker pushes. The comment
// compares the pushed and pulled bytes per second with those of the pair, and says how much memory
// the table has taken.
//
//	tuttirun -np 3 tuttibench -op training -servers 1 -model resnet50
//
// times steps that push the gradients of a model's tensors and pull their sums. The computation is
// a wait, as if it ran on an accelerator. It takes as long as the communication. Besides the steps,
// rows show the computation alone and the communication alone.
//
// # Other commands
//
//	tuttirun -np 4 tuttibench tune -transport tcp -o tcp.json
//	tuttirun -np 2 tuttibench limits
//	TUTTI_TUNING=tcp.json tuttirun -np 4 tuttibench explain -op broadcast
//
// tune times all algorithms of all collectives, with several segment sizes, at some sizes, and
// writes the tuning file for TUTTI_TUNING; see docs/tuning.md. limits compares an allreduce
// with the time to copy its vector and to add (n-1)/n of it, on all ranks at once and from
// memory that no cache holds. explain prints what would run, why, and the predicted times of
// the other algorithms. Each has its own flags: tuttibench tune -h lists them.
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

// run executes this process's part of the benchmark, from parsing the arguments to Close. It writes
// help and remarks to usage.
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
		switch o.op {
		case named:
			return sweepNamed(ctx, c, o, out, notes)
		case dense, sparse, training:
			return sweepServers(ctx, c, o, out, notes)
		}
		return sweep(ctx, c, o, out, notes)
	})
}
