// Package rendezvous is the keyed meeting place of messages and receives, and the
// exchange that moves a message's bytes from one rank to another.
//
// A message is found by (context, source, tag), or by (context, step, source,
// name) when it is a named tensor. Whichever of message and receive comes first
// waits in the table; per key, first come is first served. Matching uses
// envelopes only; how the bytes travel is decided per message:
//
//   - send-driven: the envelope carries the bytes, up to half the peer's credit;
//   - recv-driven: the envelope is an offer; the receiver requests the bytes
//     when a receive has met it, and they go straight into the receive's buffer;
//   - auto: send-driven up to Config.Threshold bytes, recv-driven above.
//
// What bounds memory: each peer grants Config.Credit bytes for envelopes and
// bytes that no receive has met yet. Past that a sender keeps its messages in
// its own spill buffer (Config.SendBuffer), and past that Send waits.
//
// The package does not know communicators, ranks other than the job's, element
// types, operators or collectives. Ranks here are always ranks of the job.
//
// # Frames
//
// All integers are little-endian. A head ends with the CRC-32C of what precedes
// it. Every head begins with
//
//	offset size
//	     0    1  kind
//	     1    1  flags: 1 named, 2 dead (is_dead of a named tensor), 4 token follows,
//	             8 the body's CRC-32C follows, 16 an offer beyond the credit
//	     2    1  element type of a named tensor
//	     3    1  number of dimensions of a named tensor, at most 8
//	     4    4  id
//	     8    4  credit given back, in bytes
//
// and goes on by kind:
//
//	eager, offer,
//	written        12  8  context      20  4  tag       24  8  bytes    32  8  fingerprint
//	  named adds   40  8  step         48  4  name      52  8 each, the dimensions
//	request        12  4  receive id   16  8  bytes     24 32  token (flag 4)
//	prepare        12  8  context      20  8  bytes     28 32  token
//	data           12  8  offset       20  8  bytes
//	others         nothing
//
//	eager     a message with its bytes in the body
//	offer     a message whose bytes wait for a request; id is the offer's
//	request   asks for the bytes of offer id, to arrive by the receive id
//	data      bytes of the message that the receive with this id waits for
//	credit    gives credit back, and allows id more offers beyond it
//	withdraw  takes the offer id back: its sender has left
//	drop      the receiver does not want offer id: its sender is released
//	abandon   the sender has left: no more data comes for receive id
//	bye       the last frame of a rank that closes
//	bye ack   answers bye: all frames before it have been handled
//	wake      check the conditions that this rank's goroutines await again
//	name      the body is the text of name id on this link
//	prepare   the sender may write the tensor that the body names straight into the
//	          memory that token exposes; id is the buffer's, on this link
//	unprepare buffer id is taken back: its sender must not write there any more
//	unprepare
//	ack       answers it: nothing is written there, and all that was is announced
//	written   a message whose bytes lie in buffer id
//	release   buffer id may be written again
package rendezvous
