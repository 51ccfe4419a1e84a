package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/collective/choose"
	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
)

// messageSizes returns the message sizes in bytes from which α and β are fitted.
func messageSizes() []int { return []int{8, 1 << 10, 8 << 10, 64 << 10, 512 << 10, 4 << 20} }

// model measures α, β and γ while all ranks are busy, as they are in an algorithm.
func (t *tuner) model(ctx context.Context) (choose.Model, error) {
	var m choose.Model
	for _, probe := range []struct{ name, wire string }{{"ring", t.c.Bridge().Wire()}, {"shared", choose.Shared}} {
		points, err := t.points(ctx, probe.name)
		if err != nil {
			return m, fmt.Errorf("α and β of %s: %w", probe.wire, err)
		}
		m.Links = append(m.Links, choose.FitLinkCosts(probe.wire, points)...)
	}
	gamma, err := t.gamma(ctx)
	m.Gamma = gamma
	for _, l := range m.Links {
		fmt.Fprintf(t.log, "%-14s %9d bytes  alpha %.2f us, beta %.2f us/MiB\n", l.Wire, l.MaxBytes, 1e6*l.Alpha, 1e6*l.Beta*(1<<20))
	}
	fmt.Fprintf(t.log, "gamma %.2f us/MiB\n", 1e6*gamma*(1<<20))
	return m, err
}

// points returns how long single messages of several sizes take. It times allgathers by the named
// algorithm, whose steps are all alike and reduce nothing, and divides each time by the number of
// steps. If the algorithm cannot run on this communicator, points returns nil.
func (t *tuner) points(ctx context.Context, name string) ([]choose.TimedMessage, error) {
	a, err := collective.Find(collective.VerbAllGather, name)
	if err != nil {
		return nil, err
	}
	c, err := t.c.Dup(ctx, comm.Algorithm(a.String()))
	if err != nil {
		return nil, err
	}
	defer c.Close(ctx)
	n := c.Size()
	sizes := messageSizes()
	elements := sharedElements(n)
	vs, err := vectorsFor(c, options{op: "allgather", dtype: tensor.Float32}, max(n*slices.Max(sizes)/4, elements))
	if err != nil {
		return nil, err
	}
	if able, err := warm(ctx, vs, elements, []*way{{algorithm: a, c: c}}); err != nil || len(able) == 0 {
		return nil, err
	}
	var points []choose.TimedMessage
	for _, size := range sizes {
		seconds, err := t.time(ctx, vs.trial(n*size/4))
		if err != nil {
			return nil, err
		}
		alpha, beta, _ := a.Cost(n, n*size, 64<<10)
		points = append(points, choose.TimedMessage{Bytes: beta / alpha, Seconds: seconds / alpha})
	}
	return points, nil
}

// gamma returns the time in which a rank reduces one byte of a vector in cache. All ranks reduce at
// the same time, and the result is the median of the slowest rank's times.
func (t *tuner) gamma(ctx context.Context) (float64, error) {
	const bytes, folds, rounds = 64 << 10, 50, 9
	k, err := reduce.Sum.Kernel(tensor.Float32)
	if err != nil {
		return 0, err
	}
	dst, src := tensor.Bytes(make([]float32, bytes/4)), tensor.Bytes(make([]float32, bytes/4))
	var all []float64
	for range rounds {
		if err := t.c.Barrier(ctx); err != nil {
			return 0, err
		}
		begin := time.Now()
		for range folds {
			k.Fold(dst, dst, src)
		}
		all = append(all, time.Since(begin).Seconds()/folds/bytes)
	}
	slices.Sort(all)
	slowest := []float64{all[rounds/2]}
	err = comm.AllReduce(ctx, t.c, slowest, comm.Max)
	return slowest[0], err
}

// machine describes the machine on which a measurement runs.
func machine() string {
	processor := "an unknown processor"
	text, _ := os.ReadFile("/proc/cpuinfo") // exists on Linux only
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			processor = strings.TrimSpace(value)
			break
		}
	}
	return fmt.Sprintf("%s, %d processors, %s/%s, %s", processor, runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version())
}
