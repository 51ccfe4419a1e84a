package ps

import (
	"bytes"
	"context"
	"fmt"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/ps/internal/message"
	"github.com/tutti-go/tutti/ps/internal/part"
	"github.com/tutti-go/tutti/ps/internal/storage"
	"github.com/tutti-go/tutti/tensor"
)

// A State is what the servers hold of a dense tensor.
type State[T comm.Element] struct {
	Values []T
	Slots  [][]T // of the optimizer, see optimizer.State; each as long as Values
	Steps  int64 // how often the optimizer has changed the values
}

// PullState copies the values, and the state of the optimizer, to s. It waits for the version of this
// worker's last push, as Pull does. The slices of s have the tensor's length, or are nil: PullState
// then allocates them. Neither Compress nor TopK applies.
//
// The tensor is synchronous. Otherwise, and while a push or a Set of this client is not acknowledged,
// the error is fault.Misuse.
func (t *Tensor[T]) PullState(ctx context.Context, s *State[T]) error {
	return t.moveState(ctx, message.PullState, s)
}

// SetState replaces the values, and the state of the optimizer, by s. One worker calls it. The pushes
// that all workers begin afterwards change the new state; SetState is for a program that knows when
// that is. The number of the version stays. For errors see PullState.
func (t *Tensor[T]) SetState(ctx context.Context, s *State[T]) error {
	return t.moveState(ctx, message.SetState, s)
}

func (t *Tensor[T]) moveState(ctx context.Context, kind message.RequestKind, s *State[T]) error {
	d := t.d
	op := verbs[kind] + d.spec.Name
	if d.spec.Mode != part.Synchronous {
		return d.refuse(op, "mode: got %s, want a synchronous tensor; the state of others, and of tables, stays on their servers", describe(&d.spec)).err
	}
	slots := 0
	if d.optimizer != nil {
		slots = len(d.optimizer.State().Slots)
	}
	if kind == message.PullState {
		s.allocate(d.spec.Size, slots)
	}
	planes := [][]byte{tensor.Bytes(s.Values)}
	for _, slot := range s.Slots {
		planes = append(planes, tensor.Bytes(slot))
	}
	for i, p := range planes {
		if len(s.Slots) != slots || len(p) != d.spec.Size*d.spec.DType.Size() {
			return d.refuse(op, "state: got %d slots, and %d elements in vector %d, want %d slots of %d elements", len(s.Slots), len(p)/d.spec.DType.Size(), i, slots, d.spec.Size).err
		}
	}
	if size := d.stateSpec().StateSize(d.parts[0].count); size > message.MaxBody {
		return d.refuse(op, "part: got a state of %d bytes, want at most %d; make parts smaller with the option WithPart", size, message.MaxBody).err
	}
	return d.moveState(op, kind, planes, &s.Steps).Wait(ctx)
}

// allocate allocates what is nil.
func (s *State[T]) allocate(n, slots int) {
	if s.Values == nil {
		s.Values = make([]T, n)
	}
	if s.Slots == nil {
		s.Slots = make([][]T, slots)
		for i := range s.Slots {
			s.Slots[i] = make([]T, n)
		}
	}
}

// moveState begins a SetState or a PullState of all parts.
func (d *declared) moveState(op string, kind message.RequestKind, planes [][]byte, steps *int64) *Handle {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := d.pushing.Load(); n > 0 {
		return d.refuse(op, "got %d pushes that are not acknowledged, want none; wait for them first", n)
	}
	if err := d.cl.begin(op); err != nil {
		return failed(err)
	}
	h := newHandle(d.cl, op, len(d.parts))
	if kind == message.SetState {
		h.pushing = &d.pushing
		d.pushing.Add(1)
	}
	spec := d.stateSpec()
	es := d.spec.DType.Size()
	for i := range d.parts {
		p := &d.parts[i]
		mine := make([][]byte, len(planes))
		for k := range planes {
			mine[k] = planes[k][p.first*es:][:p.count*es]
		}
		c := &call{q: message.Request{Kind: kind, DType: d.spec.DType, Tensor: d.id, Part: uint32(i)}, done: h.partDone}
		state := make([]byte, 0, spec.StateSize(p.count))
		if kind == message.SetState {
			c.body = spec.AppendState(state, int64(p.first), p.count, mine, *steps)
		} else {
			c.dst = state[:cap(state)]
			c.done = func(err error) {
				if err == nil {
					err = d.parseState(spec, i, c.dst, mine, steps)
				}
				h.partDone(err)
			}
		}
		d.submit(p, c)
	}
	return h
}

// stateSpec returns what the form of a state depends on.
func (d *declared) stateSpec() storage.Spec {
	return storage.Spec{Name: d.spec.Name, DType: d.spec.DType, Optimizer: d.optimizer}
}

// parseState copies the state of part i to planes. All parts have made equally many updates.
func (d *declared) parseState(spec storage.Spec, i int, state []byte, planes [][]byte, steps *int64) error {
	p := &d.parts[i]
	n, err := spec.ParseState(state, int64(p.first), p.count, planes)
	if err == nil && i == 0 {
		*steps = n
	}
	return err
}

// checkState returns what is wrong with a SetState or PullState of the part, or "".
func (p *shard) checkState(q *message.Request, size int) string {
	if p.table != nil || p.spec.Mode != part.Synchronous {
		return fmt.Sprintf("got kind %d for %s, want it for a synchronous dense tensor", q.Kind, describe(&p.spec))
	}
	want := 0
	if q.Kind == message.SetState {
		want = p.dense.StateSize()
	}
	if size != want {
		return fmt.Sprintf("got %d bytes, want %d", size, want)
	}
	return ""
}

// assign carries out a Set or a SetState, on the primary or on a replica.
func (p *shard) assign(j *job) error {
	if j.q.Kind == message.SetState || j.q.Kind == message.Replicate && j.q.Entry&message.WholeState != 0 {
		return p.dense.Load(bytes.NewReader(j.body))
	}
	return p.dense.Set(j.body)
}

// answerState answers a PullState.
func (p *shard) answerState(j *job, version uint64) {
	value := p.s.n.pool.get(p.dense.StateSize())
	save := p.dense.Save()
	defer save.Close()
	_, err := save.WriteTo(bytes.NewBuffer(value.Bytes()[:0])) // there is room for it
	p.finish(j, version, value.Bytes(), value, err)
}
