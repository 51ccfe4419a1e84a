// Package grpc implements package transport over gRPC. Each Conn is one bidirectional stream of raw
// bytes. It exists for proxies, service meshes and firewalls that pass little more than gRPC. If
// speed is important, use tcp.
//
// The package does not know ranks, the meaning of heads, or who may connect. Package mesh knows
// these things.
//
// # On the wire
//
// Method /tutti.Transport/Link, content type application/grpc+tutti, no compression, no proto. The
// joined messages of a stream are a sequence of frames. The boundaries of messages have no meaning.
// Integers are little-endian.
//
//	offset  bytes  field
//	0       1      version, 2
//	1       1      length of the head, at most 128
//	2       6      length of the body
//	8       4      ID
//	12      4      sequence number: 0 for the first frame of this direction, then 1, 2, ...
//	16      8      acknowledgement: how many bytes of frames, preambles and heads
//	               included, have arrived in the other direction
//	24      head   opaque here
//	        body   opaque here
//
// A frame with a wrong sequence number ends the Conn. So a proxy that drops, doubles or reorders
// whole frames is noticed at the next frame.
//
// The accepting side sends its headers at once; Dial waits for them. The dialling side ends its
// stream to say that it closes (END_STREAM), the accepting side sends the trailers.
//
// # How bytes move
//
// A Conn has a connection of its own. So flow control, failure and the bounds on unauthenticated
// peers are per Conn, and control frames never queue behind data.
//
// Sending: bodies above 8 KiB are not copied on the way to gRPC's write buffer. They travel in
// messages of up to 512 KiB, and Done runs when gRPC has released the last of them. Smaller bodies
// are copied, and Done runs at once. If they come faster than gRPC writes, many are copied into one
// message. A body in parts is treated part by part. gRPC holds up to 8 messages of a Conn. In
// practice it holds fewer, because its SendMsg waits while 64 KiB are unwritten.
//
// Receiving: gRPC collects a message in pieces of 16 KiB, and Progress copies the pieces into the
// Sink's buffers. gRPC may hold 4 MiB, which is the window of a stream, and 2 MiB more may wait for
// Progress. Then flow control stops the peer.
//
// gRPC wakes several goroutines for each message. So polling such a Conn is useless, and a waiter
// should call Arm at once.
//
// # Ending
//
// A Conn whose connection breaks still delivers the bytes that had arrived. After Close or
// Transport.Close, gRPC has at most 250 ms to write the bytes that it holds. gRPC never reconnects.
//
// # TLS and proxies
//
// This package or the listener does the TLS handshake. Package tlsopt decides which connections use
// TLS. gRPC gets the result, and uses the scheme https. Unlike gRPC's own dialer, this package
// ignores proxies named by the environment (HTTPS_PROXY), because ranks dial ranks. A proxy that
// terminates HTTP/2 may stand between two ranks. A proxy that resets streams when it closes them
// may lose bytes that it had not passed on. A proxy must not limit how long a stream lasts.
//
// # Unauthenticated peers
//
// Until Admit a peer may send 32 KiB, all of HTTP/2 included, and bodies of 4 KiB. It has one
// stream, which it must open within 5 s, and 16 KiB of headers. Such a peer costs less than 4 KiB
// of this package's memory. gRPC itself uses more memory. Measurements show 10 to 16 KiB of heap,
// and 13 to 37 KiB of stacks for 3 to 7 goroutines. The listener bounds the number of such peers.
//
// # Cost
//
// Medians in microseconds for each body, on a machine with two cores (x86-64 server, 2026) with
// little other load, both ends in one process, over loopback. "Bare" is a gRPC stream with the same
// codec and settings, whose receiver copies each message out once. One way: a stream of bodies.
// Echo: one body there and back.
//
//	body      one way: Conn   bare          echo: Conn   bare
//	1 KiB                0.95    2.1  2.24         27      25  0.94
//	4 KiB                3.5     5.3  1.52         30      30  0.99
//	16 KiB              12      11    0.96         38      38  0.99
//	64 KiB              41      43    1.05         87      78  0.90
//	256 KiB            162     159    0.98        222     193  0.87
//	1 MiB              711     731    1.03       1114    1458  1.31
//	4 MiB             3677    4321    1.18       7116    7483  1.05
//
//	go test -run '^$' -bench Bare -benchtime 1x ./transport/grpc
//
// prints both times, and the ratio of the Conn's speed to the speed of the bare stream. An echo
// needs one more switch of goroutines at each end. At 64 and 256 KiB its ratio was between 0.85 and
// 0.96 over several runs, and down to 0.73 while other programs used both cores. The ratio of a
// stream of bodies was above 0.93 on an idle machine.
//
// Both ends together make 5 allocations per frame for 1 KiB, 10 for 64 KiB, and 28 for 1 MiB. gRPC
// makes nearly all of them. A test bounds their number.
package grpc
