package comm_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
)

// A directReceiver is a prepared receive on rank 1, for the tensors of one name from rank 0.
type directReceiver struct {
	c    *comm.Comm
	buf  []int32
	stop func(context.Context) error
}

const preparedName = "weights"

func prepareDirect(c *comm.Comm, buf []int32) (*directReceiver, error) {
	stop, err := c.PrepareRecvNamed(0, preparedName, comm.NewTensor(buf).Data)
	return &directReceiver{c, buf, stop}, err
}

// exchange sends a tensor of one step from rank 0 to rank 1. The result direct is 1 on both ranks
// if the tensor was written into the prepared buffer, and 0 otherwise. On rank 0, d is nil.
func (d *directReceiver) exchange(ctx context.Context, c *comm.Comm, step uint64, count int) (direct int, err error) {
	n := []int32{0}
	if d == nil {
		sent := make(chan error, 1)
		if err := c.SendNamed(step, 1, preparedName, comm.NewTensor(tensorOf(step, count)), func(err error) { sent <- err }); err != nil {
			return 0, err
		}
		if err := <-sent; err != nil {
			return 0, err
		}
	} else {
		got, err := c.RecvNamed(ctx, step, 0, preparedName, nil)
		if err != nil {
			return 0, err
		}
		values := comm.Values[int32](got)
		for i, want := range tensorOf(step, count) {
			if values[i] != want {
				return 0, fmt.Errorf("step %d: got %d at %d of %d elements, want %d", step, values[i], i, len(values), want)
			}
		}
		if &values[0] == &d.buf[0] {
			n[0] = 1
		}
		got.Release()
	}
	err = comm.AllReduce(ctx, c, n, comm.Sum)
	return int(n[0]), err
}

// tensorOf returns the elements of a step's tensor.
func tensorOf(step uint64, count int) []int32 {
	v := make([]int32, count)
	for i := range v {
		v[i] = int32(step)<<20 + int32(i)
	}
	return v
}

// Over shm, the buffer of a prepared receive comes from Alloc. The sender must write into the
// buffer until the receive is stopped, and free must fail before that.
func TestPreparedReceiveIntoAllocatedMemoryOverShm(t *testing.T) {
	needsSharedMemory(t)
	leak.Check(t)
	const count = 20_000
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		var d *directReceiver
		var free func() error
		if c.Rank() == 1 {
			buf, release, err := comm.Alloc[int32](c, count+100)
			if err != nil {
				return err
			}
			free = release
			if d, err = prepareDirect(c, buf); err != nil {
				return err
			}
		}
		step := uint64(0)
		for direct := 0; direct < 5; step++ {
			n, err := d.exchange(ctx, c, step, count)
			if direct += n; err != nil || step == 1000 {
				return fmt.Errorf("%d tensors of %d were written into the buffer, %w", direct, step, err)
			}
		}
		if c.Rank() == 1 {
			if err := free(); !errors.Is(err, fault.Misuse) {
				return fmt.Errorf("free before the end of the prepared receive: got %v, want misuse", err)
			}
			if err := d.stop(ctx); err != nil {
				return err
			}
			clear(d.buf)
		}
		n, err := d.exchange(ctx, c, step, count)
		if err != nil || n != 0 {
			return fmt.Errorf("after stop: %d tensors came to the buffer, %w", n, err)
		}
		if c.Rank() == 1 {
			return free()
		}
		return nil
	}, comm.WithTransportName("shm"))
	if err != nil {
		t.Error(err)
	}
}

// Over shm, a prepared receive into ordinary memory must still receive every tensor. The sender
// must not write into that memory.
func TestPreparedReceiveIntoOrdinaryMemoryOverShm(t *testing.T) {
	needsSharedMemory(t)
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) (err error) {
		var d *directReceiver
		if c.Rank() == 1 {
			if d, err = prepareDirect(c, make([]int32, 20_000)); err != nil {
				return err
			}
		}
		for step := range uint64(5) {
			n, err := d.exchange(ctx, c, step, 20_000)
			if err != nil || n > 0 {
				return fmt.Errorf("%d tensors were written into memory that shm cannot expose, %w", n, err)
			}
		}
		if d != nil {
			return d.stop(ctx)
		}
		return nil
	}, comm.WithTransportName("shm"))
	if err != nil {
		t.Error(err)
	}
}

// A rank closes while another rank writes into its prepared buffer. The sender must report that the
// receiver has closed, and not that the link has failed.
func TestSenderIntoAPreparedBufferSeesThatItsReceiverHasClosed(t *testing.T) {
	const count = 16 << 20 // 64 MiB
	for range 5 {
		direct, closed := make(chan bool), make(chan error, 1)
		err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
			if c.Rank() == 1 {
				d, err := prepareDirect(c, make([]int32, count))
				if err != nil {
					return err
				}
				for step := uint64(0); step < 1000; step++ {
					n, err := d.exchange(ctx, c, step, 20_000)
					if err != nil {
						return err
					}
					if n > 0 {
						break
					}
				}
				<-direct
				return nil // the rank closes
			}
			for step := uint64(0); step < 1000; step++ {
				n, err := (*directReceiver)(nil).exchange(ctx, c, step, 20_000)
				if err != nil {
					return err
				}
				if n > 0 {
					break
				}
			}
			err := c.SendNamed(1000, 1, preparedName, comm.NewTensor(make([]int32, count)), func(err error) { closed <- err })
			close(direct)
			if err != nil {
				return err
			}
			if err := <-closed; err != nil && !errors.Is(err, fault.Closed) {
				return fmt.Errorf("the tensor: got %w, want closed", err)
			}
			return nil
		})
		if err != nil && !errors.Is(err, fault.Closed) {
			t.Error(err)
		}
	}
}

// Two ranks have prepared receives from each other when a third one aborts. The function stop must
// not wait for the other rank, which also waits in stop.
func TestPreparationsEndAfterAnAbort(t *testing.T) {
	const size = 100_000
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		if c.Rank() == 2 {
			if err := c.Barrier(ctx); err != nil {
				return err
			}
			c.Abort(errors.New("the disk is full"))
			return nil
		}
		other := 1 - c.Rank()
		stop, err := c.PrepareRecvNamed(other, preparedName, make([]byte, size))
		if err != nil {
			return err
		}
		// The first step connects the ranks, so the second step exposes the buffer.
		for step := range uint64(3) {
			sent := make(chan error, 1)
			if err := c.SendNamed(step, other, preparedName, comm.NewTensor(make([]byte, size)), func(err error) { sent <- err }); err != nil {
				return err
			}
			got, err := c.RecvNamed(ctx, step, other, preparedName, nil)
			if err != nil {
				return err
			}
			if err := <-sent; err != nil {
				return err
			}
			got.Release()
		}
		if err := c.Barrier(ctx); err != nil {
			return err
		}
		if err := c.Barrier(ctx); err == nil {
			return errors.New("a Barrier without the rank that aborts has succeeded")
		}
		limited, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := stop(limited); errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("rank %d: the preparation has not ended: %w", c.Rank(), err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
