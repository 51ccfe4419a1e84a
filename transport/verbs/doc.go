// Package verbs implements package transport over RDMA: reliable-connected queue
// pairs, with bodies written by the sender's device straight into the receiver's
// memory.
//
// A Transport (TensorFlow's users know it as adapter and manager) has one device.
// A Conn (their channel) is set up over a wire that is handed in, and is a Conn of
// that wire until the peer is admitted: a stranger gets neither a queue pair nor
// registered memory. From then on frames go over the queue pair, and the set-up
// link stays for one purpose: when it breaks, the peer is gone. Two ends that cannot
// have a queue pair get an error that says why; they do not go on over the set-up
// link.
//
// The protocol is a pure function (flow.go). A device is a small interface, in
// internal/rdma; this host's hardware implements it (device_verbs.go), and so does
// package softdevice, with which all tests run anywhere. The package does not know
// ranks, what heads mean, or which wire sets it up.
//
// # On the set-up link
//
// Frames of this package have the head "tuttiRC", 0x01 and a kind; all others are
// the owners'. Integers are little-endian.
//
//	kind  name     sent by    body and meaning
//	1     OFFER    accepting  hello: how its queue pair is reached
//	2     ANSWER   dialling   hello; its queue pair is connected and can receive
//	3     READY    accepting  none; so can this one, and the next frame goes there
//	4     OVER     dialling   none; its next frame goes there, too
//	5     LITERAL  either     none; the next frame is an owner's, whatever its head
//	6     REFUSE   either     up to 400 bytes of text: why there is no queue pair
//	7     WANT     dialling   none; asks for an OFFER, with Options.OnRequest
//
// Frames of the owners go over the set-up link until READY or OVER, which is written
// before a frame goes over the queue pair; the receiver takes those in this order.
//
//	offset  bytes  field of a hello
//	0       16     GID
//	16      4      number of the queue pair, below 2^24
//	20      4      number of its first packet, below 2^24
//	24      2      LID
//	26      1      MTU, as enum ibv_mtu: 1 is 256 bytes, 5 is 4096
//	27      1      version, 2
//	28      4      receives posted: 3 to 1024
//	32      4      bytes of each of their buffers: 256 to 1 MiB
//	36      8      salt of this end's Tokens
//
// # On the queue pair
//
// There are messages (SEND) and writes (RDMA WRITE with immediate). Both take one of
// the receives that the peer has posted, and so cost one credit; the last credit is
// kept for messages that give some back, so that a receiver is always ready and two
// ends never wait for each other's credit. A message is:
//
//	offset  bytes  field
//	0       1      version, 3
//	1       1      kind, below
//	2       1      flag, below, or 0
//	3       1      length of the head, at most 128
//	4       4      credit: receives that the sender has posted again
//	8       4      ID of the frame, or of the exposure
//	12      4      place
//	16      8      bytes of body, or of the memory at the place
//	24      8      address of the place
//	32      4      key for writing there
//	36      4      freed: bytes of the sender's strip that are free again
//	40      head   opaque here; in TENSOR_WRITE and BUFFER_REQUEST
//	        body   opaque here; in TENSOR_WRITE without a flag
//
// The kinds are TensorFlow's six, and mean here:
//
//	1 ACK              credit, and nothing else
//	2 BUFFER_IDLE      the place is not to be written any more (the end of an Expose)
//	3 BUFFER_REQUEST   a frame is to come that fits no message: where to?
//	4 BUFFER_RESPONSE  there; or nowhere, the body is not wanted
//	5 TENSOR_REQUEST   this memory may be written (an Expose); what follows may name it
//	6 TENSOR_WRITE     a whole frame, in the message
//
// and with a flag:
//
//	1 BUFFER_RESPONSE  nowhere: the body is not wanted
//	2 TENSOR_REQUEST   this memory is the sender's strip
//	2 TENSOR_WRITE     a whole frame, whose body lies in the receiver's strip at address
//	4 BUFFER_REQUEST   the place is written full; may it be written again?
//	4 BUFFER_RESPONSE  it may
//	8 TENSOR_REQUEST   this memory is kept: written in silence, and as often as wanted
//
// An end that is asked for a place for a body of middling size makes a strip: memory
// that such bodies are written to from then on, one behind the other and round again,
// by plain writes with a TENSOR_WRITE behind each. A body takes a quarter of the strip
// at most, lies in one piece (at the beginning, when the rest is too short), and is
// copied out; freed counts the rest that stayed empty, too. It goes by itself, in an
// ACK, once it is half the strip.
//
// Exposed memory is written to its size, in all, and no further before a
// BUFFER_REQUEST is answered; BUFFER_IDLE is an answer, too. So its owner knows, when
// as much has come, that nothing is on its way there.
//
// Memory that is kept (transport.Unheard) is written by plain writes, of which its owner
// learns by what comes behind them: package rendezvous lays recurring tensors out there.
// Nothing bounds what is written, so that its registration ends with its release. Its
// TENSOR_REQUEST has the id 2^32-1, and is refused with another one.
//
// A place is memory of the receiver's: bits 0 to 11 are its slot, bits 12 to 30 which
// use of the slot it is. A write carries it as its immediate value; bit 31 says that
// more of the same frame follows. A write into the place of a BUFFER_RESPONSE is at
// the body's offset; a write into exposed memory goes where its frame says. Writes
// are of at most 256 KiB. Each end sends frames one after the other, and messages
// about memory before them.
//
// How the messages of package rendezvous travel: an offer, and a message with its
// bytes up to about 8 KiB, is a TENSOR_WRITE; a longer one is BUFFER_REQUEST,
// BUFFER_RESPONSE and writes; a request that shows memory is a TENSOR_REQUEST with a
// TENSOR_WRITE behind it that has the Token; its data are writes; the receive's end is
// a BUFFER_IDLE.
//
// # Memory
//
// Memory that a peer may write, from Expose to release and from Place to the last
// Arrived, is registered for that one use, and so is memory that is sent from, for
// local use only. Both stay registered for the next time, up to Options.CacheBytes
// each; but where something of the peer's may still be on its way at a release, the
// registration ends there and then: the device refuses what comes late, and the Conn
// fails. Options.Fresh has it end always, and refuses memory that is to be kept. A
// Conn's message buffers are twice Depth times Buffer bytes, 512 KiB unless told
// otherwise, and its strip is 2 MiB.
//
// # Ending
//
// A work that fails breaks the Conn with fault.LinkLost, and says which status the
// device gave, what most often causes it, and what helps. The queue pair is closed
// before any Done runs with an error and before Progress returns it; what had arrived
// whole is delivered first. So does an event of the device's about the queue pair, its
// completion queue or all of the device; that the port is down is only said in errors, for
// retries may outlast it. A work that never completes shows in Unsent. So does one that
// asks for no completion: Unsent has a write of no bytes follow it, to no address and
// without immediate, whose completion stands for both.
package verbs
