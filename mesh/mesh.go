package mesh

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// The times that hold where Config leaves them zero.
const (
	DefaultHeartbeat = 250 * time.Millisecond
	DefaultSilence   = 4 * time.Second
	DefaultStall     = 5 * time.Second
)

// MaxFlood is the most bytes that the body of a Flood, a question or its answer
// may have.
const MaxFlood = 3 << 10

// MaxCall is the most bytes of a last call that travel with a heartbeat.
const MaxCall = 200

// A Config says who a rank is and how it reaches the others. Rank, Size and
// Transport must be set, and of Root and Peers one, unless Size is 1.
type Config struct {
	Rank, Size  int
	Job         string              // equal on all ranks of a job, different between jobs
	Incarnation uint32              // counts restarts of the job
	Secret      []byte              // proves that a peer belongs to the job; empty: no proof is asked
	Transport   transport.Transport // carries handshakes, control links and data; the Mesh closes it
	Listener    net.Listener        // this process's one listener; nil when the transport needs none
	TLS         *tls.Config         // the server's side of TLS on Listener; nil: plain connections
	Root        string              // where rank 0 can be reached: addresses are exchanged there
	Peers       []string            // all ranks' addresses, when they are known beforehand
	Host        string              // the name to report for this rank's host, at most 255 bytes
	BodySums    bool                // bodies carry a checksum; must be equal on all ranks
	InProcess   bool                // the ranks are goroutines of this process
	Heartbeat   time.Duration       // between two signs of life; 0: DefaultHeartbeat
	Silence     time.Duration       // after which a rank is given up; 0: DefaultSilence
	Stall       time.Duration       // for which a peer may refuse offered bytes; 0: DefaultStall
	Log         *slog.Logger        // nil: warnings on standard error
	Events      Events              // nil: nobody listens
	Data        Data                // what lies above the data Conns
}

// Events is what a Mesh tells the layer above. All methods run on the Mesh's
// control goroutine, one at a time: they are short and never block, and may call
// Flood, Suspect and Verdict. They may come before Start has returned, and stop
// when Close returns.
type Events interface {
	// Verdict says who failed: fault.PeerLost, fault.LinkLost, or what a rank
	// announced by Mesh.Verdict. e.Peers names the blamed, and e is the same on
	// all ranks. A rank that is blamed itself hears so, too.
	Verdict(e *fault.Error)
	// Goodbye says that a rank has closed in order.
	Goodbye(rank int)
	// Flooded brings another rank's Flood. body is the callee's to keep.
	Flooded(from int, kind byte, body []byte)
	// Question answers an Ask; nil is silence. At most MaxFlood bytes are sent.
	Question(from int, q []byte) []byte
	// LastCall is what this rank does or did last, for heartbeats.
	LastCall() string
}

// An Answer is what became of a question to one rank.
type Answer struct {
	Rank   int
	Body   []byte        // the rank's own words; nil when there are none
	Last   string        // its last call, as its heartbeats told
	Silent time.Duration // for how long nothing was heard of it; 0 when it answered
}

// A Mesh is one rank's place among its peers. All methods may be called by
// anyone at any time; those without a context never block.
type Mesh struct {
	cfg       Config
	log       *slog.Logger
	inProcess bool // the ranks are goroutines of this process
	crowded   bool // more ranks than cores share this host; written before Start returns
	links     links

	mu    sync.Mutex // guards the rest
	hosts []string
}

// Start makes this process rank cfg.Rank of cfg.Size: it serves, learns the
// others' addresses, opens the control links, and returns when all ranks have
// done so. Its errors are *fault.Error: Misuse for a wrong Config, Refused when
// a peer turned this rank down, Timeout naming the ranks that never came,
// PeerLost when one died on the way. After an error nothing is left running,
// and the Transport and the Listener are closed.
func Start(ctx context.Context, cfg Config) (*Mesh, error) {
	return nil, fault.New(fault.Misuse, "init", cfg.Rank, "not built yet")
}

// Rank is this process's rank.
func (m *Mesh) Rank() int { return m.cfg.Rank }

// Size is the number of ranks the job started with.
func (m *Mesh) Size() int { return m.cfg.Size }

// Host is the host name that a rank reported, "" while it is not known.
func (m *Mesh) Host(rank int) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hosts[rank]
}

// Flood sends body to every live rank but this one, once each, in no order that
// floods of other calls could rely on. body is copied; more than MaxFlood bytes
// are a bug of the caller's, and are not sent.
func (m *Mesh) Flood(kind byte, body []byte) {}

// Ask puts a question to ranks, each once, and returns one Answer for each, in
// their order. It returns when all have answered or are known to be gone, after
// about a second at the latest (a rank that is silent is answered for by what
// its neighbours know), or when ctx ends.
func (m *Mesh) Ask(ctx context.Context, ranks []int, question []byte) []Answer { return nil }

// Suspect says that this rank's data Conn to rank broke. Within a second a
// verdict follows, about the rank or about the link, unless the rank turns out to
// have said goodbye.
func (m *Mesh) Suspect(rank int, cause error) {}

// Verdict announces e to all ranks, this one included: a panic, an abort, an
// exit without Close. The first verdict wins; of several that cross on their
// way, all ranks hear the one about the lowest rank first.
func (m *Mesh) Verdict(e *fault.Error) {}

// Close says goodbye, waits until the neighbours have heard it (or are gone, or
// ctx has ended), and closes everything. Later calls return the first one's error.
func (m *Mesh) Close(ctx context.Context) error { return nil }
