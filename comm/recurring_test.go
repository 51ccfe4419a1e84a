package comm_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/comm"
	rdma "github.com/tutti-go/tutti/transport/verbs"
)

// recurringModes are the ways in which recurring tensors can travel.
var recurringModes = []struct {
	name    string
	plain   bool // without the means by which verbs saves messages
	one     bool // one message at a time
	inPlace bool // received into the prepared buffer, without a copy
	opts    []comm.Option
}{
	{"six messages, one at a time", true, true, false, []comm.Option{comm.WithParameters(comm.Parameters{Protocol: "rendezvous"})}},
	{"six messages", true, false, false, []comm.Option{comm.WithParameters(comm.Parameters{Protocol: "rendezvous"})}},
	{"requested", false, false, false, []comm.Option{comm.WithParameters(comm.Parameters{Protocol: "rendezvous"})}},
	{"eager", false, false, false, []comm.Option{comm.WithParameters(comm.Parameters{Protocol: "eager"})}},
	{"prepared", false, false, true, []comm.Option{comm.WithParameters(comm.Parameters{Protocol: "rendezvous", StaticTensors: 1 << 30})}},
}

// BenchmarkRecurringTensors measures a step of 100 tensors from one rank to another, over software
// devices. The devices copy within the memory of one machine.
func BenchmarkRecurringTensors(b *testing.B) {
	benchRecurring(b, overSoftware)
}

// BenchmarkDeviceRecurringTensors measures the same step over a device of the kernel.
func BenchmarkDeviceRecurringTensors(b *testing.B) {
	if _, err := rdma.Explain(); err != nil {
		// Reason: the benchmark measures a real device.
		b.Skipf("there is no usable RDMA device: %v", err)
	}
	benchRecurring(b, onDevice)
}

func benchRecurring(b *testing.B, over func() []comm.Option) {
	const tensors = 100
	for _, size := range []int{64 << 10, 256 << 10} {
		for _, way := range recurringModes {
			b.Run(fmt.Sprintf("%d KiB/%s", size>>10, way.name), func(b *testing.B) {
				if way.plain {
					for _, v := range []string{"BUFFER=256", "STRIP=-1", "CACHE=-1", "FRESH=1"} {
						name, value, _ := strings.Cut(v, "=")
						b.Setenv("TUTTI_VERBS_"+name, value)
					}
				}
				if way.one {
					b.Setenv("TUTTI_VERBS_DEPTH", "3") // the smallest depth
				}
				b.SetBytes(int64(tensors * size))
				err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
					return recurringSteps(ctx, b, c, newTensorSet(tensors, size, way.inPlace))
				}, append(over(), way.opts...)...)
				if err != nil {
					b.Error(err)
				}
			})
		}
	}
}

// A tensorSet holds the tensors of a step.
type tensorSet struct {
	names   []string
	buffers [][]byte
	inPlace bool
}

func newTensorSet(tensors, size int, inPlace bool) *tensorSet {
	s := &tensorSet{inPlace: inPlace}
	for i := range tensors {
		s.names = append(s.names, fmt.Sprintf("layer%d/weights", i))
		s.buffers = append(s.buffers, make([]byte, size))
	}
	return s
}

// recurringSteps sends a set of tensors from rank 0 to rank 1 at each step. Rank 1 answers when it
// has received all of them. The first steps, in which receives are prepared, are not measured.
func recurringSteps(ctx context.Context, b *testing.B, c *comm.Comm, s *tensorSet) error {
	const warm = 6
	n := 0
	if c.Rank() == 1 {
		for ; ; n++ {
			var more [1]byte
			if _, err := comm.Recv(ctx, c, 0, 1, more[:]); err != nil || more[0] == 0 {
				return err
			}
			if err := s.receive(ctx, c, uint64(n)); err != nil {
				return err
			}
			if err := comm.Send(ctx, c, 0, 2, more[:]); err != nil {
				return err
			}
		}
	}
	step := func() error {
		if err := comm.Send(ctx, c, 1, 1, []byte{1}); err != nil {
			return err
		}
		err := s.send(c, uint64(n))
		n++
		if _, also := comm.Recv(ctx, c, 1, 2, make([]byte, 1)); also != nil {
			err = errors.Join(err, also)
		}
		return err
	}
	var errs []error
	for range warm {
		errs = append(errs, step())
	}
	for b.Loop() {
		errs = append(errs, step())
	}
	return errors.Join(append(errs, comm.Send(ctx, c, 1, 1, []byte{0}))...)
}

func (s *tensorSet) send(c *comm.Comm, step uint64) error {
	for i, name := range s.names {
		s.buffers[i][0] = byte(step)
		if err := c.SendNamed(step, 1, name, comm.NewTensor(s.buffers[i]), nil); err != nil {
			return err
		}
	}
	return nil
}

func (s *tensorSet) receive(ctx context.Context, c *comm.Comm, step uint64) error {
	for i, name := range s.names {
		var buf []byte
		if !s.inPlace {
			buf = s.buffers[i]
		}
		t, err := c.RecvNamed(ctx, step, 0, name, buf)
		if err != nil {
			return err
		}
		if len(t.Data) != len(s.buffers[i]) || t.Data[0] != byte(step) {
			return fmt.Errorf("%s of step %d: %d bytes that begin with %d", name, step, len(t.Data), t.Data[0])
		}
		t.Release()
	}
	return nil
}
