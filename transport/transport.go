// Package transport moves frames between two ranks. It does not know communicators, tags, element
// types or algorithms.
//
// Every implementation keeps these promises, and package transporttest turns
// each one into a test:
//
//   - Frames on a Conn arrive whole, once, and in the order they were queued.
//   - No method of a Conn blocks. Send queues a frame and writes as many bytes as it can. Progress
//     moves as many bytes as it can in both directions.
//   - A frame's memory belongs to the Conn from Send until its Done has run. Done runs exactly once
//     per frame, also after a failure or Close. Done may run inside Send.
//   - Progress completes at most one arriving frame per call, so that the
//     caller may change the Sink between two frames.
//   - A Conn that has failed stays failed, and keeps reporting the first error. It
//     delivers the frames that arrived whole before the failure, and reports the
//     error after them.
//   - The callback given to Arm runs as soon as Progress could move something
//     again. An event that came before Arm counts. So do a failure and Close.
//   - Unsent reports the bytes that the peer has not accepted. The layer above uses this report to
//     detect a stalled peer.
//   - After Close of every Conn and of the Transport, none of their goroutines,
//     descriptors or files remains.
//
// docs/transports.md builds a transport step by step.
package transport

import (
	"context"
	"net"
	"time"
)

// MaxHead is the maximum size of a frame's head, in bytes.
const MaxHead = 128

// MaxAddr is the maximum size of one rank's whole address record, in bytes.
const MaxAddr = 512

// A Token names memory that a peer has exposed. Only the Conn that made it and the
// Conn at the other end know its contents. The zero Token names no memory.
type Token [32]byte

// A Frame is one message for a Conn to send. Its body is Body followed by Parts, one after the
// other; the peer receives it as one body. If To is set, the body goes straight into the memory
// that the peer exposed. Then the peer's Conn does not call Sink.Buffer, and reports the frame by
// the ID.
//
// From Send until Done the Frame, its slices and the array of Parts belong to the
// Conn, which does not change them. A Frame may be used again once Done has run;
// Done itself may send it again. Done may run on any goroutine. Done(nil) means
// that the Conn no longer needs the memory. It does not mean that the peer has read
// the frame. A Close after Done(nil) does not cancel the frame.
type Frame struct {
	Head   []byte // at most MaxHead bytes, opaque here, delivered before the body
	Body   []byte
	Parts  [][]byte // the rest of the body; nil if Body is the whole body
	To     Token
	Offset int    // if To is set, where in the exposed memory the body begins
	ID     uint32 // opaque here; arrives as Header.ID
	// Done is never nil. It returns soon and never blocks. It may call Send. The Conn holds no lock
	// meanwhile.
	Done func(error)

	Next *Frame // the link of the Queue that holds the frame
}

// Size returns the number of bytes of the body.
func (f *Frame) Size() int {
	n := len(f.Body)
	for _, p := range f.Parts {
		n += len(p)
	}
	return n
}

// A Header holds what the receiver learns about a frame before the body arrives. Head is valid
// until the Arrived call that completes the frame has returned.
type Header struct {
	Head []byte
	ID   uint32
	Size int // bytes of body
}

// A State is the result of one call of Progress.
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
// For each arriving frame without a To, the Conn calls Buffer once, also when Size
// is 0. Then it calls Arrived one or more times, with growing n. The call with n ==
// h.Size completes the frame. It comes exactly once, also when the body is dropped.
// For a frame with a To, the Conn does not call Buffer. Memory from Buffer belongs
// to the Conn until the Arrived call that completes the frame, or until Progress
// has returned an error. Close does not end this ownership, because Close does not
// wait for a running Progress.
type Sink interface {
	Buffer(h Header) []byte  // at least Size bytes, or nil to drop the body
	Arrived(h Header, n int) // the first n bytes of the body have arrived
}

// A Conn is one ordered link to a peer. Any goroutine may call Send, TrySend, Arm, Unsent and Close
// at any time, also while another goroutine is in Progress. Only one goroutine at a time is in
// Progress. A second caller of Progress does not wait, and gets Busy.
type Conn interface {
	// Send queues f and writes as many bytes as it can without waiting. After a failure or Close it
	// calls f.Done with the error. If the head is too long, Done gets fault.Misuse, and the Conn
	// stays usable.
	Send(f *Frame)
	// TrySend sends a small frame with ID 0 inline: without a Frame, a Done or a queue. It returns
	// true if it has sent the whole frame, in order with all other frames. False means that it has
	// sent nothing, for any reason; the caller then uses Send. The caller may reuse the slices when
	// TrySend has returned. A transport that cannot send inline always returns false.
	//
	// True promises what Done(nil) promises, with one exception: Close may still
	// cancel the frame, until a frame that was sent after it is done.
	TrySend(head, body []byte) bool
	// Progress sends and receives as many bytes as it can without waiting. It completes at most one
	// arriving frame. The argument is the number of polls, and a value below 1 means one poll. If
	// none of these polls finds anything to move, Progress returns Idle. A transport whose poll is
	// a system call polls once. The error is the Conn's first error. All later calls return the
	// same error.
	Progress(in Sink, spins int) (State, error)
	// Arm requests one call of the function ready, as soon as Progress could move something: a
	// frame came, queued bytes can be written again, or the Conn failed or was closed. The function
	// runs once, on a goroutine of the transport that holds no lock. It may call Progress, Send and
	// Arm, and must not block. A second Arm replaces a callback that has not run yet. A call of
	// ready may be spurious: another goroutine may have moved the data already.
	Arm(ready func())
	// Unsent returns how many bytes the Conn holds that the peer has not accepted, and the time
	// since which the peer has accepted no byte. It returns 0 and the zero time if no bytes wait or
	// the Conn has ended. Bytes count as accepted when a socket's buffer, a device or a shared ring
	// holds them, so that this Conn could send more. The layer above fails a link whose peer
	// accepts no byte for too long. Therefore a wrapper must return the report of the Conn that it
	// wraps, plus the bytes that the wrapper itself holds. Unsent is called about once a second.
	Unsent() (bytes int, since time.Time)
	// Close ends the Conn at once, in both directions. The Done of each queued frame runs with an
	// error of kind fault.Closed. If another goroutine is moving the frames at that moment, each
	// Done may run shortly after Close has returned. A caller that wants its frames delivered must
	// wait for each Done before it calls Close. The peer's Conn fails. Close may be called twice.
	Close() error
}

// A Transport makes Conns. It is a value: programs construct one and pass it to
// comm.WithTransport; there is no registry. All methods may be called concurrently.
type Transport interface {
	// Name returns the word that selects the transport: "memory", "tcp", "grpc".
	Name() string
	// Serve starts to accept Conns. It returns the address that others dial, without the
	// transport's name. It is called once. The listener in yields the connections to the process's
	// one listener that begin with this transport's first bytes. It is nil for a transport that
	// needs no listener. The transport calls the function accept with each Conn that a peer opens,
	// on any of the transport's goroutines. The function does not block.
	Serve(in net.Listener, accept func(Conn)) (addr string, err error)
	// Dial opens a Conn to the address that a peer's Serve returned. It returns
	// when the connection is up, before any frame is sent on it, or when ctx has
	// ended.
	Dial(ctx context.Context, addr string) (Conn, error)
	// Close stops accepting and closes the listener that Serve got. It closes every Conn of this
	// Transport, and waits until all goroutines of the Transport have ended. So the callbacks
	// accept, Done and ready must not call Close.
	Close() error
}

// The interfaces below are optional. Callers find them by type assertion, as io.Copy finds
// io.WriterTo. A wrapper may hide an interface of the value that it wraps. This may cost speed, but
// never correctness. A wrapper may have an interface that the wrapped value lacks. Then the methods
// of the wrapper refuse, in the way that the interface describes.

// A Greeter is a stream Transport that shares the process's listener. Prefix reports whether a
// connection belongs to this Transport. Its argument holds the first bytes of the connection, at
// least 4. Proto returns the Transport's ALPN name under TLS. A Transport gets the whole listener
// if it is no Greeter or its Proto is empty.
type Greeter interface {
	Prefix(first []byte) bool
	Proto() string
}

// A Selector is a Transport that selects a wire for each peer, by the peer's address. Explain
// returns one line, "wire: reason", about the wire that Dial uses for addr. SharerFor gets the
// addresses of several ranks, including this rank. It returns a Sharer that can give these ranks
// one piece of memory, or nil if there is none. It returns the same answer on all of these ranks.
type Selector interface {
	Explain(addr string) string
	SharerFor(addrs []string) Sharer
}

// A Pending is an accepted Conn whose peer is not authenticated yet. It occupies one of the
// listener's few slots, is closed after some seconds, and receives bodies of at most 4 KiB. Admit
// lifts all these limits. RemoteAddr returns the peer's address, for the log line about a rejected
// peer. The address may be nil. A Conn without Admit has no such limits.
type Pending interface {
	Admit()
	RemoteAddr() net.Addr
}

// An Exposer is a Conn that can expose memory to its peer, so that the peer writes straight into
// this memory. Until the owner calls the function release, the peer may send frames into buf by
// Frame.To. On this side, the Conn reports each of these frames by Sink.Arrived, with the given ID
// and without a Head. It does not call Sink.Buffer. Once release has returned, nothing writes into
// buf any more. A frame that names released memory, or does not fit into buf, fails the Conn. The
// caller must call release once.
//
// If the ID is NoNotify, the Conn may report these frames or not. Frames arrive in order, so a
// later frame on the Conn tells the owner of buf that they have arrived. The sender sets the ID
// NoNotify in these frames, too.
//
// Some Exposers take only memory from their Transport's Alloc. Their Expose returns
// fault.Refused for other memory, at little cost.
type Exposer interface {
	Expose(id uint32, buf []byte) (to Token, release func(), err error)
}

// NoNotify is the ID for exposed memory whose owner needs no notification for each frame.
const NoNotify = 1<<32 - 1

// A CopySink is an optional extension of Sink. If a whole frame without a To lies in the Conn's own
// memory, the Conn may call Copy instead of Buffer and Arrived. The body is valid only during the
// call. The peer may still be able to write to the body, so the Sink must first copy it and inspect
// only the copy. A Conn need not support CopySink.
type CopySink interface {
	Copy(h Header, body []byte)
}

// A Sharer is a Transport that can give the n ranks of a group one piece of memory.
// Each rank calls Share with the same name, ranks and size. Share returns when all
// ranks have called it, or when ctx has ended. Ranks whose arguments differ get
// fault.Mismatch. The memory is zeroed and starts at a multiple of 64 bytes. A rank
// must not use the memory after it has called its release. The memory is freed when
// all ranks have called release.
type Sharer interface {
	Share(ctx context.Context, name string, ranks, size int) (mem []byte, release func() error, err error)
}

// An Allocator is a Transport that allocates memory for its Conns to expose. Its Conns can expose
// only this memory, or can expose it at less cost than other memory. Alloc returns size zeroed
// bytes that start at a multiple of 64. An error of kind fault.Refused means that there is no such
// memory. Then the caller uses ordinary memory. The garbage collector does not manage the memory.
// The memory exists until the function free is called, also after the Transport's Close. After that
// call it must not be touched. The function free returns fault.Misuse while a part of the memory is
// exposed, and when it is called again.
type Allocator interface {
	Alloc(size int) (mem []byte, free func() error, err error)
}
