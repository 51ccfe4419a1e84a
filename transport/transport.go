// Package transport moves frames between two ranks and knows nothing else: not
// communicators, not tags, not element types, not algorithms.
//
// Every implementation keeps these promises, and package transporttest turns
// each one into a test:
//
//   - Frames on a Conn arrive whole, once, and in the order they were queued.
//   - No method of a Conn blocks. Send queues and writes what goes; Progress
//     moves what can move now, both ways.
//   - A frame's memory is the Conn's from Send until its Done has run: once per
//     frame, also on failure and Close. Done may run inside Send.
//   - Progress completes at most one arriving frame per call, so that the
//     caller may change the Sink between two frames.
//   - A Conn that has failed stays failed, and keeps reporting the first error.
//     What arrived whole before the failure is delivered before it is reported.
//   - Arm fires once Progress could move something again; an event that came
//     before Arm counts, and so do failure and Close.
//   - Nothing is left behind: after Close of every Conn and of the Transport,
//     no goroutine, descriptor or file of theirs remains.
package transport

import (
	"context"
	"net"
)

// MaxHead is the most bytes a frame's head may have.
const MaxHead = 128

// MaxAddr is the most bytes one rank's whole address record may have.
const MaxAddr = 512

// A Token names memory that a peer has exposed. It is opaque to all but the
// Conn that made it and the Conn at the other end. The zero Token names none.
type Token [32]byte

// A Frame is what a Conn is asked to send. With a To it goes straight into the
// memory that the peer exposed, skips the peer's Place, and arrives by ID.
//
// From Send until Done the frame and its slices belong to the Conn. A Frame may
// be used again once Done has run; Done itself may send it again. Done may run on
// any goroutine. Without an error it says that the Conn needs the memory no
// longer, not that the peer has read it; a Close after it does not take it back.
type Frame struct {
	Head   []byte // at most MaxHead bytes, opaque here, delivered before the body
	Body   []byte
	To     Token
	Offset int         // with a To, where in the exposed memory Body[0] goes
	ID     uint32      // opaque here; arrives as Header.ID
	Done   func(error) // never nil; short, never blocks; may call Send; runs without the Conn's locks

	next *Frame // for Queue
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

// A Sink is what lies above a Conn: it says where a body goes, and hears of its
// bytes. Both methods are short and never block; they may call Send on any Conn.
//
// For each arriving frame without a To, Place is called once (also when Size is
// 0), then Arrived one or more times with n growing; n == h.Size completes the
// frame and comes exactly once, also when the body is dropped. A frame with a To
// skips Place. Memory from Place is the Conn's until that last Arrived, or until
// Progress has returned an error: a Close does not wait for a Progress under way.
type Sink interface {
	Buffer(h Header) []byte  // at least Size bytes, or nil to drop the body
	Arrived(h Header, n int) // the first n bytes of the body are in
}

// A Conn is one ordered link to a peer. Send, Arm and Close may be called by
// anyone at any time; Progress by one goroutine at a time, and a second caller
// is told Busy, not kept waiting. Send may run beside Progress.
type Conn interface {
	// Send queues f and moves what goes without waiting. After a failure or
	// Close it calls f.Done with the error. A head that is too long is a bug of
	// the caller's and reaches Done as fault.Misuse; the Conn lives on.
	Send(f *Frame)
	// Progress moves, both ways, what can move now, and completes at most one
	// arriving frame. The error is the Conn's first one, and final.
	Progress(in Sink) (State, error)
	// Arm asks for one wake-up, when Progress could move something: a frame
	// came, queued bytes can be written again, the Conn failed or was closed.
	// ready runs once, soon, on a goroutine of the transport's, with no lock
	// held; it may call Progress, Send and Arm, and must not block. A second
	// Arm before the first has fired replaces it. A wake-up may be in vain:
	// another goroutine may have moved meanwhile what it was for.
	Arm(ready func())
	// Close ends the Conn at once, both ways; frames still queued get Done with
	// an error of kind fault.Closed (soon, if another goroutine is just moving
	// them). Whoever wants them delivered waits for their Done first. The peer's
	// Conn fails. It may be called twice.
	Close() error
}

// A Transport makes Conns. It is a value: programs construct one and hand it to
// whoever needs it; there is no registry. All methods may be called concurrently.
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
	// until all that it started has ended; so not from accept, Done or ready.
	Close() error
}

// The abilities below are optional, and found by type assertion, as io.Copy
// finds io.WriterTo. A wrapper that hides one may cost speed, never correctness.

// A Greeter is a stream Transport that shares the process's listener. Prefix
// reports whether a connection that opened with these bytes is its own; first
// has at least 4 bytes. Proto is its ALPN name under TLS.
type Greeter interface {
	Prefix(first []byte) bool
	Proto() string
}

// A Pending is an accepted Conn whose peer has proven nothing yet: it holds one of
// the listener's few slots, lives only seconds, and is given no more than 4 KiB.
// Admit lifts all that. A Conn without Admit has no such limits.
type Pending interface {
	Admit()
}

// An Exposer is a Conn whose peer can write straight into memory shown to it
// beforehand. Until release, the peer may write into buf by Frame.To; each such
// frame arrives here with ID id, without Place and without its Head. When release
// has returned, nothing writes into buf any more, and a frame that still names it
// fails the Conn, as does one that does not fit into buf. release is called once.
// With the id Unheard no such frame needs to be told of: the owner learns from what
// follows it, in order, on the Conn. An Exposer may tell all the same.
// Who sends such a frame gives it the ID Unheard, too.
// Some Exposers take only memory from their Transport's Alloc; then Expose of other
// memory is fault.Refused, and costs little.
type Exposer interface {
	Expose(id uint32, buf []byte) (to Token, release func(), err error)
}

// NoNotify is the id of exposed memory whose owner need not hear of each frame.
const NoNotify = 1<<32 - 1

// A Gatherer is a Conn that can send a body that lies in several pieces, as if
// they were one. f.Body is ignored; parts belong to the Conn until Done.
type Gatherer interface {
	SendParts(f *Frame, parts [][]byte)
}

// A Prompter is a Conn that spares small frames what they do not need: a Frame and a
// Done to send them, and a turn of Progress per look to receive them.
//
// SendNow sends a frame with ID 0 if all of it can go on its way at once, in order
// with all others, and reports whether it did. It never waits; the slices are the
// caller's again when it returns. False says that nothing was sent, for whatever
// reason, and Send is to take the frame. True is what Done without an error is, but that a
// Close may take the frame back as long as nothing that was said behind it is Done: who
// wants it delivered waits for that.
//
// Linger is Progress that looks up to so many times, at least once, for something
// to move before it reports Idle.
type Prompter interface {
	TrySend(head, body []byte) bool
	Linger(in Sink, looks int) (State, error)
}

// A CopySink is a Sink that takes a frame without a To in one call, in place of Place
// and Arrived, where all of it lies in the Conn's own memory. Body is valid during
// the call only, and the peer may still be able to write there: it is to be copied,
// and read nowhere else. A Conn need not look for it.
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
// multiple of 64 on; fault.Refused says that there is none of this kind to be had,
// and ordinary memory has to do. The garbage collector does not know the memory: it
// is there until free, also after the Transport's Close, and must not be touched
// afterwards. free is fault.Misuse while a part of the memory is exposed, and the
// second time.
type Allocator interface {
	Alloc(size int) (mem []byte, free func() error, err error)
}
