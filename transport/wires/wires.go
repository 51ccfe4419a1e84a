// Package wires has all transports that are not part of every program: gRPC and RDMA. A
// command that lets its user choose any of them by name passes them on:
//
//	comm.Init(ctx, comm.WithTransport(wires.All()...))
//
// They make a program several megabytes larger. One that needs a single wire imports
// that wire's package and passes its value.
package wires

import (
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/grpc"
	"github.com/tutti-go/tutti/transport/tcp"
	"github.com/tutti-go/tutti/transport/verbs"
)

// All returns new values of "grpc", "grpc+verbs" and "tcp+verbs". None of them holds
// anything before it is used. RDMA needs a program that is built with it (make build
// VERBS=1); in others its names are refused with the reason.
func All() []transport.Transport {
	return []transport.Transport{
		grpc.New(grpc.Options{}),
		verbs.Over(verbs.Options{Setup: grpc.New(grpc.Options{})}),
		verbs.Over(verbs.Options{Setup: tcp.New(tcp.Options{})}),
	}
}
