// Package transport moves frames between two ranks and knows nothing else: not
// communicators, not tags, not element types, not algorithms.
//
// Every implementation keeps these promises, and package transporttest turns
// each one into a test:
//
//   - Frames on a Conn arrive whole, once, and in the order they were queued.
//   - No method of a Conn blocks. Send queues and writes what it can; Progress
//     moves what can move now, both ways.
//   - A frame's memory belongs to the Conn from Send until its Done has run: once
//     per frame, also on failure and Close. Done may run inside Send.
//   - Progress completes at most one arriving frame per call, so that the
//     caller may change the Sink between two frames.
//   - A Conn that has failed stays failed, and keeps reporting the first error.
//     What arrived whole before the failure is delivered before it is reported.
//   - Arm fires once Progress could move something again; an event that came
//     before Arm counts, and so do failure and Close.
//   - Unsent reports the bytes that the peer has not taken. The layer above
//     detects a stalled peer by it.
//   - Nothing is left behind: after Close of every Conn and of the Transport,
//     no goroutine, descriptor or file of theirs remains.
//
// docs/transports.md builds a transport step by step.
package transport

import (
	"context"
	"net"
	"time"
)

// MaxHead is the most bytes a frame's head may have.
const MaxHead = 128

// MaxAddr is the most bytes one rank's whole address record may have.
const MaxAddr = 512

// A Token names memory that a peer has exposed. It is opaque to all but the
// Conn that made it and the Conn at the other end. The zero Token names none.
type Token [32]byte

// A Frame is one message for a Conn to send. Its body is Body followed by Parts,
// one after the other; the peer receives it as one body. With a To the body goes
// straight into the memory that the peer exposed, skips the peer's Sink.Buffer,
// and arrives by ID.
//
// From Send until Done the Frame, its slices and the array of Parts belong to the
// Conn, which does not change them. A Frame may be used again once Done has run;
// Done itself may send it again. Done may run on any goroutine. Without an error it
// says that the Conn needs the memory no longer, not that the peer has read it; a
// later Close does not take the frame back.
type Frame struct {
	Head   []byte // at most MaxHead bytes, opaque here, delivered before the body
	Body   []byte
	Parts  [][]byte // more of the body; nil when Body is all of it
	To     Token
	Offset int         // with a To, where in the exposed memory the body begins
	ID     uint32      // opaque here; arrives as Header.ID
	Done   func(error) // never nil; short, never blocks; may call Send; runs without the Conn's locks

	Next *Frame // the link of the Queue that holds the frame
}

// Size returns the bytes of the body.
func (f *Frame) Size() int {
	n := len(f.Body)
	for _, p := range f.Parts {
		n += len(p)
	}
	return n
}

// A Header is what the receiver learns before the body. Head is valid until the
// Arrived call that completes the frame has returned.
type Header struct {
	Head []byte
	ID   uint32
	Size int // bytes of body
}

// A State is what one call of Progress found.
type State int

// The results of Progress.
const (
	Idle  State = iota // nothing could move, either way
	Moved              // something moved, and more may follow
	Busy               // another goroutine is in Progress
)

// A Sink receives the frames of a Conn: it chooses the buffer of each body and is
// notified as bytes arrive. Both methods are short and never block; they may call
// Send on any Conn.
//
// For each arriving frame without a To, Buffer is called once (also when Size is
// 0), then Arrived one or more times with n growing; n == h.Size completes the
// frame and comes exactly once, also when the body is dropped. A frame with a To
// skips Buffer. Memory from Buffer belongs to the Conn until that last Arrived, or
// until Progress has returned an error: a Close does not wait for a Progress that
// is running.
type Sink interface {
	Buffer(h Header) []byte  // at least Size bytes, or nil to drop the body
	Arrived(h Header, n int) // the first n bytes of the body are in
}

// A Conn is one ordered link to a peer. Send, TrySend, Arm, Unsent and Close may be
// called by any goroutine at any time; Progress by one goroutine at a time, and a
// second caller gets Busy instead of waiting. Send may run beside Progress.
type Conn interface {
	// Send queues f and writes what it can without waiting. After a failure or
	// Close it calls f.Done with the error. A head that is too long is a bug of
	// the caller and reaches Done as fault.Misuse; the Conn stays usable.
	Send(f *Frame)
	// TrySend sends a small frame with ID 0 inline: without a Frame, a Done or a
	// queue. It reports whether the whole frame is on its way, in order with all
	// others; the slices are the caller's again when it returns. False means that
	// nothing was sent, for whatever reason, and that Send has to take the frame. A
	// wire that cannot send inline always returns false.
	//
	// True promises what Done(nil) promises, with one exception: Close may take the
	// frame back while no frame sent behind it is Done.
	TrySend(head, body []byte) bool
	// Progress moves, both ways, what can move now, and completes at most one
	// arriving frame. It polls up to spins times, at least once, for something to
	// move before it returns Idle; a wire on which a poll is a system call polls
	// once. The error is the Conn's first one, and final.
	Progress(in Sink, spins int) (State, error)
	// Arm asks for one wake-up, when Progress could move something: a frame
	// came, queued bytes can be written again, the Conn failed or was closed.
	// ready runs once, soon, on a goroutine of the transport, with no lock
	// held; it may call Progress, Send and Arm, and must not block. A second
	// Arm before the first has fired replaces it. A wake-up may be spurious:
	// another goroutine may have moved what it announces.
	Arm(ready func())
	// Unsent returns how many bytes the Conn has accepted and the peer has not
	// taken, and since when the peer has taken none of them. It returns 0 and the
	// zero time when nothing waits or the Conn has ended. Bytes count as taken as soon
	// as this Conn could send more: a socket's buffer, a device or a shared ring has
	// them. The layer above fails a link whose peer takes nothing for too long, so a
	// wrapper passes this on, and adds what it holds itself. It is called about once a
	// second.
	Unsent() (bytes int, since time.Time)
	// Close ends the Conn at once, both ways; frames still queued get Done with
	// an error of kind fault.Closed (soon, if another goroutine is moving them
	// at that moment). A caller that wants them delivered waits for their Done
	// first. The peer's Conn fails. Close may be called twice.
	Close() error
}

// A Transport makes Conns. It is a value: programs construct one and pass it to
// comm.WithTransport; there is no registry. All methods may be called concurrently.
type Transport interface {
	// Name is the word that selects it: "memory", "tcp", "grpc".
	Name() string
	// Serve starts accepting and returns the address that others dial (without
	// its kind). It is called once. in is this process's one listener as this
	// transport may see it: it yields only connections that open with this
	// transport's first bytes; it is nil for a transport that needs none. Each
	// Conn that a peer opens is given to accept, on a goroutine of its own or
	// the transport's; accept does not block.
	Serve(in net.Listener, accept func(Conn)) (addr string, err error)
	// Dial opens a Conn to the address that a peer's Serve returned. It returns
	// when the wire is up (nothing has been said on it), or ctx ended.
	Dial(ctx context.Context, addr string) (Conn, error)
	// Close stops accepting and closes in, closes every Conn made here, and waits
	// until all that it started has ended; so it must not be called from accept,
	// Done or ready.
	Close() error
}

// The abilities below are optional. Callers find them by type assertion, as io.Copy
// finds io.WriterTo. A wrapper that hides one may cost speed, never correctness. A
// wrapper that has one, around a value that has not, refuses it as each describes.

// A Greeter is a stream Transport that shares the process's listener. Prefix
// reports whether a connection that opened with these bytes is its own; first
// has at least 4 bytes. Proto is its ALPN name under TLS. The whole listener belongs
// to a Transport that is no Greeter, or whose Proto is empty.
type Greeter interface {
	Prefix(first []byte) bool
	Proto() string
}

// A Selector is a Transport that selects a wire for each peer, by the peer's
// address. Explain says in one line which wire Dial takes to addr and why, as
// "wire: reason". SharerFor returns what can give the ranks of these addresses,
// this rank among them, one piece of memory; nil when nothing can. All of those
// ranks get the same answer.
type Selector interface {
	Explain(addr string) string
	SharerFor(addrs []string) Sharer
}

// A Pending is an accepted Conn whose peer is not authenticated yet: it holds one of
// the listener's few slots, lives only seconds, and is given no more than 4 KiB.
// Admit lifts all those limits. RemoteAddr is for the log line about a peer that is
// turned away; it may be nil. A Conn without Admit has no such limits.
type Pending interface {
	Admit()
	RemoteAddr() net.Addr
}

// An Exposer is a Conn whose peer can write straight into memory exposed to it
// beforehand. Until release, the peer may write into buf by Frame.To; each such
// frame arrives here with ID id, without Buffer and without its Head. When release
// has returned, nothing writes into buf any more, and a frame that still names it
// fails the Conn, as does one that does not fit into buf. release is called once.
//
// With the id NoNotify no arrival of such a frame needs to be reported: the owner
// learns it from what follows it, in order, on the Conn. An Exposer may report it
// all the same. The sender gives such a frame the ID NoNotify, too.
//
// Some Exposers take only memory from their Transport's Alloc. Expose of other
// memory is then fault.Refused, and costs little.
type Exposer interface {
	Expose(id uint32, buf []byte) (to Token, release func(), err error)
}

// NoNotify is the ID of exposed memory whose owner needs no notification of each frame.
const NoNotify = 1<<32 - 1

// A CopySink is a Sink that receives a frame without a To in one call, in place of
// Buffer and Arrived, where all of it lies in memory of the Conn. The body is valid
// during the call only, and the peer may still be able to write there: it is to be
// copied, and read nowhere else. A Conn need not look for it.
type CopySink interface {
	Copy(h Header, body []byte)
}

// A Sharer is a Transport that can give the n ranks of a group one piece of
// memory. All call Share with equal name, ranks and size; it returns when all
// have come, or ctx ended; ranks that disagree get fault.Mismatch. The memory is
// zeroed and starts at a multiple of 64 bytes. release gives it back when all have
// called it; it may not be used from this rank's release on.
type Sharer interface {
	Share(ctx context.Context, name string, ranks, size int) (mem []byte, release func() error, err error)
}

// An Allocator is a Transport with memory of its own, which its Conns expose where
// they can expose no other, or at less cost. Alloc returns size zero bytes from a
// multiple of 64 on; fault.Refused says that there is no such memory, and that
// ordinary memory has to do. The garbage collector does not know the memory: it
// exists until free, also after the Transport's Close, and must not be touched
// afterwards. free is fault.Misuse while a part of the memory is exposed, and the
// second time.
type Allocator interface {
	Alloc(size int) (mem []byte, free func() error, err error)
}
