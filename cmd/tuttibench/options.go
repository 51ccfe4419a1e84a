package main

import (
	"flag"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/tensor"
	linked "github.com/tutti-go/tutti/transport/wires"
)

// options holds the flags of a sweep, which are equal on all ranks.
type options struct {
	op            string
	transport     string // "" means TUTTI_TRANSPORT, or auto
	algorithm     string // "" if the table chooses
	dtype         tensor.DType
	inplace       bool
	alloc         bool // vectors are from comm.Alloc
	min, max      sizeFlag
	factor        int
	time          time.Duration // sum of the times of one size's iterations
	maxIterations int           // iterations of one size
	format        string
	plot          string // "" if there is no plot
	profile       string // the file for rank 0's CPU profile; "" if there is none
	local         int    // the number of ranks within this process; 0 if this process is one rank
	version       bool   // only print the version
	model         string // the model whose gradients are reduced
	servers       int    // the number of ranks that only serve; 0 if every rank works and serves
	replicas      int    // the copies of each part on servers
	rows, width   int    // the size of a table
	indices       int    // the number of rows that a worker pushes and pulls in a step
}

// named is the name of the operation that reduces a model's tensors. It has no sweep of sizes.
const named = "coordinator"

// opNames are the operations on vectors of one size, as -op accepts them.
var opNames = []string{"allreduce", "broadcast", "allgather", "reduce_scatter", "alltoall", "reduce", "gather", "scatter", "scan", "exscan", "pingpong", "barrier"}

// specialOps are the operations that compare several ways to move the same data.
var specialOps = []string{named, dense, sparse, training}

// parseFlags parses and checks the command line.
func parseFlags(args []string, usage io.Writer) (options, error) {
	o := options{min: 4, max: 64 << 20, time: 200 * time.Millisecond, maxIterations: maxIterations}
	flags := flag.NewFlagSet("tuttibench", flag.ContinueOnError)
	flags.Usage = func() { help(flags, usage) }
	flags.StringVar(&o.op, "op", "allreduce", "one `of` "+strings.Join(opNames, ", ")+", "+strings.Join(specialOps, ", "))
	flags.StringVar(&o.transport, "transport", "", wireHelp)
	flags.StringVar(&o.algorithm, "algorithm", "", "force the algorithm of this `name`; by default the table chooses")
	dtype := flags.String("dtype", "float32", "element `type`: "+strings.Join(dtypeNames(), ", "))
	flags.BoolVar(&o.inplace, "inplace", false, "let the result replace the input")
	flags.BoolVar(&o.alloc, "alloc", false, "take the vectors from comm.Alloc: memory that other ranks can write into, where the wire has some")
	flags.Var(&o.min, "min", "smallest vector in `bytes`; 4Ki, 64Mi, 1Gi are understood")
	flags.Var(&o.max, "max", "largest vector in `bytes`")
	flags.IntVar(&o.factor, "factor", 4, "each vector is this many `times` the one before")
	flags.Var((*durationFlag)(&o.time), "time", "how long to measure each size: a `time` such as 150ms or 2s")
	flags.IntVar(&o.maxIterations, "iterations", o.maxIterations, "measure each size at most this many `times`, however short they are")
	flags.StringVar(&o.format, "format", "table", "table, csv or json")
	flags.StringVar(&o.plot, "plot", "", "draw time and bus bandwidth into this SVG `file`")
	flags.StringVar(&o.profile, "cpuprofile", "", "have rank 0 write its CPU profile, all sizes together, to this `file`, for go tool pprof")
	flags.StringVar(&o.model, "model", "small1000", "whose tensors -op coordinator or training reduces: one `of` "+strings.Join(models(), ", "))
	flags.IntVar(&o.servers, "servers", 0, "of -op pushpull, sparse and training: how many `ranks`, the last ones, serve and do not work; by default all ranks do both")
	flags.IntVar(&o.replicas, "replicas", 1, "of -op pushpull, sparse and training: how many `copies` of each part servers keep")
	flags.IntVar(&o.rows, "rows", 1_000_000, "of -op sparse: the `rows` of the table")
	flags.IntVar(&o.width, "width", 64, "of -op sparse: the `elements` of a row")
	flags.IntVar(&o.indices, "indices", 100_000, "of -op sparse: how many random `rows` each worker pushes and pulls in a step")
	flags.BoolVar(&o.version, "V", false, "print the version, and measure nothing")
	flags.IntVar(&o.local, "local", 0, "run this many `ranks` as goroutines of one process; by default this process is a rank of its job")
	if err := parse(flags, args, usage); err != nil {
		return options{}, err
	}
	if flags.NArg() > 0 {
		return options{}, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	var err error
	if o.dtype, err = tensor.ParseDType(*dtype); err != nil {
		return options{}, err
	}
	return o, o.check()
}

// check rejects options that contradict each other or are out of range.
func (o *options) check() error {
	special := slices.Contains(specialOps, o.op)
	switch {
	case !special && !slices.Contains(opNames, o.op):
		return fmt.Errorf("-op %q: want one of %s, %s", o.op, strings.Join(opNames, ", "), strings.Join(specialOps, ", "))
	case !knownModel(o.model):
		return fmt.Errorf("-model %q: want one of %s", o.model, strings.Join(models(), ", "))
	case special && (o.dtype != tensor.Float32 || o.algorithm != "" || o.plot != ""):
		return fmt.Errorf("-op %s: got -algorithm, -plot or a -dtype other than float32, want none of them", o.op)
	case o.servers < 0 || o.servers > 0 && (!special || o.op == named):
		return fmt.Errorf("-servers %d: want 0 or more, with -op %s, %s or %s", o.servers, dense, sparse, training)
	case o.replicas < 1 || o.replicas > 1 && (!special || o.op == named):
		return fmt.Errorf("-replicas %d: want 1 or more, with -op %s, %s or %s", o.replicas, dense, sparse, training)
	case o.rows < 1 || o.width < 1 || o.indices < 1:
		return fmt.Errorf("-rows %d, -width %d and -indices %d: want 1 or more", o.rows, o.width, o.indices)
	case !slices.Contains(dtypeNames(), o.dtype.String()):
		return fmt.Errorf("-dtype %v has no sum; want one of %s", o.dtype, strings.Join(dtypeNames(), ", "))
	case o.min < 1 || o.max < o.min:
		return fmt.Errorf("-min %d and -max %d: want 1 <= min <= max", o.min, o.max)
	case tooLarge("max", o.max) != nil:
		return tooLarge("max", o.max)
	case o.factor < 2:
		return fmt.Errorf("-factor %d: want 2 or more", o.factor)
	case o.time < 0:
		return fmt.Errorf("-time %v: want 0 or more", o.time)
	case o.maxIterations < minIterations || o.maxIterations > iterationLimit:
		return fmt.Errorf("-iterations %d: want %d to %d", o.maxIterations, minIterations, iterationLimit)
	case newReporter(o.format, nil, nil) == nil:
		return fmt.Errorf("-format %q: want table, csv or json", o.format)
	case o.local < 0:
		return fmt.Errorf("-local %d: want a number of ranks, or 0 for one rank per process", o.local)
	case o.algorithm != "" && o.op == "pingpong":
		return fmt.Errorf("-algorithm %s: a pingpong has no algorithms", o.algorithm)
	case o.plot != "" && o.op == "barrier":
		return fmt.Errorf("-plot %s: a barrier has no sizes to draw", o.plot)
	}
	return nil
}

// comm returns the options for the communicator.
func (o *options) comm() []comm.Option {
	opts := []comm.Option{comm.WithTransport(linked.All()...)}
	if o.transport != "" {
		opts = append(opts, comm.WithTransportName(o.transport))
	}
	if o.algorithm != "" {
		opts = append(opts, comm.WithAlgorithm(o.op+":"+o.algorithm))
	}
	return opts
}

// counts returns the sweep's vector lengths in elements, for a job of n ranks. If sizes are equal
// after rounding, the result contains them once.
func (o *options) counts(n int) []int {
	var all []int
	for bytes := int(o.min); ; bytes *= o.factor {
		count := max(1, bytes/o.dtype.Size())
		switch o.op {
		case "allgather", "reduce_scatter", "alltoall", "gather", "scatter":
			count = max(count/n, 1) * n
		}
		if len(all) == 0 || all[len(all)-1] != count {
			all = append(all, count)
		}
		if o.op == "barrier" || bytes > int(o.max)/o.factor {
			return all
		}
	}
}

// A sizeFlag is a number of bytes on the command line.
type sizeFlag int

// String returns the size without a suffix.
func (s *sizeFlag) String() string { return strconv.Itoa(int(*s)) }

// Set parses "64", "64Ki", "64Mi", "64Gi", each with or without a "B".
func (s *sizeFlag) Set(text string) error {
	number, unit := strings.TrimSuffix(text, "B"), 1
	for i, suffix := range []string{"Ki", "Mi", "Gi"} {
		if n, ok := strings.CutSuffix(number, suffix); ok {
			number, unit = n, 1<<(10*(i+1))
			break
		}
	}
	n, err := strconv.Atoi(number)
	if err != nil {
		return fmt.Errorf("want a number of bytes, such as 4, 64Ki or 1Mi")
	}
	if n < 0 || n > math.MaxInt/unit {
		return fmt.Errorf("out of range")
	}
	*s = sizeFlag(n * unit)
	return nil
}
