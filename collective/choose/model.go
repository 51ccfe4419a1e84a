package choose

import (
	"cmp"
	"slices"
	"strings"

	"github.com/tutti-go/tutti/collective"
)

// Shared is the name of a wire that stands for shared memory. For Shared, α is the time to hand a
// fragment over, and β is the time to copy a byte.
const Shared = "shared"

// A LinkCost is the time of a message on a wire, α + β·bytes, for messages of at most MaxBytes.
// MaxBytes 0 sets no limit. A wire has several LinkCosts, because neither α nor β is constant.
// Short messages are sent inline, longer messages need a request, and the longest messages do not
// fit into the caches.
type LinkCost struct {
	Wire     string
	MaxBytes uint64
	Alpha    float64 // seconds
	Beta     float64 // seconds per byte
}

// A Model is the speed of a machine. The costs of each wire are sorted by MaxBytes. Several
// goroutines may use a Model at the same time, as long as none of them changes it.
type Model struct {
	Links []LinkCost
	Gamma float64 // seconds to fold a byte
}

// link returns the cost of messages of the given size on a wire. A combination of wires, such as
// "shm+tcp", has its own costs if the combination was measured. Otherwise link returns the cost of
// its slowest wire, because a step of a collective ends with its slowest message. The result ok is
// false if the model knows none of the wires.
func (m *Model) link(wire string, bytes float64) (line LinkCost, ok bool) {
	if line, ok = m.linkOf(wire, bytes); ok {
		return line, true
	}
	for name := range strings.SplitSeq(wire, "+") {
		if l, known := m.linkOf(name, bytes); known && (!ok || l.seconds(bytes) > line.seconds(bytes)) {
			line, ok = l, true
		}
	}
	return line, ok
}

// linkOf returns the cost of messages of the given size on the wire with exactly that name.
func (m *Model) linkOf(name string, bytes float64) (line LinkCost, ok bool) {
	for _, l := range m.Links {
		if l.Wire != name {
			continue
		}
		line, ok = l, true // the last cost also applies to larger messages
		if l.MaxBytes == 0 || bytes <= float64(l.MaxBytes) {
			break
		}
	}
	return line, ok
}

func (l LinkCost) seconds(bytes float64) float64 { return l.Alpha + l.Beta*bytes }

// Predict returns the predicted time of an algorithm in seconds, for a vector of the given size on
// the given number of ranks. The result ok is false if the model does not know the wire.
//
// α and β depend on the size of a message, and an algorithm sends messages of several sizes.
// Predict uses the α and β for the mean message size, which is beta/alpha bytes. This is exact for
// algorithms whose messages all have the same size. An algorithm in shared memory uses the cost of
// Shared, whatever the wire is.
func (m *Model) Predict(a collective.Algorithm, ranks, bytes, segment int, wire string) (seconds float64, ok bool) {
	alpha, beta, gamma := a.Cost(ranks, bytes, segment)
	if alpha == 0 {
		return 0, true
	}
	if a.NeedsShared() {
		wire = Shared
	}
	l, ok := m.link(wire, beta/alpha)
	return alpha*l.Alpha + beta*l.Beta + gamma*m.Gamma, ok
}

// MergeModels returns the newer model. It adds the older model's costs for wires that the newer
// model does not have. γ is taken from the newer model.
func MergeModels(older, newer Model) Model {
	var lines []LinkCost
	for _, l := range older.Links {
		if _, again := newer.linkOf(l.Wire, 0); !again {
			lines = append(lines, l)
		}
	}
	newer.Links = append(lines, newer.Links...)
	return newer
}

// An Estimate is an algorithm with its predicted time.
type Estimate struct {
	Algorithm collective.Algorithm
	Seconds   float64
	Known     bool // whether the model knows the wire
}

// Estimates returns all algorithms of a verb in the order of their predicted times, the shortest
// time first. Algorithms that the model cannot predict come last. Estimates includes algorithms
// that cannot run in the caller's job, such as hierarchical algorithms on one host. The caller
// removes them.
func (m *Model) Estimates(verb collective.Verb, ranks, bytes, segment int, wire string) []Estimate {
	var all []Estimate
	for _, a := range collective.Algorithms(verb) {
		seconds, known := m.Predict(a, ranks, bytes, segment, wire)
		all = append(all, Estimate{a, seconds, known})
	}
	slices.SortStableFunc(all, func(a, b Estimate) int {
		if a.Known != b.Known {
			if a.Known {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Seconds, b.Seconds)
	})
	return all
}

// A TimedMessage is the size of a message and the seconds that it took.
type TimedMessage struct{ Bytes, Seconds float64 }

// FitLinkCosts fits one line to each pair of neighbouring points. The points must be sorted by
// size. No line has a negative α or β, because a time that falls as the size grows is a measurement
// error.
func FitLinkCosts(wire string, points []TimedMessage) []LinkCost {
	var all []LinkCost
	for i := 1; i < len(points); i++ {
		from, to := points[i-1], points[i]
		if to.Bytes <= from.Bytes {
			continue
		}
		l := LinkCost{Wire: wire, MaxBytes: uint64(to.Bytes), Beta: max(0, (to.Seconds-from.Seconds)/(to.Bytes-from.Bytes))}
		l.Alpha = max(0, to.Seconds-l.Beta*to.Bytes)
		all = append(all, l)
	}
	switch {
	case len(all) > 0:
		all[len(all)-1].MaxBytes = 0
	case len(points) > 0:
		all = []LinkCost{{Wire: wire, Alpha: points[0].Seconds}}
	}
	return all
}

// DefaultModel returns round figures for use without a measurement. They are near what
//
//	tuttirun -np 2 tuttibench tune -transport shm -ops barrier -max 4 -time 20ms
//
// measured on two cores of an AMD EPYC (the best of three rounds), and near the results of the same
// command over tcp and grpc on loopback, and with -local 2. Each wire has one line, whose β lies
// between the time per byte in the caches and the time per byte in main memory. Explain uses the
// figures to show which algorithms are close to each other. No rule follows from the figures. With
// more ranks than cores, or over a network, everything takes longer.
func DefaultModel() Model {
	line := func(wire string, alpha, beta float64) LinkCost { // in us, and us/MiB
		return LinkCost{Wire: wire, Alpha: alpha * micro, Beta: beta * micro * perMiB}
	}
	return Model{
		Gamma: 19 * micro * perMiB,
		Links: []LinkCost{
			line("memory", 3, 150),
			line("shm", 1, 130),
			line("tcp", 8, 230),
			line("grpc", 150, 2600),
			line(Shared, 0.2, 55),
		},
	}
}
