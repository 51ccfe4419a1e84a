// Package grpc implements package transport over gRPC. Each Conn is one bidirectional stream of raw
// bytes. It exists for proxies, service meshes and firewalls that pass gRPC and little else; where
// speed counts, use tcp.
//
// The package does not know ranks, the meaning of heads, or who may connect: package mesh does.
//
// # On the wire
//
// Method /tutti.Transport/Link, content type application/grpc+tutti, no compression, no proto. The
// messages of a stream, joined, are a sequence of frames; the boundaries of messages mean nothing.
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
// A frame with another sequence number than the next one ends the Conn. So a proxy that drops,
// doubles or reorders whole frames is noticed at the next frame.
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
// are copied, many into one message when they come faster than gRPC writes, and Done runs at once.
// A body in parts is treated part by part. gRPC holds up to 8 messages of a Conn; in practice
// fewer, because its SendMsg waits while 64 KiB are unwritten.
//
// Receiving: gRPC collects a message in pieces of 16 KiB, and Progress copies them to where the
// Sink wants them. A stream's window is 4 MiB, which gRPC may hold, and 2 MiB more wait for
// Progress; then flow control stops the peer.
//
// gRPC wakes several goroutines for each message. Polling a Conn of this kind does not pay: Arm it
// at once.
//
// # Ending
//
// A Conn whose connection breaks still delivers what had come. After Close, gRPC has at most 250 ms
// to write what it holds; so it has after Transport.Close. gRPC never reconnects.
//
// # TLS and proxies
//
// TLS is done here, or by the listener. Package tlsopt decides for which connections. gRPC gets the
// result, and uses the scheme https. Unlike gRPC's own dialer, this package ignores proxies named by
// the environment (HTTPS_PROXY), because ranks dial ranks. A proxy that terminates HTTP/2 may stand
// between two ranks. One that resets streams when it closes them may lose what it had not passed on;
// and it must not limit how long a stream lasts.
//
// # Unauthenticated peers
//
// Until Admit a peer may send 32 KiB, all of HTTP/2 included, and bodies of 4 KiB. It has one
// stream, which it must open within 5 s, and 16 KiB of headers. That costs less than 4 KiB of this
// package's memory. gRPC itself costs more, as measured: 10 to 16 KiB of heap, and 13 to 37 KiB of
// stacks for 3 to 7 goroutines. The listener bounds how many such peers there are.
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
// prints both and the Conn's speed as a share of the bare stream's. An echo has one switch of
// goroutines more at each end. At 64 and 256 KiB its share was between 0.85 and 0.96 over several
// runs, and down to 0.73 where other programs used both cores. The share of a stream of bodies was
// above 0.93 on an idle machine.
//
// Allocations per frame, both ends together, nearly all of them gRPC's: 5 for 1 KiB, 10 for 64 KiB,
// 28 for 1 MiB. A test bounds them.
package grpc
