package mesh

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/pending"
	"github.com/tutti-go/tutti/internal/route"
	"github.com/tutti-go/tutti/transport"
)

// The default durations. They apply where a field of Config is zero.
const (
	DefaultHeartbeat = 250 * time.Millisecond
	DefaultSilence   = 4 * time.Second
	DefaultStall     = 5 * time.Second
)

// MaxFlood is the maximum size, in bytes, of the body of a Flood, a question or an answer.
const MaxFlood = 3 << 10

// MaxCall is the maximum size, in bytes, of the text in a heartbeat that names the sender's last
// call.
const MaxCall = 200

// MaxSize is the maximum number of ranks of a job. The message of a question holds one bit for each
// rank, and a body of up to MaxFlood bytes.
const MaxSize = 8 * (maxBody - MaxFlood)

// A Config says who a rank is and how it reaches the others. Size, Transport and, unless Size is 1,
// Root or Peers must be set.
type Config struct {
	Rank, Size  int
	Job         string              // equal on all ranks of a job, different between jobs
	Incarnation uint32              // counts restarts of the job, from 0
	Secret      []byte              // proves that a peer belongs to the job; empty: not needed
	Transport   transport.Transport // carries handshakes, control links, data; the Mesh closes it
	// Listener is the only listener of this process. It is nil if the transport needs no listener.
	// The Mesh closes it.
	Listener net.Listener
	TLS      *tls.Config // the server side of TLS on Listener; nil: plain connections
	Secures  Secures     // the connections under TLS; nil: all, if TLS is set
	// NameOf returns the name (see tlsopt.Named) that a rank must prove under TLS. If it is nil,
	// names are not checked.
	NameOf    func(int) string
	Root      string        // rank 0's address, at which addresses are exchanged
	Peers     []string      // all ranks' addresses, when they are known beforehand
	Host      string        // the name to report for this rank's host, at most 64 bytes
	BodySums  bool          // bodies carry a checksum; must be equal on all ranks
	InProcess bool          // the ranks are goroutines of this process
	Heartbeat time.Duration // the time between two heartbeats; 0: DefaultHeartbeat
	Silence   time.Duration // how long a link may be silent until it counts as broken; 0:
	// DefaultSilence
	Stall time.Duration // how long a peer may leave waiting bytes unread; 0: DefaultStall
	// Redial is how long a data Conn over tcp or grpc that broke is dialled again, if both ranks
	// set it; 0: never. If it is set, control links that all break at once are dialled again, too,
	// until Silence has passed.
	Redial time.Duration
	// Exited reports whether the process of a rank is known to have ended. It does not block.
	// Exited is nil if nobody records such ends. If a process ends while other ranks have not
	// joined, the start fails, because no other process takes the rank's place.
	Exited func(rank int) bool
	// With EndOnLoss, the start ends if a rank leaves while others have not joined. Without
	// EndOnLoss, another process may take the rank's place.
	EndOnLoss    bool
	StartWarning time.Duration // the wait before Start logs missing ranks; 0: never
	Log          *slog.Logger  // nil: warnings on standard error
	Events       Events        // nil: events are dropped
	Data         Data          // the layer above the data Conns; nil: there are none
}

// hasExited reports whether the process of a rank is known to have ended; see Exited.
func (cfg *Config) hasExited(rank int) bool { return cfg.Exited != nil && cfg.Exited(rank) }

// Secures reports whether a connection between two addresses must be under TLS. The transport uses
// the same function.
type Secures func(local, remote net.Addr) bool

// Events is the interface that the layer above a Mesh implements. The control goroutine calls the
// methods, one at a time. A method must be short and must not block. It may call Flood, Suspect and
// Announce, but not Ask or Close. Methods may be called before Start has returned. No method is
// called after Close has returned.
type Events interface {
	// Failed reports a failure: fault.PeerLost, fault.LinkLost, or a failure that a rank announced.
	// e.Peers names the blamed ranks. All ranks get the same e, including a blamed rank that still
	// runs.
	Failed(e *fault.Error)
	// Goodbye reports the orderly close of a rank.
	Goodbye(rank int)
	// Flooded delivers a body that another rank has sent with Flood. The method may keep body, but
	// must not change it.
	Flooded(from int, kind byte, body []byte)
	// Question returns the answer to a question that another rank has sent with Ask. A nil answer
	// declines. At most MaxFlood bytes of the answer are sent.
	Question(from int, q []byte) []byte
	// LastCall appends a text to b that names this rank's current call or, between calls, the last
	// call. Heartbeats carry at most MaxCall bytes of the text.
	LastCall(b []byte) []byte
}

// An Answer is the result of a question to one rank. If the rank answered, Body is set. If the rank
// is silent, Last and Silent hold what its neighbours know about it.
type Answer struct {
	Rank   int
	Body   []byte        // the rank's own answer; nil if the rank has not answered
	Last   string        // of a silent rank: its last call, from its heartbeats
	Silent time.Duration // of a silent rank: how long its neighbours have received nothing
}

// A Mesh is one rank among its peers. All methods may be called by any goroutine at any time.
// Methods that take no context never block.
//
//	field       set by                      read by
//	cfg, id     newMesh; never changed      everything
//	mux         start, before any accept    handshakes, shutDown
//	joinServer  newMesh, on rank 0          handshakes, gatherRecords
//	peers       handshakes, the exchange,   dials, handshakes
//	            the control goroutine
//	ended       shutDown                    spawn, dials, handshakes
//
// mu guards ended and peers. A goroutine that holds mu takes no other lock of this package, and
// calls neither the transport nor the layer above.
type Mesh struct {
	cfg            Config
	log            *slog.Logger
	refusals       *pending.Log
	id             identity
	inProcess      bool // the ranks are goroutines of this process
	oversubscribed bool // more ranks than cores share this host; written before Start returns
	links          links
	control        *control
	joinServer     *joinServer // on rank 0, when addresses are exchanged; else nil
	mux            *mux        // nil without a listener
	progress       startProgress
	waiters        waiterPool

	ctx    context.Context // ends when the Mesh shuts down
	cancel context.CancelFunc
	work   sync.WaitGroup // handshakes and dials; see spawn
	once   sync.Once      // of Close
	closed error          // the result of Close

	mu    sync.Mutex // guards the rest
	ended bool       // shutDown has begun: spawn starts nothing more
	peers []peer
}

// A peer holds the data about a rank that dials and handshakes need. The membership machine has the
// full state, but only the control goroutine may read the machine. A peer is the copy for other
// goroutines.
//
//	departed  lost  dials                      hellos of that rank
//	no        nil   go to record.addr          are accepted
//	yes       nil   fail with fault.Closed     are refused: closed
//	any       set   fail with the failure      are refused: lost
type peer struct {
	record                // its instance: of the process that is this rank; 0: none yet
	lost     *fault.Error // the failure that marked it dead
	departed bool         // the rank has left by Close; of this rank: Close has begun
}

// Start makes this process rank cfg.Rank of cfg.Size. It accepts connections, learns the addresses
// of all ranks, and opens the control links. It returns when all ranks have done the same.
//
//	step              waits for                                 ends with
//	listen            nothing                                   this rank's address
//	exchange          all ranks, if addresses are not given     all addresses and hosts
//	control links     all ranks to have all their links         a Mesh
//
// The errors of Start are *fault.Error. Their kinds are: Misuse for a wrong Config; Refused if a
// peer refused this rank; Timeout or Canceled if ctx ended before all ranks had started; PeerLost
// if a rank died during the start; Exhausted if a rank lacks file descriptors. A Timeout names the
// ranks that never started. Ranks that fail together report the same reason if they can still reach
// each other. When Start returns an error, nothing is left running, and the Transport and the
// Listener are closed.
func Start(ctx context.Context, cfg Config) (*Mesh, error) {
	if err := cfg.complete(); err != nil {
		if cfg.Listener != nil {
			cfg.Listener.Close()
		}
		if cfg.Transport != nil {
			cfg.Transport.Close()
		}
		return nil, err
	}
	m := newMesh(cfg)
	if err := m.start(ctx); err != nil {
		m.shutDown(err)
		return nil, err
	}
	return m, nil
}

// complete checks the Config and sets the defaults. Arguments are checked only here, so all other
// code relies on these checks.
func (cfg *Config) complete() error {
	wrong := func(format string, args ...any) error {
		return fault.New(fault.Misuse, "init", cfg.Rank, format, args...)
	}
	switch {
	case cfg.Size < 1 || cfg.Size > MaxSize:
		return wrong("Size: got %d, want 1 to %d", cfg.Size, MaxSize)
	case cfg.Rank < 0 || cfg.Rank >= cfg.Size:
		return wrong("Rank: got %d, want 0 to %d", cfg.Rank, cfg.Size-1)
	case cfg.Transport == nil:
		return wrong("Transport: got nil, want a Transport")
	case cfg.Size > 1 && cfg.Root == "" && len(cfg.Peers) != cfg.Size:
		return wrong("Peers: got %d addresses and no Root, want %d: set Root, or one address per rank", len(cfg.Peers), cfg.Size)
	case cfg.Heartbeat < 0 || cfg.Silence < 0 || cfg.Stall < 0 || cfg.StartWarning < 0 || cfg.Redial < 0:
		return wrong("Heartbeat, Silence, Stall, StartWarning or Redial: got a negative duration, want 0 for the default or more")
	}
	for _, d := range []struct {
		value *time.Duration
		usual time.Duration
	}{{&cfg.Heartbeat, DefaultHeartbeat}, {&cfg.Silence, DefaultSilence}, {&cfg.Stall, DefaultStall}} {
		if *d.value == 0 {
			*d.value = d.usual
		}
	}
	if cfg.Silence < 2*cfg.Heartbeat {
		return wrong("Silence: got %v, want at least two heartbeats of %v", cfg.Silence, cfg.Heartbeat)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	if cfg.Events == nil {
		cfg.Events = noEvents{}
	}
	cfg.Host = truncate(cfg.Host, maxHost)
	return nil
}

// newMesh returns a Mesh that does nothing yet.
func newMesh(cfg Config) *Mesh {
	m := &Mesh{
		cfg: cfg, log: cfg.Log.With("rank", cfg.Rank), id: newIdentity(cfg), inProcess: cfg.InProcess,
		peers: make([]peer, cfg.Size),
	}
	m.refusals = pending.NewLog(m.log)
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.control = newControl(m)
	if cfg.Root != "" && cfg.Rank == 0 {
		m.joinServer = newJoinServer(cfg.Size)
		m.joinServer.endOnLoss, m.joinServer.exited = cfg.EndOnLoss, cfg.Exited
	}
	for r, addr := range cfg.Peers {
		if r < cfg.Size {
			m.peers[r].addr = addr
		}
	}
	m.peers[cfg.Rank].host = cfg.Host
	m.links.init(m)
	return m
}

// start runs the steps of Start: listen, exchange addresses, wait for all ranks. Another rank may
// open its control link before this rank's control goroutine runs. The functions that such a link
// posts wait until the goroutine runs.
func (m *Mesh) start(ctx context.Context) error {
	if err := m.checkDescriptors(); err != nil {
		return err
	}
	addr, err := m.serve(ctx)
	if err != nil {
		return m.failure(fault.Refused, err)
	}
	m.progress.joining = m.cfg.Root != ""
	defer m.warnIfSlow(m.cfg.StartWarning)()
	if m.cfg.Root != "" {
		if err := m.exchange(ctx, record{addr, m.cfg.Host, m.id.instance}); err != nil {
			return err
		}
	}
	m.control.run(m.cfg.Root != "")
	return m.control.await(ctx)
}

// serve opens the mux and lets the transport accept. It returns this rank's address.
func (m *Mesh) serve(ctx context.Context) (addr string, err error) {
	var in net.Listener
	if m.cfg.Listener != nil {
		m.mux = openMux(m.cfg.Listener, m.cfg.Transport, m.cfg.TLS, m.cfg.Secures, m.refusals, m.acceptShortage)
		in = m.mux.listener(outward(ctx, m.cfg.Listener.Addr(), m.cfg.Root))
	}
	return m.cfg.Transport.Serve(in, m.accept)
}

// outward returns the address under which other ranks reach a listener. If the listener listens on
// all interfaces, outward returns the address of the interface that leads to root.
func outward(ctx context.Context, addr net.Addr, root string) net.Addr {
	ta, ok := addr.(*net.TCPAddr)
	if !ok || !ta.IP.IsUnspecified() {
		return addr
	}
	local, err := route.To(ctx, root)
	if err != nil {
		return addr
	}
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(local, uint16(ta.Port)))
}

// exchange learns all ranks' addresses and hosts from rank 0. Before the exchange, a rank knows
// only rank 0's address. Afterwards, any rank can dial any other rank.
func (m *Mesh) exchange(ctx context.Context, own record) error {
	if own.size() > maxRecord {
		return m.failure(fault.Misuse, fmt.Errorf("address record: got %d bytes, want at most %d", own.size(), maxRecord))
	}
	var records []record
	var err error
	if m.cfg.Rank == 0 {
		records, err = m.gatherRecords(ctx, own)
	} else {
		records, err = m.join(ctx, own)
	}
	if err != nil {
		return err
	}
	m.progress.update(func(a *startProgress) { a.joining = false })
	m.mu.Lock()
	defer m.mu.Unlock()
	for r := range m.peers {
		p := &m.peers[r]
		if p.instance != 0 && p.instance != records[r].instance {
			e := m.failure(fault.Refused, fmt.Errorf("rank: one process has joined as rank %d, and another has opened a connection as rank %d; give each process its own rank", r, r))
			e.Peers = []fault.Peer{{Rank: r, Host: records[r].host}}
			return e
		}
		p.record = records[r]
	}
	return nil
}

// failure returns an error of Start, with the kind k. If err is already a *fault.Error, its kind is
// kept. For example, a Misuse that a transport has found stays a Misuse.
func (m *Mesh) failure(k fault.Kind, err error) *fault.Error {
	e := &fault.Error{Kind: k, Op: "init", Rank: m.cfg.Rank, Err: err}
	var cause *fault.Error
	if errors.As(err, &cause) {
		e.Kind = cause.Kind
	}
	return e
}

// spawn runs the function f on a new goroutine. shutDown waits for that goroutine, so f must return
// when m.ctx ends. If the Mesh is shutting down, spawn does not run f and returns false.
func (m *Mesh) spawn(f func()) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended {
		return false
	}
	m.work.Go(f)
	return true
}

// shutDown ends all parts in this order, so that no part is called after its end:
//
// 1. spawn starts no more goroutines, and m.ctx ends all dials and handshakes; 2. the join server
// gives up; 3. the data links close, and the layer above gets the reason for each; 4. the control
// goroutine closes its links and ends; 5. the listener and the transport close; 6. shutDown waits
// until all goroutines have ended.
func (m *Mesh) shutDown(why error) {
	m.mu.Lock()
	m.ended = true
	m.mu.Unlock()
	m.cancel()
	if m.joinServer != nil {
		m.joinServer.finish()
	}
	m.links.close(why)
	m.control.stop()
	if m.mux != nil {
		m.mux.Close()
	} else if m.cfg.Listener != nil {
		m.cfg.Listener.Close()
	}
	m.cfg.Transport.Close()
	m.work.Wait()
}

// Close says goodbye, waits until each neighbour has acknowledged the goodbye or is gone, and
// closes everything. If ctx ends first, Close stops waiting and returns an error that wraps the
// error of ctx. Later calls return the result of the first call.
//
// Without the acknowledgements, a neighbour might notice the closed links before it receives the
// goodbye, and report this rank as dead.
func (m *Mesh) Close(ctx context.Context) error {
	m.once.Do(func() {
		m.mu.Lock()
		m.peers[m.cfg.Rank].departed = true
		m.mu.Unlock()
		m.closed = m.control.departJob(ctx)
		m.shutDown(fault.New(fault.Closed, "close", m.cfg.Rank, "this rank has called Close"))
	})
	return m.closed
}

// Rank returns this process's rank.
func (m *Mesh) Rank() int { return m.cfg.Rank }

// Size returns the number of ranks that the job started with.
func (m *Mesh) Size() int { return m.cfg.Size }

// Host returns the host name that a rank reported, or "" while the name is unknown.
func (m *Mesh) Host(rank int) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.peers[rank].host
}

// noEvents drops all events.
type noEvents struct{}

func (noEvents) Failed(*fault.Error)         {}
func (noEvents) Goodbye(int)                 {}
func (noEvents) Flooded(int, byte, []byte)   {}
func (noEvents) Question(int, []byte) []byte { return nil }
func (noEvents) LastCall(b []byte) []byte    { return b }
