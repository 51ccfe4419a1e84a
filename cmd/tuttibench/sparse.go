package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/ps"
	"github.com/tutti-go/tutti/ps/optimizer"
)

// zipfExponent is the exponent of the Zipf distribution: row i is drawn with a probability that is
// proportional to (1+i) to the power of minus the exponent.
const zipfExponent = 1.1

// sparse pushes gradients of random rows of a table, and pulls these rows. Each row is pushed once
// before the measurement, so that all rows exist. Three routes take turns: rows of a uniform
// distribution, rows of a Zipf distribution, and a ping-pong with as many bytes as a worker's
// values.
func (b *psBench) sparse(ctx context.Context) error {
	if b.o.rows < b.workers {
		return fmt.Errorf("-rows %d: got %d workers, want at most one per row", b.o.rows, b.workers)
	}
	t := newRowTraffic(b)
	before := residentBytes()
	if err := t.fill(ctx); err != nil {
		return err
	}
	if err := b.c.Barrier(ctx); err != nil { // the servers have all rows
		return err
	}
	memory, err := b.memory(ctx, residentBytes()-before)
	if err != nil {
		return err
	}
	count := b.o.indices * b.o.width
	b.vectors = newTypedVectors(b.c, b.o, count, integer[float32])
	routes := []route{t.steps("uniform"), t.steps("zipf"), b.pingPongs(count)}
	samples, err := b.alternate(ctx, routes)
	if err != nil {
		return err
	}
	rate := func(i int) float64 { // the rate of pushes and pulls, relative to the rate of the ping-pong
		return medianRatio(samples[2].seconds, samples[i].seconds) * float64(2*4*count*b.workers) / float64(routes[2].crosses)
	}
	return b.report(routes, samples, count, fmt.Sprintf("turn by turn %.2f of the bytes of a ping-pong per second, and %.2f with a Zipf distribution, whose steps take %.2f of the time (medians of %d)%s",
		rate(0), rate(1), medianRatio(samples[1].seconds, samples[0].seconds), len(samples[0].seconds), memory))
}

// memory returns a text that compares the growth of the servers' memory with the size of the
// table's values and keys. The argument grown is the number of bytes by which this rank's resident
// memory has grown. If a process has both workers and servers, or if the growth is unknown, memory
// returns "".
func (b *psBench) memory(ctx context.Context, grown int) (string, error) {
	if b.cl != nil {
		grown = 0
	}
	all := []int{grown}
	if err := comm.AllReduce(ctx, b.c, all, comm.Sum); err != nil || b.o.servers == 0 || b.o.local > 0 || all[0] <= 0 {
		return "", err
	}
	return fmt.Sprintf("; the table has taken %d MB of the servers' memory, %.2f of its values and keys",
		all[0]/1e6, float64(all[0])/float64(b.o.rows)/float64(4*b.o.width+8)), nil
}

// residentBytes returns the resident memory of this process, or 0 if the system does not say.
func residentBytes() int {
	text, _ := os.ReadFile("/proc/self/statm") // exists on Linux only
	if fields := bytes.Fields(text); len(fields) > 1 {
		pages, _ := strconv.Atoi(string(fields[1]))
		return pages * os.Getpagesize()
	}
	return 0
}

// rowTraffic is a worker's pushes and pulls of rows of one table. The gradient of element e of a
// row is e%3 + 1 in some steps, and its negative in others. So the value of an element is always a
// small multiple of its gradient, whatever the order of additions.
type rowTraffic struct {
	b       *psBench
	table   *ps.Table[float32]
	step    int
	pushed  []int32 // for each row, the sum of the signs with which all workers have pushed it
	indices []int64 // the rows that this worker uses in this step
	values  []float32
	out     []float32
}

func newRowTraffic(b *psBench) *rowTraffic {
	t := &rowTraffic{b: b}
	if b.cl != nil {
		n := b.o.indices
		t.pushed, t.indices = make([]int32, b.o.rows), make([]int64, n)
		t.values, t.out = make([]float32, n*b.o.width), make([]float32, n*b.o.width)
	}
	return t
}

// fill declares the table, and pushes each row once. The workers share the rows. All of them make
// the same number of pushes, because a version of the table needs a push of every worker.
func (t *rowTraffic) fill(ctx context.Context) (err error) {
	if t.b.cl == nil {
		return nil
	}
	t.table, err = ps.DeclareTable[float32](ctx, t.b.cl, "rows", t.b.o.width,
		ps.Optimizer(optimizer.SGD{Rate: 1}), ps.Reduce(comm.Sum), ps.Rows(int64(t.b.o.rows)))
	if err != nil {
		return err
	}
	t.setValues()
	parts := t.b.workers * ((t.b.o.rows + t.b.workers*t.b.o.indices - 1) / (t.b.workers * t.b.o.indices))
	for part := t.b.c.Rank(); part < parts; part += t.b.workers {
		first, end := t.b.o.rows*part/parts, t.b.o.rows*(part+1)/parts
		indices := t.indices[:end-first]
		for i := range indices {
			indices[i] = int64(first + i)
		}
		if err := t.table.Push(ctx, indices, t.values[:len(indices)*t.b.o.width]); err != nil {
			return err
		}
	}
	for row := range t.pushed {
		t.pushed[row] = 1
	}
	return nil
}

// sign returns 1 in two steps, and -1 in the next two. Each turn has two steps: one with uniformly
// distributed rows, and one with Zipf's distribution.
func (t *rowTraffic) sign() int32 { return 1 - 2*int32(t.step/2%2) }

func (t *rowTraffic) setValues() {
	for i := range t.values {
		t.values[i] = gradient(i%t.b.o.width, t.sign())
	}
}

// gradient returns n times the gradient of element e of a row.
func gradient(e int, n int32) float32 { return float32(n * int32(e%3+1)) }

// steps returns the route that pushes rows and pulls the same rows. The argument name says how the
// rows are distributed: uniform or zipf.
func (t *rowTraffic) steps(name string) route {
	w := route{op: sparse, algorithm: name, trial: noTrial(), crosses: 2 * 4 * len(t.out) * t.b.workers}
	if t.b.cl == nil {
		return w
	}
	w.load = func() { t.load(name == "zipf") }
	w.run = func(ctx context.Context) error {
		return ps.WaitAll(ctx, t.table.IPush(t.indices, t.values), t.table.IPull(t.indices, t.out))
	}
	w.wrong = t.wrong
	return w
}

// load draws the rows of the next step for all workers. Each worker needs the rows of the others to
// verify the values.
func (t *rowTraffic) load(zipf bool) {
	t.step++
	t.setValues()
	clear(t.out)
	for worker := range t.b.workers {
		random := rand.New(rand.NewPCG(uint64(worker), uint64(t.step)))
		draw := func() int64 { return random.Int64N(int64(t.b.o.rows)) }
		if zipf {
			z := rand.NewZipf(random, zipfExponent, 1, uint64(t.b.o.rows-1))
			draw = func() int64 { return int64(z.Uint64()) }
		}
		for i := range t.indices {
			row := draw()
			t.pushed[row] += t.sign()
			if worker == t.b.c.Rank() {
				t.indices[i] = row
			}
		}
	}
}

// wrong counts the wrong elements of the rows that were pulled. SGD with rate 1 subtracts the
// gradients.
func (t *rowTraffic) wrong() int {
	wrong := 0
	for i, row := range t.indices {
		for e := range t.b.o.width {
			if t.out[i*t.b.o.width+e] != gradient(e, -t.pushed[row]) {
				wrong++
			}
		}
	}
	return wrong
}
