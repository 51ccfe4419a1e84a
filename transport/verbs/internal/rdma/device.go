// Package rdma defines the interface between the verbs transport and an RDMA device. It has a few
// interfaces and the structs that they use, in the terms of the InfiniBand verbs.
//
// Two devices implement the interfaces: libibverbs in package verbs, and package softdevice,
// with which tests run everywhere. A device does not implement any part of the protocol of the
// transport. Package rdma does not know messages, frames or Conns.
package rdma

import "unsafe"

// A Device opens queue pairs and registers memory. All methods may be called
// concurrently.
type Device interface {
	// Describe returns one line about the device for people.
	Describe() string
	// Network returns the name of the device's network, for Transport.Network.
	Network() string
	// Memory returns memory of the given size, filled with zeros and aligned to a cache line. If
	// the device needs this, the memory is outside Go's heap. It stays valid until the returned
	// function is called.
	Memory(size int) (mem []byte, free func() error, err error)
	// Alloc allocates and registers memory. A peer may write to it if remote is true.
	Alloc(size int, remote bool) (*Region, error)
	// Register lets the device use b. If remote is true, a peer may write to b. The memory is
	// pinned until Deregister.
	Register(b []byte, remote bool) (*Region, error)
	// NewQueuePair makes a reliable-connected queue pair that can receive but is not connected. At
	// most depth work requests and depth receives are outstanding. The function notify runs once
	// after each Arm, when there is something to poll. It must not block, and must not take a lock
	// of the caller.
	NewQueuePair(depth int, notify func()) (QueuePair, error)
	// Close closes the device. Its queue pairs and regions must be gone.
	Close() error
}

// A Region is registered memory. It is immutable. Deregister is called once; after it
// has returned, neither the device nor a peer accesses Mem.
type Region struct {
	Mem        []byte
	Addr       uint64 // of Mem[0], as peers address it
	LKey, RKey uint32
	Deregister func() error
}

// A QueuePair is a queue pair with its completion queue. Only one goroutine at a time may call its
// methods. The notify function of NewQueuePair may run on any goroutine.
type QueuePair interface {
	// Local returns the address that the peer needs to connect.
	Local() Address
	// Connect connects the queue pair to the queue pair of the peer. From then on it may send.
	Connect(peer Address) error
	// Receive posts mem, a part of r, for the peer's next message.
	Receive(id uint64, r *Region, mem []byte) error
	// Send posts the work requests in order.
	Send(ws []WorkRequest) error
	// Poll gets up to len(into) completions. It checks the queue up to spins times for the first
	// one, and never blocks. Work requests complete in the order posted. The completion of a
	// signaled work request also stands for the work requests before it. After the last completion
	// Poll returns an error if an asynchronous event has ended the queue pair; such an event also
	// fires Arm.
	Poll(into []Completion, spins int) (int, error)
	// Inline returns how many bytes of a work request may be inline.
	Inline() int
	// Arm requests one notify after the next completion. A completion that is already queued may
	// not cause a notify, so the caller must poll again after Arm.
	Arm() error
	// Close closes the queue pair. After it has returned, no posted memory is accessed.
	Close() error
}

// An Address is what a peer needs to reach a queue pair.
type Address struct {
	GID [16]byte
	QPN uint32
	PSN uint32 // of the first packet that the queue pair sends
	LID uint16
	MTU uint8 // as enum ibv_mtu: 1 is 256 bytes, 5 is 4096
}

// A WorkRequest is one message, or one write. A write with an immediate value consumes a receive of
// the peer and also completes there. A write without an immediate value completes only at this end,
// and the peer learns about it from the next message.
type WorkRequest struct {
	ID         uint64
	Mem        []byte // lies in the region of LKey
	LKey       uint32
	Write      bool
	NoImm      bool // Write: without Imm
	Inline     bool // the device copies Mem before Send returns, and ignores LKey
	Signaled   bool
	RemoteAddr uint64 // Write: the address at the peer, and the key for it
	RKey       uint32
	Imm        uint32
}

// A Completion is the end of a work request or of a receive.
type Completion struct {
	ID     uint64
	Recv   bool
	Write  bool // Recv: it was a write with an immediate value
	Status Status
	Vendor uint32
	Bytes  int // Recv
	Imm    uint32
}

// AddressOf returns the address of the first byte of b, as a device uses it.
func AddressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
