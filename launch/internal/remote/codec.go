package remote

import (
	"encoding/json"
	"fmt"

	"google.golang.org/grpc/mem"
)

// A chunk is a message of raw bytes.
type chunk struct{ data []byte }

// A codec encodes messages of Control as JSON, and passes raw bytes through.
type codec struct{}

// Marshal encodes a *Command, an *Event or a *chunk. gRPC may use the result after Marshal has
// returned, so the bytes of a chunk are copied.
func (codec) Marshal(v any) (mem.BufferSlice, error) {
	switch v := v.(type) {
	case *chunk:
		return mem.BufferSlice{mem.Copy(v.data, mem.DefaultBufferPool())}, nil
	case *Command, *Event:
		b, err := json.Marshal(v)
		return mem.BufferSlice{mem.SliceBuffer(b)}, err
	}
	return nil, fmt.Errorf("send: got a %T, want a message of this package", v)
}

// Unmarshal decodes a message. gRPC has checked its size.
func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	b := data.Materialize()
	switch v := v.(type) {
	case *chunk:
		v.data = b
		return nil
	case *Command, *Event:
		return json.Unmarshal(b, v)
	}
	return fmt.Errorf("receive: got a %T, want a message of this package", v)
}

// Name returns the content subtype: application/grpc+tutti-remote.
func (codec) Name() string { return "tutti-remote" }
