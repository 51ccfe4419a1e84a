package main

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/ps"
)

// The operations on parameter servers. Each is compared with other ways to move as many bytes.
const (
	dense    = "pushpull" // pushes and pulls a vector
	sparse   = "sparse"   // pushes and pulls rows of a table
	training = "training" // pushes and pulls a model's tensors while it computes
)

// A route is one way to do the work that a benchmark compares. The routes of a benchmark take
// turns, so that a change of the machine's speed affects all of them.
type route struct {
	trial
	op, algorithm string
	crosses       int // the bytes that cross between processes in each run
}

// A psBench is a rank's part in a benchmark of parameter servers.
type psBench struct {
	c       *comm.Comm
	o       options
	cl      *ps.Client // nil if this rank only serves
	workers int
	pairs   int // ping-pong pairs
	vectors *typedVectors[float32]
	paper   reporter
	rows    []row
}

// sweepServers runs a benchmark on ranks that work, ranks that serve, or ranks that do both.
func sweepServers(ctx context.Context, c *comm.Comm, o options, out, notes io.Writer) error {
	if c.Size() < 2 || o.servers >= c.Size() {
		return fmt.Errorf("-op %s -servers %d: got %d ranks, want at least 2, and more ranks than servers; tuttirun -np %d starts so many",
			o.op, o.servers, c.Size(), max(2, o.servers+1))
	}
	if c.Rank() > 0 {
		out, notes = io.Discard, io.Discard
	}
	b := &psBench{c: c, o: o, workers: c.Size() - o.servers, pairs: c.Size() / 2, paper: newReporter(o.format, out, notes)}
	if o.op == sparse {
		b.pairs = 1
	}
	placement := ps.Servers(o.servers)
	if o.servers == 0 {
		placement = ps.Everywhere()
	}
	return ps.Run(ctx, c, placement, b.work, b.serve, ps.WithReplicas(o.replicas))
}

// serve runs the server. Meanwhile it takes part in the measurement, and ends the server if the
// measurement fails.
func (b *psBench) serve(ctx context.Context, s *ps.Server) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx) }()
	if err := b.measure(ctx); err != nil {
		stop()
		<-served
		return err
	}
	return <-served
}

func (b *psBench) work(ctx context.Context, cl *ps.Client) error {
	b.cl = cl
	return b.measure(ctx)
}

func (b *psBench) measure(ctx context.Context) error {
	if err := b.paper.begin(remark(b.c, b.o)); err != nil {
		return err
	}
	run := map[string]func(context.Context) error{dense: b.dense, sparse: b.sparse, training: b.training}[b.o.op]
	if err := run(ctx); err != nil {
		return err
	}
	if err := b.paper.end(); err != nil {
		return err
	}
	return verdict(b.rows)
}

// dense sweeps over the sizes of a vector. Up to three routes take turns:
//
//	pushpull   the workers push a vector, and pull the sum of all workers' vectors
//	pingpong   pairs of ranks send a vector there and back
//	allreduce  the workers reduce a vector by an allreduce; only with several workers
func (b *psBench) dense(ctx context.Context) error {
	counts := b.o.counts(b.c.Size())
	b.vectors = newTypedVectors(b.c, b.o, slices.Max(counts), integer[float32])
	for _, count := range counts {
		pushed, err := b.pushPull(ctx, count)
		if err != nil {
			return err
		}
		routes := []route{pushed, b.pingPongs(count)}
		if b.workers > 1 {
			routes = append(routes, b.allReduce(count))
		}
		samples, err := b.alternate(ctx, routes)
		if err != nil {
			return err
		}
		text := fmt.Sprintf("%d bytes cross between processes, and turn by turn %s takes %.2f of the time that the pingpong takes for as many",
			pushed.crosses, dense, medianRatio(samples[0].seconds, samples[1].seconds)*float64(routes[1].crosses)/float64(pushed.crosses))
		if b.workers > 1 {
			text += fmt.Sprintf(", and %.2f of the workers' allreduce", medianRatio(samples[0].seconds, samples[2].seconds))
		}
		if err := b.report(routes, samples, count, fmt.Sprintf("%s (medians of %d)", text, len(samples[0].seconds))); err != nil {
			return err
		}
	}
	return nil
}

// pushPull declares a tensor, and returns the route in which this worker pushes its vector and
// pulls the sum. The content differs from step to step, so that the value of another step counts as
// wrong.
func (b *psBench) pushPull(ctx context.Context, count int) (route, error) {
	w := route{op: dense, algorithm: fmt.Sprintf("%dw+%ds", b.workers, b.o.servers), crosses: b.crossing(count)}
	if b.o.servers == 0 {
		w.algorithm = fmt.Sprintf("%dws", b.workers)
	}
	if b.cl == nil {
		w.trial = noTrial()
		return w, nil
	}
	t, err := ps.Declare[float32](ctx, b.cl, fmt.Sprintf("vector of %d", count), count, ps.Reduce(comm.Sum))
	if err != nil {
		return w, err
	}
	in, out := b.vectors.send[:count], b.vectors.out[:count]
	mine, want := addend(integer[float32], b.c.Rank()), sum(integer[float32], b.workers)
	step := 0
	w.load = func() {
		step++
		clear(out)
		mine.fill(in, step)
	}
	w.run = func(ctx context.Context) error { return t.PushPull(ctx, in, out) }
	w.wrong = func() int { return want.wrong(out, step) }
	return w, nil
}

// crossing returns how many bytes cross between processes when each worker pushes and pulls count
// elements. If all ranks serve, each worker's own process serves one part of the vector, and this
// part does not cross for this worker.
func (b *psBench) crossing(count int) int {
	if b.o.servers == 0 {
		return 2 * 4 * count * (b.workers - 1)
	}
	return 2 * 4 * count * b.workers
}

// noTrial returns the trial of a rank that has no work in a route.
func noTrial() trial {
	return trial{load: func() {}, run: func(context.Context) error { return nil }, wrong: func() int { return 0 }}
}

// pingPongs returns the route in which b.pairs pairs of ranks make round trips at the same time.
func (b *psBench) pingPongs(count int) route {
	w := route{op: "pingpong", algorithm: fmt.Sprintf("pairs=%d", b.pairs), crosses: 2 * 4 * count * b.pairs}
	in, out := b.vectors.send[:count], b.vectors.out[:count]
	b.vectors.pingPong(&w.trial, in, out, b.o.inplace, b.pairs)
	return w
}

// allReduce returns the route that reduces a vector among the workers. A rank that only serves does
// nothing in it.
func (b *psBench) allReduce(count int) route {
	w := route{op: "allreduce", trial: noTrial(), crosses: 2 * 4 * count * (b.workers - 1)}
	if b.cl != nil {
		workers := *b.vectors
		workers.c, workers.op = b.cl.Workers(), w.op
		w.algorithm = workers.c.Bridge().Algorithm(w.op, 4*count, comm.Sum)
		w.trial = workers.trial(count)
	}
	return w
}

func (b *psBench) alternate(ctx context.Context, routes []route) ([]sample, error) {
	trials := make([]trial, len(routes))
	for i, w := range routes {
		trials[i] = w.trial
	}
	return alternate(ctx, b.c, trials, budget{b.o.time, b.o.maxIterations})
}

// report prints a row for each route, and the text below them.
func (b *psBench) report(routes []route, samples []sample, count int, text string) error {
	for i, w := range routes {
		slices.Sort(samples[i].seconds)
		r := b.o.rowOf(b.c, count, samples[i])
		r.Op, r.Algorithm, r.BusBW = w.op, w.algorithm, float64(w.crosses)/r.MedianUs
		if err := b.paper.row(r); err != nil {
			return err
		}
		b.rows = append(b.rows, r)
	}
	return b.paper.remark(text)
}
