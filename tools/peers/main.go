// Command peers times tutti beside Open MPI, MPICH and Gloo, in one run, and says
// how much faster or slower it is:
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
// Contenders take turns, round after round, so that a machine whose speed drifts
// slows all of them. Each times every iteration from a barrier on, takes the slowest
// rank, and of a size the median; each verifies its results, and a figure from a
// wrong one is never shown. Of the rounds the best median counts. The ratio is that
// of the best peer to tutti: above 1 tutti is faster.
//
// The peers are what Debian's packages bring, untuned, over the same wire: over shm
// Open MPI as it comes, MPICH as it comes and once more through UCX; over tcp both of
// them told to use TCP, and Gloo, which has nothing else and neither allgather,
// reduce_scatter, alltoall nor pingpong here. Their programs, in src/, are compiled
// on first use. A peer that is missing is left out, with a word on how to get it.
//
// # Other versions of tutti
//
// A contender may be tutti of another commit: -with NAME=DIR names a worktree, whose
// tuttirun and tuttibench are built once. In compare it takes turns with all others, is
// no peer in the ratio, and below the table stands the mean of tutti's time over its.
//
// versions sets the checkout in the current directory beside one other version, in all
// rows of suite.go and with a coordinator. The other version has two turns in each
// round, as two contenders: how far the second is from the first is the noise. A line
// for each row has the geometric mean of new over old, over all sizes and over those up
// to 4 KiB, each with its noise. The command fails where a mean exceeds 1 by more than
// 2 % and more than the noise, or where a size takes more than 1.10 of the old time in
// each of -runs runs.
//
// # What it writes
//
// compare prints one table. With -require it fails when the geometric mean of the
// ratios of all sizes from BYTES up to the next BYTES given is below RATIO.
//
// record runs one comparison for each row of the table in suite.go, and writes each
// into DIR as CSV and as text, with the commit, the command and the machine above it,
// and a summary that sets the bands beside the floors. draw draws time and bus
// bandwidth of the recorded allreduces.
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

// run is the command: the first argument may say what to do.
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
