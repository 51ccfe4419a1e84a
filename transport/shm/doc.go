// Package shm is the transport between ranks that are processes of one Linux host. Frames
// move through memory that both processes have mapped, without system calls.
//
// Each Conn has one ring of bytes per direction, with one producer and one consumer and no lock
// between them. Send copies a small frame into the ring and makes it visible by one store. A large
// body passes in chunks: the receiver's Progress copies each chunk straight into the Sink's buffer
// while the sender puts the next chunk into the ring. Besides the rings there is a unix socket per
// Conn. No frame passes through the socket. It carries descriptors of memory, and it wakes a
// process that sleeps. When the other process closes or dies, the socket ends at once, so this
// process notices it.
//
// The memory is anonymous (memfd_create) and reaches the peer as a descriptor over the socket
// (SCM_RIGHTS). It has no name, so nothing is left behind however the processes end. It is sealed
// against shrinking, so that no process can make an access of another process fatal. Both processes
// can write everywhere in it, so no value that is read from it is trusted. A length or an index is
// read once and checked before use, and an impossible value fails the Conn. Only processes of one
// user on one host, in one network namespace, can connect.
//
// Some sandboxes forbid memfd_create or descriptors on sockets. New tries both in its own process,
// and Available returns the reason. If only descriptors between two processes are removed, Dial and
// Share between these processes fail with the reason. Then package auto uses another wire, and
// collectives use messages. This package has no other way to share memory.
//
// Each of a Conn's two rings has one megabyte. If no frame is larger than 2 KiB, only 32 KiB of a
// ring are touched. Before Admit a peer holds one of 64 slots for at most 10 seconds. Its hello
// must come within 5 seconds. A frame with more than 4 KiB of body ends the Conn.
//
// Memory from Alloc lies in one memfd per Transport, its pool, which grows. A Conn exposes parts of
// it: the peer gets the pool's descriptor once, maps it, and writes bodies there by one copy.
// expose_linux.go describes how such writes are limited to exposed memory.
//
// A frame is done when its last byte is in the ring, not when the peer has received it. A
// Conn has no timers and detects neither silence nor a stall. Package mesh does, by
// heartbeats and by the report of bytes that are not sent.
//
// The package does not know ranks, the handshake of ranks, or the meaning of heads. On other
// systems it builds, but its methods return an error with the reason. handshake_linux.go describes
// how two processes connect. share_linux.go describes how the ranks of a Share connect.
//
// # The way of a frame
//
// A small frame, of at most 8 KiB of body, takes these steps when nothing waits in front of it:
//
//	sender                                     receiver
//	Send copies head and body into a record
//	Send stores the record's header   ------>  Progress finds the header not 0
//	Done runs                                  the Sink returns a buffer, or copies the body itself
//	                                           Progress copies the body, Arrived completes the frame
//	Send finds the ring full, reads   <------  Progress publishes what it has consumed
//	how much was consumed
//
// A larger body passes in chunks of up to 32 KiB, one record each. One goroutine at a time, the
// writer, puts them in. It stops after 128 KiB, or when the ring is full, and then a later
// Progress of the sender continues. A body with a Token does not enter the ring: the writer
// copies it into the receiver's memory in fragments of up to 128 KiB, and then puts one record
// that announces it.
//
// # Failures
//
//	what happens                     what this side does
//	the peer closes                  delivers what has arrived, then fails with fault.LinkLost
//	the peer's process dies          the same, with another text, within milliseconds: the
//	                                 kernel closes its socket
//	the peer's process is stopped    nothing; Unsent shows it when frames wait, and mesh decides
//	the peer breaks the protocol     fails at once with fault.LinkLost
//	the peer sends into memory that  fails with fault.Misuse; a sound sender has written nothing
//	is not exposed                   there
//	the peer dies inside a fragment  a release notices that, and does not wait
//	the peer stops inside a          a release takes the pages away from it after 250 ms
//	fragment
//	no memory or descriptor is left  Dial, Alloc or Expose fail with fault.Exhausted; Conns that
//	                                 exist go on
//
// # Bounds
//
//	what                                          bound
//	memory of a Conn                              4 KiB and two rings: 2 MiB, or 512 KiB from the
//	                                              33rd Conn of a Transport on; used pages only
//	queued frames                                 their senders' memory; none is copied
//	one Progress                                  128 KiB in each direction
//	bytes delivered after a failure               one ring
//	exposures of a Conn                           64 per side, 32 of them for many writes
//	connections that are not admitted             64 per Transport, 10 seconds each
//	memory from Alloc                             what the host or the control group has left
//
// # Layout of a Conn's memory
//
// Integers are in the host's byte order. Each field group is written by one side only, except
// a doorbell, and lies 128 bytes from the next one, since processors fetch lines in pairs.
//
//	offset  bytes  field
//	0       8      "tuttishm"
//	8       4      version, 3
//	12      4      bytes in each ring, a power of two
//	16      16     a random nonce of the dialer
//	32      16     a random nonce of the acceptor
//	128     16     the dialer's doorbell
//	256     16     the acceptor's doorbell
//	384     8      bytes consumed from the first ring, written by the acceptor
//	512     8      bytes consumed from the second ring, written by the dialer
//	1024    512    what the dialer exposes: 64 slots of 8 bytes
//	1536    512    what the acceptor exposes
//	4096    r      first ring: from the dialer
//	4096+r  r      second ring: from the acceptor
//
// A side writes its doorbell before it sleeps. The peer clears it when the condition holds, and
// then writes one byte of 0 to the socket:
//
//	offset  bytes  field
//	0       4      not 0: wake me when there is a record to read
//	4       4      not 0: this side has closed
//	8       8      not 0: wake me when that many bytes in all have been consumed
//
// A byte of 1 on the socket brings the descriptor of the sender's pool.
//
// # Layout of a ring
//
// A ring is a sequence of records. Each begins at a multiple of 64 bytes and occupies whole
// multiples of 64; none crosses the end of the ring. A record begins with a header word, which is
// written last: while it is 0, the record is not there yet. The producer clears the word where
// the next record will begin before it publishes a record.
//
//	bits of the word  field
//	0..3              kind: 1 whole, 2 first, 3 more, 4 skip, 5 written
//	4..11             h, the length of the head
//	12..31            n, the bytes of body in this record
//	32..63            the frame's ID
//
//	kind     after the word
//	whole    head; body from the next multiple of 8, or of 64 if n is 1024 or more
//	first    8 bytes: length of the whole body; head; body from the next multiple of 64
//	more     body from offset 64
//	skip     nothing: the next record is at the ring's beginning
//	written  8 bytes each: slot, exposure number, offset in the exposure, and bytes that the
//	         sender has written there
package shm
