package verbs

// A device is what the protocol needs of an RDMA device: little enough that one
// in software can stand in for it, and that nothing of the protocol lies on its
// far side. All methods may be called concurrently.
type device interface {
	// describe is one line about the device for people.
	describe() string
	// network is what Transport.Network says.
	network() string
	// memory is size zero bytes, outside Go's heap where that matters, until free.
	memory(size int) (mem []byte, free func() error, err error)
	// alloc is memory of the device's own, registered, that lies outside Go's heap
	// where that matters. A peer may write to it when remote is set.
	alloc(size int, remote bool) (*region, error)
	// register lets the device use b, and a peer write to it when remote is set.
	// The memory is pinned until drop.
	register(b []byte, remote bool) (*region, error)
	// newPair makes a reliable-connected queue pair that can receive but is not
	// connected. notify is called once after each arm, when there is something to
	// poll; it must not block and takes no lock of the caller's.
	newQueuePair(depth int, notify func()) (queuePair, error)
	// close ends the device, all of whose pairs and regions are closed already.
	close() error
}

// A region is registered memory. It is immutable; drop is called once, and when it
// has returned neither the device nor a peer touches mem any more.
type region struct {
	mem        []byte
	addr       uint64 // of mem[0], as peers name it
	lkey, rkey uint32
	deregister func() error
}

// A queuePair is a queue pair with its completion queue. Its methods are called by one
// goroutine at a time; newPair's notify comes from any.
type queuePair interface {
	// local is what the peer has to know to connect.
	local() address
	// connect joins the pair with the peer's, and it may send.
	connect(peer address) error
	// receive posts mem, which lies in r, for the peer's next message.
	receive(id uint64, r *region, mem []byte) error
	// send posts the works in order. There are never more than depth without a
	// completion.
	send(ws []workRequest) error
	// poll takes up to len(into) completions, looking up to so many times for the first
	// one, and never waits. Work completes in the order posted; the completion of a work
	// that is signalled stands for those before it. An event of the device's that ends the
	// pair is an error behind the last completion, and counts as one for arm.
	poll(into []completion, spins int) (int, error)
	// inline is the most bytes of a work that may be inline.
	inline() int
	// arm asks for one notify after the next completion. One that is already
	// there may not count: poll again.
	arm() error
	// close ends the pair; from its return on, no memory posted is touched.
	close() error
}

// An address is a pair as its peer addresses it.
type address struct {
	gid [16]byte
	qpn uint32
	psn uint32 // of the first packet it sends
	lid uint16
	mtu uint8 // as enum ibv_mtu: 1 is 256 bytes, 5 is 4096
}

// A workRequest is one message, or one write: with an immediate value, which takes one of
// the peer's receives and makes a completion there, or silent, of which the peer
// knows nothing before the next work arrives.
type workRequest struct {
	id       uint64
	mem      []byte // lies in the region of lkey
	lkey     uint32
	write    bool
	noImm    bool // write: without imm
	inline   bool // mem is read before send returns, and lkey is not looked at
	signaled bool
	raddr    uint64 // write: where to, and by which right
	rkey     uint32
	imm      uint32
}

// A completion is the end of a work or of a receive.
type completion struct {
	id     uint64
	recv   bool
	write  bool // recv: it was a write with an immediate value
	status status
	vendor uint32
	bytes  int // recv
	imm    uint32
}
