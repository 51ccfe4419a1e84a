// Command peers compares tutti with Open MPI, MPICH and Gloo, and with other versions of
// itself, in one run:
//
//	peers [compare] [-op allreduce] [-np 2] [-wire shm|tcp] [-min 4] [-max 67108864]
//	      [-rounds 3] [-time 0.2] [-bin bin] [-require BYTES:RATIO,...] [-csv FILE]
//	      [-with NAME=DIR]...
//	peers versions -with NAME=DIR [-rows PATTERN] [-runs 2] [-max ...] [-rounds 3] [-time 0.2]
//	peers record [-dir bench/results] [-rows PATTERN] [-max ...] [-rounds 3] [-time 0.2] [-bin bin]
//	peers draw   [-dir bench/results] FILE.svg
//
// # How it measures
//
// Contenders take turns, round after round, so that a change of the machine's speed affects all of
// them. Every iteration starts at a barrier, and the time of the slowest rank counts. Each
// contender reports the median of these times for each size. Each verifies its results; a time with
// a wrong result is never printed. Of all rounds, the best median counts. The ratio is the time of
// the best peer divided by tutti's time: above 1 tutti is faster.
//
// The peers are Debian's packages, untuned, over the same transport. Over shm these are Open MPI
// with its defaults, and MPICH, once with its defaults and once with UCX. Over tcp they are Open
// MPI and MPICH, both set to use TCP, and Gloo, which has only TCP. Gloo's program has no
// allgather, reduce_scatter, alltoall or pingpong. The peers' programs, in src/, are compiled on
// first use. A peer that is missing is omitted, and the log names its packages.
//
// # Other versions of tutti
//
// A contender may be tutti of another commit: -with NAME=DIR names a worktree, whose tuttirun and
// tuttibench are built once. In compare it takes turns with all others. It does not count as a peer
// in the ratio. A line below the table has the mean of tutti's time divided by the other version's
// time.
//
// versions compares the checkout in the current directory with one other version, in all rows
// of suite.go and with a coordinator. The other version takes part twice in each round, as two
// contenders: the difference between the two is the noise. A line for each row has the
// geometric mean of new over old, over all sizes and over those up to 4 KiB, each with its
// noise. The command fails if a mean exceeds 1 by more than 2 % and more than the noise, or if
// a size takes more than 1.10 of the old time in each of -runs runs.
//
// # What it writes
//
// compare prints one table. With -require it fails if the geometric mean of the ratios of all
// sizes from BYTES up to the next BYTES given is below RATIO.
//
// record runs one comparison for each row of the table in suite.go. It writes each into DIR as
// CSV and as text, with the commit, the command and the machine above it, and a summary of the
// bands and their floors. draw draws time and bus bandwidth of the recorded allreduces.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

// run is the command. The first argument may be a subcommand.
func run(ctx context.Context, args []string, out, log io.Writer) error {
	verb := "compare"
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		verb, args = args[0], args[1:]
	}
	switch verb {
	case "compare":
		return compareCommand(ctx, args, out, log)
	case "versions":
		return versionsCommand(ctx, args, out, log)
	case "record":
		return recordCommand(ctx, args, out, log)
	case "draw":
		return drawCommand(args, log)
	}
	return fmt.Errorf("%q: want compare, versions, record or draw", verb)
}
