// Package tcp is the transport over TCP, plain or under TLS. It frames a byte stream, and does not
// know ranks, handshakes or the meaning of heads.
//
// On Linux a Conn owns its descriptor and keeps it out of Go's poller, because a socket registered
// there wakes an idle thread at every segment. Progress and Send read and write it directly,
// without blocking. Bodies are read straight into the memory that Sink.Buffer returned, so this
// process makes no copy. One goroutine per Transport waits for all armed Conns, on an epoll of its
// own. If the system's default is BBR, a connection inside the host uses Reno. Under TLS the same
// goroutines encrypt and decrypt, and the bodies are copied. On other systems, and if the TLS
// handshake takes place at the first read, a Conn has a reader goroutine and a writer goroutine
// around a net.Conn, with one bounded buffer each. The promises are the same, but the speed is
// lower.
//
// A frame is Done when the kernel has accepted its last byte, not when the peer has it. A Conn has
// no timers. It detects neither silence nor a stall. Package mesh detects both, with heartbeats,
// Unsent and Traffic.
//
// # Wire format
//
// Integers are little-endian. The dialling side sends, once and first:
//
//	offset  bytes  field
//	0       4      magic, F5 't' 'u' '2'; no text begins so, nor does HTTP/2
//	               ("PRI ") or TLS (16)
//
// Then each direction is a sequence of frames:
//
//	offset  bytes  field
//	0       6      length of the body, at most MaxBody
//	6       1      length of the head, at most transport.MaxHead
//	7       1      flags, 0; anything else is refused
//	8       4      the frame's ID
//	12      4      sequence number: 0 for the first frame of this direction, then 1, 2, ...
//	16      8      acknowledgement: how many bytes of frames, preambles and heads
//	               included, have arrived in the other direction
//	24      h      head
//	24+h    b      body
//
// A frame with a wrong sequence number ends the Conn. So a relay that drops, doubles or reorders
// whole frames is noticed at the next frame. There is no checksum: heads carry their own above this
// layer, and bodies may.
//
// Under TLS the magic and the frames are TLS's application data. Package tlsopt decides which
// connections are under TLS.
//
// # Bounds
//
// A Conn with its own descriptor reads ahead at most 32 KiB, and under TLS 32 KiB more of encrypted
// bytes. It uses 8 KiB for the frames that it is writing, and under TLS 80 KiB more for encrypted
// bytes that are not yet written. A Conn around a net.Conn reads ahead at most 128 KiB, and uses 24
// KiB for the frames that it is writing. Before Admit all of this together is less than 4 KiB, and
// a frame whose body has more than 4 KiB ends the Conn. Frames that wait stay in the memory of
// their sender.
package tcp
