package comm

import (
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/topology"
)

// Parameters adapt the library to a machine or to a measurement. Programs rarely need them. A field
// that is zero keeps its default. Sizes are in bytes. Ranks need not agree, except where a field
// says so.
type Parameters struct {
	// Protocol selects how messages are sent. "eager" sends every message at once. "rendezvous"
	// offers every message, and its receiver requests the bytes. "auto", the default, sends small
	// messages eagerly and large ones by rendezvous.
	Protocol string

	// Threshold is the size of the largest message that "auto" sends at once.
	Threshold int

	// Credit is the number of bytes that each peer may send before a receive has matched them. It
	// must be at least 512 KiB, and equal on all ranks.
	Credit int

	// SendBuffer bounds the bytes of sends that have returned and still wait for their receives.
	// The default is 256 MiB.
	SendBuffer int64

	// StepBytes bounds the bytes of all named sends of one step; the default is 1 GiB.
	StepBytes int64

	// StaticTensors lets this rank allocate recurring named tensors once. RecvNamed and OnNamed
	// without a buffer observe the first steps. They prepare a receive (see PrepareRecvNamed) for
	// each tensor of at least 16 KiB that has arrived in three steps without growing. The prepared
	// buffers of all senders together take at most this many bytes. From then on the sender writes
	// the tensor straight into the prepared buffer, without an offer at each step. Data stays in
	// this buffer until Tensor.Release.
	//
	// StaticTensors helps over transports that expose ordinary memory (memory, verbs), and for
	// tensors above Threshold. It has no effect over other transports, or with Checksums. Over shm,
	// use PrepareRecvNamed with memory from Alloc instead. The default is 0, and the maximum is 1
	// TiB.
	StaticTensors int64

	// Segment is the segment size of collectives' messages where neither a tuning file nor
	// WithAlgorithm gives one. It must be a multiple of 16, at least 64, and equal on all ranks.
	Segment int

	// Checksums adds a CRC-32C to message bodies; heads always have one. It must be equal on all
	// ranks.
	Checksums bool

	// Heartbeat is the interval between heartbeats; the default is 250 ms. Silence is how long a
	// rank may be silent before it is declared lost. It is at least two heartbeats, and 4 s by
	// default. A process that is stopped for longer is declared lost, so jobs that a batch system
	// suspends rank by rank need a longer Silence. Both must be equal on all ranks.
	Heartbeat, Silence time.Duration

	// EndOnLoss applies if a process joins and then leaves before all processes have joined. By
	// default, Init logs the departure at once, and waits for another process in its place. With
	// EndOnLoss, Init fails at once on all ranks that have joined. Rank 0 waits 0.6 s longer, to tell
	// the reason to ranks that join in this time. Ranks that come later wait until their deadline. If
	// the process has left because its deadline has passed, the errors name the ranks that have not
	// joined. EndOnLoss must be equal on all ranks.
	//
	// If the launcher has seen the end of a process that had called Init, Init fails on all ranks,
	// whether or not EndOnLoss is set. tuttirun records such ends.
	EndOnLoss bool

	// Tuning names a file that `tuttibench tune` wrote. The file chooses the algorithms and their
	// segments; where it has no rule, the default rules apply. Only rank 0's Tuning counts: rank 0
	// reads the file and sends it to the other ranks. It overrides rank 0's TUTTI_TUNING.
	Tuning string

	// Rack names the rack of this rank's host. Rings and trees visit the ranks rack by rack. All
	// ranks of a host must give the same name: at most 64 bytes of printable ASCII without blanks,
	// "#" and "/". It overrides TUTTI_RACK.
	Rack string

	// Topology names a file that lists the rack of each host of the job, in lines of the form "host
	// rack"; see topology.ParseFile. Only rank 0's Topology counts. It overrides rank 0's
	// TUTTI_TOPOLOGY.
	Topology string

	// NoSharedMemory makes collectives use messages where the ranks could share memory.
	NoSharedMemory bool
}

// WithParameters sets the fields of p that are not zero. Other fields keep the values of earlier
// options.
func WithParameters(p Parameters) Option { return func(o *options) { o.params.merge(p) } }

// merge copies the fields of q that are not zero. Several WithParameters therefore add up, so that
// a test can add a parameter to the options of another test.
func (p *Parameters) merge(q Parameters) {
	set(&p.Protocol, q.Protocol)
	set(&p.Threshold, q.Threshold)
	set(&p.Credit, q.Credit)
	set(&p.SendBuffer, q.SendBuffer)
	set(&p.StepBytes, q.StepBytes)
	set(&p.StaticTensors, q.StaticTensors)
	set(&p.Segment, q.Segment)
	set(&p.Checksums, q.Checksums)
	set(&p.Heartbeat, q.Heartbeat)
	set(&p.Silence, q.Silence)
	set(&p.Tuning, q.Tuning)
	set(&p.Rack, q.Rack)
	set(&p.Topology, q.Topology)
	set(&p.EndOnLoss, q.EndOnLoss)
	set(&p.NoSharedMemory, q.NoSharedMemory)
}

// set assigns a value that is not the zero value.
func set[T comparable](field *T, value T) {
	var zero T
	if value != zero {
		*field = value
	}
}

// maxStaticTensors is the largest valid value of StaticTensors.
const maxStaticTensors = 1 << 40

// check refuses invalid values. Its errors name the given rank, or no rank if it is negative.
func (p *Parameters) check(rank int) error {
	bad := func(format string, args ...any) error { return fault.New(fault.Misuse, "init", rank, format, args...) }
	for _, size := range []struct {
		name  string
		bytes int64
	}{
		{"Threshold", int64(p.Threshold)}, {"Credit", int64(p.Credit)}, {"SendBuffer", p.SendBuffer},
		{"StepBytes", p.StepBytes}, {"StaticTensors", p.StaticTensors},
	} {
		if size.bytes < 0 {
			return bad("parameter %s: got %d bytes, want 0 (the default) or more", size.name, size.bytes)
		}
	}
	switch {
	case p.StaticTensors > maxStaticTensors:
		return bad("parameter StaticTensors: got %d bytes, want at most %d", p.StaticTensors, int64(maxStaticTensors))
	case p.Segment < 64 || p.Segment%16 != 0:
		return bad("parameter Segment: got %d bytes, want a multiple of 16, at least 64", p.Segment)
	case p.Heartbeat <= 0:
		return bad("parameter Heartbeat: got %v, want more than 0", p.Heartbeat)
	case p.Silence < 2*p.Heartbeat:
		return bad("parameter Silence: got %v, want at least %v, twice the parameter Heartbeat", p.Silence, 2*p.Heartbeat)
	}
	if _, ok := protocols()[p.Protocol]; !ok {
		return bad("parameter Protocol: got %q, want auto, eager or rendezvous", p.Protocol)
	}
	if p.Rack != "" {
		if err := topology.CheckName(p.Rack); err != nil {
			return bad("rack, from TUTTI_RACK or Parameters.Rack: %w", err)
		}
	}
	return nil
}
