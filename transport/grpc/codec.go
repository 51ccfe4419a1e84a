package grpc

import (
	"fmt"

	rpc "google.golang.org/grpc"
	"google.golang.org/grpc/mem"
)

// The one method of the one service. There is no proto file: messages are bytes.
const (
	serviceName = "tutti.Transport"
	streamName  = "Link"
	methodName  = "/" + serviceName + "/" + streamName
)

// streamDesc describes the method to either side.
func streamDesc(h rpc.StreamHandler) rpc.StreamDesc {
	return rpc.StreamDesc{StreamName: streamName, Handler: h, ServerStreams: true, ClientStreams: true}
}

// An incoming is what RecvMsg fills: the message as the pieces in which it came.
type incoming struct{ bufs mem.BufferSlice }

// A codec hands bytes through as they are: out of a *message, into an *incoming.
// It neither copies nor looks at them.
type codec struct{}

// Marshal gives gRPC the pieces of a message. gRPC releases each of them when
// it has been written.
func (codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(*message)
	if !ok {
		return nil, fmt.Errorf("send: got a %T, want *message", v)
	}
	return m.bufs, nil
}

// Unmarshal keeps the pieces; whoever reads them releases them.
func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	in, ok := v.(*incoming)
	if !ok {
		return fmt.Errorf("receive: got a %T, want *incoming", v)
	}
	data.Ref()
	in.bufs = data
	return nil
}

// Name is the content subtype: application/grpc+tutti.
func (codec) Name() string { return "tutti" }
