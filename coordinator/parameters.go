package coordinator

import (
	"bytes"
	"context"
	"encoding/gob"
	"encoding/json"
	"maps"
	"slices"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
)

// BroadcastParameters copies the values of params from the root to every rank. A training calls it
// before its first step. All ranks must have the same names and lengths; otherwise they get
// fault.Mismatch. The tensors are submitted as one group. Their names are prefixed with
// "parameter/".
func BroadcastParameters[T comm.Element](ctx context.Context, co *Coordinator, params map[string][]T, root int) error {
	var hs []*Handle
	co.Group(func(g *TensorGroup) {
		for _, name := range slices.Sorted(maps.Keys(params)) {
			hs = append(hs, Broadcast(g, "parameter/"+name, params[name], root))
		}
	})
	return WaitAll(ctx, hs...)
}

// maxObject bounds an encoded object, in bytes.
const maxObject = 1 << 30

// BroadcastObject copies the root's value to every rank. The parameter v points to the value. The
// value is encoded by encoding/gob. It may be an epoch, the state of an optimizer, or a
// configuration. If the root cannot encode it, all ranks get fault.Misuse. If a rank cannot decode
// it, only that rank gets fault.Misuse. The function uses the tensor names name+"/size" and
// name+"/object".
func BroadcastObject[T any](ctx context.Context, co *Coordinator, name string, v *T, root int) error {
	encode := func() ([]byte, error) {
		var body bytes.Buffer
		err := gob.NewEncoder(&body).Encode(v)
		return body.Bytes(), err
	}
	decode := func(body []byte) error {
		var got T // gob leaves out zero fields; decoding into v would keep this rank's values there
		err := gob.NewDecoder(bytes.NewReader(body)).Decode(&got)
		if err == nil {
			*v = got
		}
		return err
	}
	return co.broadcastObject(ctx, name, root, encode, decode)
}

// BroadcastJSON is like BroadcastObject, but uses encoding/json. Use it for values with their own
// JSON form and for types that gob does not accept.
func BroadcastJSON[T any](ctx context.Context, co *Coordinator, name string, v *T, root int) error {
	decode := func(body []byte) error {
		var got T
		err := json.Unmarshal(body, &got)
		if err == nil {
			*v = got
		}
		return err
	}
	return co.broadcastObject(ctx, name, root, func() ([]byte, error) { return json.Marshal(v) }, decode)
}

// broadcastObject broadcasts the size first, so that each rank has memory for the object.
func (co *Coordinator) broadcastObject(ctx context.Context, name string, root int, encode func() ([]byte, error), decode func([]byte) error) error {
	var body []byte
	var failed error
	size := []int64{0}
	if co.rank == root {
		if body, failed = encode(); failed != nil || len(body) > maxObject {
			size[0] = -1
		} else {
			size[0] = int64(len(body))
		}
	}
	if err := Broadcast(co, name+"/size", size, root).Wait(ctx); err != nil {
		return err
	}
	bad := func(format string, args ...any) error {
		return fault.New(fault.Misuse, "broadcast object "+name, co.worldRank(co.rank), format, args...)
	}
	switch {
	case failed != nil:
		return bad("cannot encode the object: %w", failed)
	case size[0] < 0 || size[0] > maxObject:
		return bad("rank %d cannot encode its object, or the encoding is larger than %d bytes", co.worldRank(root), maxObject)
	}
	if co.rank != root {
		body = make([]byte, size[0])
	}
	if err := Broadcast(co, name+"/object", body, root).Wait(ctx); err != nil || co.rank == root {
		return err
	}
	if err := decode(body); err != nil {
		return bad("cannot decode the object of rank %d: %w", co.worldRank(root), err)
	}
	return nil
}
