// Package shm is the transport between ranks that are processes of one Linux
// host: frames move through memory that both have mapped, without the kernel.
//
// Each Conn has a ring of bytes each way, with one producer and one consumer and
// no lock between them. Send copies a small frame into the ring and makes it
// visible by one store; a large body passes in chunks, which the receiver's
// Progress copies straight to where Place wants them while the next ones are put
// in. Beside the rings there is a unix socket per Conn. No frame passes through
// it: it brings descriptors of memory, it is the bell that wakes who sleeps,
// and it tells at once when the other process is gone.
//
// The memory is anonymous (memfd_create), sealed so that it cannot shrink, and has no
// name, so that nothing is left behind whoever dies when. It belongs to the peer as
// much as to this process, so nothing read from it is believed: every length and
// index is read once and checked before it is used, and what cannot be fails the
// Conn. Only processes of the same user, the same host and the same network
// namespace meet.
//
// Where the kernel makes no such memory, a nameless file of mode 0600 takes its place, in
// /dev/shm or else in TMPDIR, with all its blocks from the start. It cannot be sealed: a
// process of the same user that cuts it short kills those that have it mapped. So the seal
// is a guard against accidents, not against a peer of the same user that lies: that one
// can say that it has a file. Where
// no descriptor passes between two processes, such a file gets a random name, is opened
// by it, and loses it as soon as all have done so. Of a rank that dies in between the
// other one removes the name; when all are killed in between, the next Transport that
// serves on the host does, because the dead hold no lock on it. (In TMPDIR, the next
// one that names a file.) Each meeting begins with a descriptor again, so
// that a lack of the moment, or one peer, changes nothing for others, and so does each Share
// unless a rank asks for a name: one that has a Conn to the Share's host which came by a name,
// and one that got no descriptor in a Share before, though it had room for it. That Share
// failed; that rank asks in all later ones, lest they do, too.
//
// Rings of a megabyte each way are used up only by long bodies; a Conn that
// carries small frames touches 32 KiB of them. Before Admit a peer holds one of 64
// slots for at most 10 seconds, its first 64 bytes must come within 5, and a frame
// whose body has more than 4 KiB ends the Conn.
//
// Memory from Alloc lies in arenas, memfds of their own. A Conn exposes it: the peer
// gets the arena's descriptor over the socket, maps it, and writes bodies there by one
// copy. Without memfds Alloc refuses; Expose does towards a peer that got no
// descriptor in the meeting.
// How that is held to what is exposed stands in expose_linux.go.
//
// A frame is done when its last byte is in the ring: not when the peer has it. A
// Conn has no timers and notices neither silence nor a stall; package mesh does,
// with heartbeats and with Unsent. The Transport is a transport.Sharer, too.
//
// It knows neither ranks nor handshakes nor what heads mean. On other systems it
// is there, and refuses with the reason.
//
// How two processes meet, and the ranks of a Share, stands in meet_linux.go and
// share_linux.go.
//
// # Layout of a Conn's memory
//
// Integers are in the host's byte order. Each line is written by few, and lies
// 128 bytes from the next one, since processors fetch lines in pairs.
//
//	offset  bytes  field
//	0       8      "tuttishm"
//	8       4      version, 2
//	12      4      bytes in each ring, a power of two
//	16      16     a random nonce of the side that dialled
//	32      16     a random nonce of the side that accepted
//	48      4      not 0: no descriptor gets to the side that dialled
//	128     16     bell of the side that dialled
//	256     16     bell of the side that accepted
//	384     8      bytes taken from the first ring, by the side that accepted
//	512     8      bytes taken from the second ring, by the side that dialled
//	1024    512    what the side that dialled exposes: 64 slots of 8 bytes
//	1536    512    what the side that accepted exposes
//	4096    r      first ring: from the side that dialled
//	4096+r  r      second ring: from the side that accepted
//
// A bell is written by its side when it falls asleep, and cleared by the peer,
// who then writes one byte to the socket:
//
//	offset  bytes  field
//	0       4      not 0: ring when there is something to read
//	4       4      not 0: this side has closed
//	8       8      not 0: ring when so many bytes in all have been taken
//
// # Layout of a ring
//
// A ring is a sequence of records, each on a line of its own (64 bytes) or several,
// none across the ring's end. A record begins with a word, written last; while it
// is 0 the record is not there yet. The word where the next record will begin is
// cleared before a record is published.
//
//	bits of the word  field
//	0..3              kind: 1 whole frame, 2 first chunk, 3 more, 4 skip, 5 told
//	4..11             h, the length of the head
//	12..31            n, the bytes of body in this record
//	32..63            the frame's ID
//
//	kind   after the word
//	whole  head; body, from the next multiple of 8, or of 64 if n is 1024 or more
//	first  8 bytes: length of the whole body; head; body from the next multiple of 64
//	more   body from offset 64
//	skip   nothing: the next record is at the ring's beginning
//	told   8 bytes each: slot, number of the exposure, place in it and bytes that were
//	       written there, which is done
package shm
