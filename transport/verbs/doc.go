// Package verbs implements package transport over RDMA. Frames travel over
// reliable-connected queue pairs, and the sender's device writes bodies straight into
// the receiver's memory.
//
// A Transport has one device (TensorFlow calls the two manager and adapter). A Conn (TensorFlow's
// channel) begins as a Conn of another transport, its set-up link. It gets a queue pair and
// registered memory only once the peer is admitted. From then on frames go over the queue pair. The
// set-up link then has one purpose: when it breaks, this end knows that the peer is gone. If the
// two ends cannot have a queue pair, the Conn fails with the reason; it does not continue over the
// set-up link.
//
// For maintainers, from the inside out:
//
//   - flow.go and flow_in.go are the protocol, a pure state machine without time, locks
//     or I/O. Transcripts in testdata and an exhaustive search in explore_test.go test
//     it, and model/ has its credits for spin.
//   - internal/rdma is the interface of a device. device_verbs.go implements it with
//     libibverbs, and package softdevice in software, for tests everywhere.
//   - endpoint.go is a queue pair with its buffers. send.go and receive.go move bytes
//     between it, the flow and the Sink. upgrade.go and hello.go agree on the queue pair.
//   - cache.go and arena.go keep memory registered.
//   - config.go, ports.go and choose.go read variables and select a device.
//
// The package does not know ranks, the meaning of heads, or which transport sets it up.
//
// # The paths of a body
//
// Send queues a frame; nextFrame hands it to the flow, which chooses its path by size and
// target. From the shortest to the longest:
//
//	path       bodies                              messages          copies
//	message    up to Buffer - 40 bytes - head      1                 2: through message buffers
//	ring       up to Ring/4, once there is a ring  1, after a write  1: out of the ring
//	requested  all others                          2, then writes    0
//	exposed    frames with a Token                 0: writes only    0
//
// TrySend takes the first path only, without a Frame and without a completion of its own.
//
// # Who calls what
//
// Any goroutine may call Send, TrySend, Expose, release, Unsent, Arm and Close. These methods hold
// conn.mu while they step the flow and post to the device. One goroutine at a time is in Progress.
// Only that goroutine polls for arrivals and calls the Sink, without conn.mu. Callbacks of the
// device and of the set-up link take only the lock conn.mu, and only run the callback of Arm. A
// Done may run in Send or Progress, and when the Conn fails.
//
// Close of a Transport waits for all uses of the device (acquireDevice). These are message buffers
// until they are released, and calls that register memory.
//
// # Bounds
//
//	what                                    bound                     beyond it
//	messages and writes in flight           Depth, as credits         they wait
//	outstanding work requests               Depth                     they wait
//	exposures of a Conn                     4096                      fault.Exhausted
//	queued messages about memory            16384                     fault.Exhausted
//	bytes in the eager ring                 Ring                      bodies wait
//	copies kept for bodies in parts         4                         allocated per frame
//	registrations that nobody uses          CacheBytes, twice         the oldest ends
//	set-up messages                         400 bytes                 protocol error
//	frames before the peer is admitted      as on the set-up link     as on the set-up link
//
// This package does not bound the frames that wait in Send. The caller of Send bounds them by
// credits of its own.
//
// # On the set-up link
//
// Frames of this package have the head "tuttiRC", 0x01 and a kind. All others are frames of the
// caller. Integers are little-endian.
//
//	kind  name     sent by    body and meaning
//	1     OFFER    accepting  hello: how its queue pair is reached
//	2     ANSWER   dialling   hello; its queue pair is connected and can receive
//	3     READY    accepting  none; its queue pair can receive, its next frame goes there
//	4     OVER     dialling   none; its next frame goes over the queue pair, too
//	5     LITERAL  either     none; the next frame is the caller's, whatever its head
//	6     REFUSE   either     up to 400 bytes of text: why there is no queue pair
//	7     WANT     dialling   none; requests an OFFER, with Options.OnRequest
//
// The caller's frames go over the set-up link up to READY or OVER. An end sends READY or OVER
// before its first frame over the queue pair, and the receiver delivers in this order.
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
// There are messages (SEND) and writes (RDMA WRITE with immediate). Each consumes one of
// the receives that the peer has posted, and so costs one credit. The last credit is kept
// for messages that grant credits. So a receive is always posted, and two ends never wait
// for each other's credits. A message is:
//
//	offset  bytes  field
//	0       1      version, 3
//	1       1      kind, below
//	2       1      flag, below, or 0
//	3       1      length of the head, at most 128
//	4       4      credits: receives that the sender has posted again
//	8       4      ID of the frame, or of the exposure
//	12      4      handle
//	16      8      bytes of body, or of the memory of the handle
//	24      8      address of that memory
//	32      4      key for writing there
//	36      4      freed: bytes of the sender's ring that are free again
//	40      head   opaque here; in TENSOR_WRITE and BUFFER_REQUEST
//	        body   opaque here; in TENSOR_WRITE without a flag
//
// The kinds are TensorFlow's six. Here they mean:
//
//	1 ACK              grants credits, and nothing else
//	2 BUFFER_IDLE      the handle's memory is no longer exposed
//	3 BUFFER_REQUEST   asks for a buffer for the body of a frame that fits no message
//	4 BUFFER_RESPONSE  answers BUFFER_REQUEST: the body goes to this memory, or is declined
//	5 TENSOR_REQUEST   this memory is exposed; frames that follow may name it
//	6 TENSOR_WRITE     a whole frame, in the message
//
// and with a flag:
//
//	1 BUFFER_RESPONSE  the body is declined
//	2 TENSOR_REQUEST   this memory is the sender's ring
//	2 TENSOR_WRITE     a whole frame; its body lies in the receiver's ring at the address
//	4 BUFFER_REQUEST   the handle's memory has been written to its size; renew it
//	4 BUFFER_RESPONSE  the handle's memory is renewed
//	8 TENSOR_REQUEST   this memory is written without notification, any number of times
//
// A body of middling size, which fits no message, goes to the receiver's eager ring. An end
// allocates its ring when it is first asked for a buffer for such a body. The sender writes bodies
// into the ring one after the other by plain writes, and sends a TENSOR_WRITE after each. A body is
// at most a quarter of the ring and contiguous: if the rest of the ring is too short, the body goes
// to the beginning. The receiver copies the body out at once. The field freed also counts a rest
// that stayed empty. Once the freed bytes are half of the ring, an ACK reports them.
//
// The sender writes at most as many bytes to exposed memory as the memory has. To write more, the
// sender renews the memory by a BUFFER_REQUEST. A BUFFER_IDLE is also an answer to this request. So
// once as many bytes have arrived as the memory has, the end that exposed the memory knows that no
// write is in flight.
//
// Memory without notification (transport.NoNotify) is written by plain writes. The end that exposed
// it learns about these writes from messages that the sender sends after them. Nothing bounds those
// writes, so the registration ends with the release. Its TENSOR_REQUEST has the ID 2^32-1; any
// other ID is a protocol error.
//
// A handle names memory of the receiver: bits 0 to 11 are its slot, bits 12 to 30 the generation of
// that slot. A write has the handle as its immediate value, in which bit 31 means that more writes
// of the same frame follow. A write into the memory of a BUFFER_RESPONSE is at the body's offset; a
// write into exposed memory is where its frame says. A write has at most 256 KiB. Each end sends
// its frames one after the other. It sends messages about memory before frames.
//
// The messages of package rendezvous travel as follows. An envelope, and a message of up to about 8
// KiB, is a TENSOR_WRITE. A longer message is BUFFER_REQUEST, BUFFER_RESPONSE and writes. A request
// that exposes memory is a TENSOR_REQUEST, followed by a TENSOR_WRITE with the Token. The data of
// the message are writes, and the end of the receive is a BUFFER_IDLE.
//
// # Memory
//
// A peer may write to exposed memory from Expose to release, and to a requested buffer from
// Sink.Buffer to the last Arrived. That memory is registered for this one use. Memory that is sent
// from is registered for local access only. Both stay registered for later uses, up to
// Options.CacheBytes each. If a peer's write may still be in flight at a release, the registration
// ends at once: the device then refuses a late write, and the Conn fails. With Options.Fresh every
// registration ends with its use, and memory without notification is refused. The message buffers
// of a Conn have 2 * Depth * Buffer bytes, which is 512 KiB by default. Its ring is 2 MiB.
//
// # Ending
//
// A work request that fails breaks the Conn with fault.LinkLost. The error has the device's status,
// its most likely cause and the remedy. The queue pair is closed before any Done runs with an error
// and before Progress returns it. Frames that have arrived whole are delivered first. Events of the
// device about the queue pair, its completion queue or the device itself break the Conn, too. A
// port that is down does not break the Conn, because the port may be up again before the retries
// end. Errors mention such a port.
//
// Unsent reports a work request that never completes. It also reports a work request that requests
// no completion. For such a work request, Unsent posts a write of no bytes, whose completion stands
// for all earlier work requests.
package verbs
