package optim

import (
	"slices"
	"time"
)

// A Way is the way that a gradient goes.
type Way uint8

const (
	// Auto lets worker 0 choose; see New. It is the default.
	Auto Way = iota
	// Ring reduces the gradient by an allreduce, and runs the optimizer on each worker.
	Ring
	// Servers pushes the gradient to servers that run the optimizer, and pulls the value.
	Servers
)

// String returns "auto", "ring" or "servers".
func (s Way) String() string {
	if s > Servers {
		return "unknown side"
	}
	return [...]string{"auto", "ring", "servers"}[s]
}

// A load is what a choice depends on for one parameter.
type load struct {
	bytes float64 // of the value
	sent  float64 // share of the bytes that a worker sends
}

// fusedBytes is the size up to which a gradient stays on the ring, because the coordinator fuses it
// with others. A push of it would be a message of its own.
const fusedBytes = 256 << 10

// ring returns the bytes that an allreduce moves over the busiest link in one direction. With TopK,
// each worker gets the elements of all others.
func (l load) ring(workers int) float64 {
	n := float64(workers)
	if l.sent < 1 {
		return min((n-1)*l.sent, 2*(n-1)/n) * l.bytes
	}
	return 2 * (n - 1) / n * l.bytes
}

// servers returns the same for a push and a pull. A server receives from all workers and sends to all
// of them; a worker pulls whole values.
func (l load) servers(workers, servers int) float64 {
	return l.bytes * max(1, float64(workers)/float64(servers))
}

// A chooser chooses the sides of automatic parameters, on worker 0. Without measurements it chooses at
// once. Otherwise it times steps with all of them on the ring and then on the servers. The middle one
// of the times of a side, over its bytes in the model, scales the model.
//
//	steps  2           5              2                 5              then
//	side   ring        ring           servers           servers        as chosen
//	times  dropped     measured       dropped           measured
type chooser struct {
	workers, servers int
	loads            []load
	measures         bool
	step             int
	times            [2][]time.Duration // on the ring, on the servers
}

const (
	warmup   = 2
	measured = 5
)

// first returns the sides of the first step.
func (c *chooser) first() []Way {
	if c.measures {
		return c.all(Ring)
	}
	return c.choose(1, 1)
}

// next takes the time of a step, and returns the sides of the next step. It returns nil when they do
// not change.
func (c *chooser) next(elapsed time.Duration) []Way {
	if !c.measures {
		return nil
	}
	side := c.step / (warmup + measured)
	if c.step%(warmup+measured) >= warmup {
		c.times[side] = append(c.times[side], elapsed)
	}
	c.step++
	switch c.step {
	case warmup + measured:
		return c.all(Servers)
	case 2 * (warmup + measured):
		c.measures = false
		var ring, servers float64
		for _, l := range c.loads {
			ring += l.ring(c.workers)
			servers += l.servers(c.workers, c.servers)
		}
		return c.choose(median(c.times[0])/max(1, ring), median(c.times[1])/max(1, servers))
	}
	return nil
}

// choose puts a parameter on the servers if it is then faster by a tenth at least, with these times
// for a byte.
func (c *chooser) choose(ring, servers float64) []Way {
	sides := c.all(Ring)
	for i, l := range c.loads {
		if l.bytes > fusedBytes && servers*l.servers(c.workers, c.servers) < 0.9*ring*l.ring(c.workers) {
			sides[i] = Servers
		}
	}
	return sides
}

func (c *chooser) all(s Way) []Way { return slices.Repeat([]Way{s}, len(c.loads)) }

func median(d []time.Duration) float64 {
	slices.Sort(d)
	return float64(d[len(d)/2])
}
