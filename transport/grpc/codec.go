package grpc

import (
	"fmt"

	rpc "google.golang.org/grpc"
	"google.golang.org/grpc/mem"
)

// These constants name the only method of the only service. There is no proto file, because
// messages are raw bytes.
const (
	serviceName = "tutti.Transport"
	streamName  = "Link"
	methodName  = "/" + serviceName + "/" + streamName
)

// streamDesc describes the method. The listening side passes its handler, and the dialling side
// passes nil.
func streamDesc(h rpc.StreamHandler) rpc.StreamDesc {
	return rpc.StreamDesc{StreamName: streamName, Handler: h, ServerStreams: true, ClientStreams: true}
}

// An incoming holds a message from RecvMsg, in the same pieces in which gRPC received the message.
type incoming struct{ bufs mem.BufferSlice }

// A codec passes bytes between this package and gRPC without a copy. Marshal takes the bytes to
// send from a *message, and Unmarshal stores the received bytes in an *incoming.
type codec struct{}

// Marshal returns the pieces of a message. gRPC releases each piece after it has been written.
func (codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(*message)
	if !ok {
		return nil, fmt.Errorf("send: got a %T, want *message", v)
	}
	return m.bufs, nil
}

// Unmarshal keeps the pieces. Progress releases them after it has copied them out.
//
// Ref keeps gRPC from reusing the memory after Unmarshal has returned.
func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	in, ok := v.(*incoming)
	if !ok {
		return fmt.Errorf("receive: got a %T, want *incoming", v)
	}
	data.Ref()
	in.bufs = data
	return nil
}

// Name returns the content subtype: application/grpc+tutti.
func (codec) Name() string { return "tutti" }
