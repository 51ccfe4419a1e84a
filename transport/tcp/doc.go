// Package tcp is the transport over TCP, plain or under TLS. It frames a byte
// stream and knows nothing of ranks, handshakes or what heads mean.
//
// On Linux without TLS a Conn owns its descriptor: Go's poller does not know it,
// because a socket registered there wakes an idle thread at every segment.
// Progress and Send read and write it directly, without blocking; bodies are
// read straight into the memory that Place returned. One goroutine per Transport
// waits for all Conns that are armed, on an epoll of its own. A connection inside
// the host leaves BBR, if that is the system's choice, for Reno. Elsewhere, and
// under TLS, a Conn has a reader and a writer goroutine around a net.Conn, with
// one bounded buffer each; the promises are the same, the speed is not.
//
// A frame is done when the operating system has taken its last byte: not when
// the peer has it. A Conn has no timers and notices neither silence nor a stall;
// package mesh does, with heartbeats and with Unsent.
//
// # Wire format
//
// Integers are little-endian. Whoever dials sends, once and first:
//
//	offset  bytes  field
//	0       4      magic, F5 't' 'u' 't'; no text begins so, nor does HTTP/2
//	               ("PRI ") or TLS (16)
//
// Then each direction is a sequence of frames:
//
//	offset  bytes  field
//	0       6      length of the body, at most MaxBody
//	6       1      length of the head, at most transport.MaxHead
//	7       1      flags, 0; anything else is refused
//	8       4      the frame's ID
//	12      h      head
//	12+h    b      body
//
// There is no checksum: heads carry their own above this layer, bodies may.
//
// # Bounds
//
// A Conn reads ahead at most 32 KiB, a stream 128 KiB, and uses 8 KiB, a stream
// 24 KiB, for the frames that it is writing; before Admit all that is together
// less than 4 KiB. Frames that wait lie in their sender's memory. Before Admit, a
// frame whose body has more than 4 KiB ends the Conn.
package tcp
