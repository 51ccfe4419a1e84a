// Package rendezvous matches messages with receives, and moves a message's bytes from one rank to
// another. It is the layer below communicators. MPI libraries call it the matching engine and the
// point-to-point protocols.
//
// A maintainer should know four things first.
//
// Matching. A message is found by (context, source, tag), or by (context, step, source, name) when
// it is a named tensor. If the message comes before its receive, the message waits in the context's
// table; otherwise the receive waits there. Messages and receives with the same key match in the
// order in which they come. Only envelopes are matched: how the bytes travel is decided per
// message, by a Protocol:
//
//   - Eager: the envelope carries the bytes. They are copied once if no receive is posted yet.
//   - Rendezvous: the envelope is an offer. The receiver requests the bytes when a receive has
//     matched it, and they go straight into the receive's buffer.
//   - Auto: eager up to Config.Threshold bytes, rendezvous above. A message of more than half the
//     least credit is never eager.
//
// Memory. Each peer grants Config.Credit bytes for envelopes and eager bytes that no receive has
// matched. Beyond the credit a sender keeps its messages in its own spill buffer
// (Config.SendBuffer), and beyond that Send waits. So no rank can make another rank allocate memory
// without bound. A receive does not wait behind messages that nobody receives: see peer.grantExtra.
//
// Locking. One lock per Engine guards all state of this package. It is never held while bytes are
// copied, frames are sent or callbacks run: such work is deferred, and Engine.unlock does it. The
// order of locks is: a link's progress role (mesh), then the engine's lock, then the lock of a
// staticPlan. Code that holds the engine's lock never waits and never calls a Conn.
//
// Buffers. A request's buffer belongs to the engine until the request is done. A request that ends
// early, because of a revoke, a lost peer or a canceled context, is done only when nothing writes
// into its buffer or reads from it any more: see Engine.abort.
//
// The package does not know communicators, element types, operators or collectives. Ranks here are
// always ranks of the job.
//
// The files: table.go matches messages with receives. matchcontext.go, recv.go, send.go, named.go
// and reserve.go hold the calls. request.go and message.go hold the two things that are matched,
// and match.go starts the transfer after a match. peer.go and inbound.go hold the exchange with one
// rank, and header.go its frames. fastpath.go is the shortcut for small messages. prepared.go,
// remotebuffer.go and staticplan.go hold the direct writes of named tensors. fail.go handles the
// end of peers and of the engine.
//
// # Exchanges
//
// An eager message, with a receive that was posted before and one that was not:
//
//	sender                     receiver
//	eager(bytes)  ───────────► into the posted receive's buffer
//	eager(bytes)  ───────────► into memory of the pool; copied when a receive is posted
//	              ◄─────────── credit, with any frame that goes this way
//
// A rendezvous message. The receiver exposes its buffer if the buffer is large and the Conn can
// expose memory. The bytes then go into the buffer without a header, and Arrived gets only the
// receive's id:
//
//	sender                     receiver
//	offer(1)      ───────────► waits in the table until a receive matches
//	              ◄─────────── request(1, receive 7, token)
//	data(7) ...   ───────────► into the receive's buffer, at most two frames at a time
//
// Either side may end a rendezvous early. Frames cross, so each side ignores a frame that refers to
// an id that this side has ended. Only a frame that no correct peer could have sent ends the link:
//
//	sender cancels the offer        withdraw; a receive that matched goes back into the table,
//	                                and a request that crosses the withdraw is ignored
//	sender is aborted amid the data abandon; the receive fails
//	receiver does not want it       drop; the send succeeds if a receive has matched, else it fails
//	receiver is aborted             nothing is sent; data that arrives is dropped, or, if the
//	                                buffer is exposed, awaited
//
// A prepared receive of the tensors of one name, over several steps:
//
//	sender                     receiver
//	              ◄─────────── prepare(3, token, "w")     once
//	data          ───────────► into the prepared buffer, without a notification
//	written(3)    ───────────► matches the step's receive, whose Data is the buffer
//	              ◄─────────── release(3)                 the program is done with it
//	data ...
//	              ◄─────────── unprepare(3)
//	unprepare ack ───────────► the exposure ends
//
// A rank that closes drops the messages that no receive has matched. It sends bye to each peer when
// all its sends are done, and is done when all byes are acknowledged: Drain. The mesh reports a
// peer's failure: LinkDown when a Conn breaks, and FailPeer with the confirmed failure, which names
// the rank at fault.
//
// # Frames
//
// All integers are little-endian. A header ends with the CRC-32C of what precedes it. Every header
// begins with
//
//	offset size
//	     0    1  kind
//	     1    1  flags: 1 named, 2 dead (is_dead of a named tensor), 4 token follows,
//	             8 the body's CRC-32C follows, 16 an offer beyond the credit,
//	             32 a drop of a message that was not received; with 1, because its step has ended
//	     2    1  element type of a named tensor
//	     3    1  number of dimensions of a named tensor, at most 8
//	     4    4  id
//	     8    4  credit returned, in bytes
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
//	request   asks for the bytes of the offer with this id, to be sent with the receive id
//	data      bytes of the message that the receive with this id waits for
//	credit    returns credit; id is the number of further offers that may exceed the credit
//	withdraw  takes back the offer with this id: its send was canceled
//	drop      the receiver does not want the offer with this id: its send is done; with id 0 and flag 32,
//	          messages whose bytes had arrived were not received
//	abandon   the send was aborted: no more data comes for the receive with this id
//	bye       the last frame of a rank that closes
//	bye ack   answers bye: all frames before it have been handled
//	wake      the receiver's goroutines check again the conditions that they await
//	name      the body is the name that has this id on this link
//	prepare   the sender may write the tensor that the body names straight into the
//	          memory that token exposes; id is the buffer's, on this link
//	unprepare the buffer with this id is taken back: the sender must not write there any more
//	unprepare
//	ack       answers unprepare: nothing more is written there, and every write was announced
//	written   a message whose bytes lie in the buffer with this id
//	release   the buffer with this id may be written again
package rendezvous
