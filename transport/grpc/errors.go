package grpc

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tutti-go/tutti/fault"
)

// failure returns an error of this package. A transport does not know ranks, so Rank is -1.
func failure(k fault.Kind, op string, err error) *fault.Error {
	return &fault.Error{Kind: k, Op: "grpc: " + op, Rank: -1, Err: err}
}

var (
	// errPeerClosed means that the peer called Close or that its process ended. The connection does
	// not show which of the two has happened.
	errPeerClosed = fmt.Errorf("the peer closed the link: %w", io.EOF)
	// errGivenUp means that gRPC has closed the connection without a reason, because the peer
	// violated HTTP/2.
	errGivenUp = errors.New("gRPC closed the connection: the peer violated HTTP/2")
)

// linkFailure returns the Conn's error after its connection has ended with err.
func linkFailure(err error) *fault.Error {
	if errors.Is(err, io.EOF) {
		err = errPeerClosed
	}
	return failure(fault.LinkLost, "link", err)
}

// streamFailure returns the Conn's error after its stream has ended with err. A gRPC status comes
// from the peer's gRPC, from a proxy, or from this process's gRPC. Its code is not part of the
// text.
//
// gRPC reports the peer's Close as Canceled, because the peer cancels its stream. A proxy may also
// report Canceled. In both cases the link has ended.
func streamFailure(err error) *fault.Error {
	if errors.Is(err, io.EOF) {
		return linkFailure(err)
	}
	s := status.Convert(err)
	switch s.Code() {
	case codes.Canceled: // the peer's Close, or a proxy that reports it
		return linkFailure(io.EOF)
	case codes.ResourceExhausted: // a message that is too large
		return failure(fault.Refused, "link", errors.New(s.Message()))
	}
	return failure(fault.LinkLost, "link", errors.New(s.Message()))
}

// dialFailure returns the error of a Dial that could not open a stream.
//
// If another gRPC service gets a call of this package's method, it answers Unimplemented.
func dialFailure(ctx context.Context, addr string, err error) *fault.Error {
	op := "dial " + addr
	if ended := ctx.Err(); ended != nil {
		return failure(fault.ContextKind(ended), op, ended)
	}
	if s, ok := status.FromError(err); ok {
		err = errors.New(s.Message())
		if s.Code() == codes.Unimplemented {
			err = errors.New("got another gRPC service at this address, want a rank of the job")
		}
	}
	return failure(fault.Refused, op, err)
}
