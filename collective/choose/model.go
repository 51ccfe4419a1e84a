package choose

import (
	"cmp"
	"slices"
	"strings"

	"github.com/tutti-go/tutti/collective"
)

// Shared is the "wire" of memory that ranks have in common: there α is the time to
// hand a piece over, and β that to copy a byte of it.
const Shared = "shared"

// A LinkCost is how long a message takes on a wire, α + β·bytes, for messages of at
// most MaxBytes; 0 stands for no limit.
type LinkCost struct {
	Wire     string
	MaxBytes uint64
	Alpha    float64 // seconds
	Beta     float64 // seconds per byte
}

// A Model is the speed of a machine. The lines of a wire stand in the order of
// their sizes. A Model that nobody changes may be used concurrently.
type Model struct {
	Links []LinkCost
	Gamma float64 // seconds to fold a byte
}

// link is the one for messages of that many bytes. Several wires together,
// "shm+tcp", have lines of their own where they were measured together, or else
// the slowest one's. ok is false where the model does not know any.
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

func (m *Model) linkOf(name string, bytes float64) (line LinkCost, ok bool) {
	for _, l := range m.Links {
		if l.Wire != name {
			continue
		}
		line, ok = l, true // beyond the last one, the last one holds
		if l.MaxBytes == 0 || bytes <= float64(l.MaxBytes) {
			break
		}
	}
	return line, ok
}

func (l LinkCost) seconds(bytes float64) float64 { return l.Alpha + l.Beta*bytes }

// Predict is how many seconds an algorithm takes on so many ranks for a vector of
// that many bytes. α and β are those of its mean message. ok is false where the
// model does not know the wire.
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

// MergeModels is the newer model, with the older one's lines of other wires.
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

// A Estimate is an algorithm with what it is predicted to take.
type Estimate struct {
	Algorithm collective.Algorithm
	Seconds   float64
	Known     bool // the model knows the wire
}

// Estimates are all algorithms of a verb, the one that is predicted to be the
// fastest first, and those that the model cannot predict last.
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

// A TimedMessage is a message's size and how many seconds it took.
type TimedMessage struct{ Bytes, Seconds float64 }

// FitLinkCosts are the lines through points, which stand in the order of their sizes:
// between two of them, both are met. A line never has a negative α or β, as a time
// that falls with the size is a slip of the clock.
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

// DefaultModel holds round figures for when nothing was measured: near what
//
//	tuttirun -np 2 tuttibench tune -transport shm -ops barrier -max 4 -time 20ms
//
// found on two cores of an AMD EPYC, in the best of three rounds, and its like over
// tcp and grpc on loopback, and with -local 2. One line per wire lies between what a
// byte takes in a cache and beyond. They tell Explain which algorithms are
// in reach of each other; no rule follows from them. Where ranks outnumber cores, or
// messages cross a network, all of it takes longer.
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
