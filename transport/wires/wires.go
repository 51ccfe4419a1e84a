// Package wires has all transports that are not part of every program: gRPC and RDMA. A command
// whose user can choose any of them by name passes them to Init:
//
//	comm.Init(ctx, comm.WithTransport(wires.All()...))
//
// These transports make a program several megabytes larger. A program that needs only one of them
// imports the package of that transport and passes its value.
package wires

import (
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/grpc"
	"github.com/tutti-go/tutti/transport/tcp"
	"github.com/tutti-go/tutti/transport/verbs"
)

// All returns new values of "grpc", "grpc+verbs" and "tcp+verbs". None of them holds resources
// before it is used. RDMA needs a program that is built with RDMA (make build VERBS=1). Other
// programs refuse the names with RDMA, and give the reason.
func All() []transport.Transport {
	return []transport.Transport{
		grpc.New(grpc.Options{}),
		verbs.Over(verbs.Options{Setup: grpc.New(grpc.Options{})}),
		verbs.Over(verbs.Options{Setup: tcp.New(tcp.Options{})}),
	}
}
