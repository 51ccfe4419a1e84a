package coordinator

import (
	"context"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator/negotiate"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/tensor"
)

// A Future is an operation in flight outside of the coordinator. A Handle of package ps is one.
type Future interface {
	Done() <-chan struct{}          // closed when the operation is done
	Wait(ctx context.Context) error // returns the operation's error
}

// DeclarePushPull prepares a push of n elements to parameter servers and a pull of the result. Rank
// 0 orders the transfer among the other operations, by priority and within the credit. When the
// transfer's turn comes, the coordinator calls begin on each rank, on a goroutine of its own. The
// function begin starts the transfer and must not block. The handle is done when the transfer is
// done.
//
// Each Submit begins one transfer, after all ranks have submitted the name. All ranks begin their
// transfers in one order. Transfers overlap with one another and with collectives.
//
// If a transfer fails, the coordinator ends with this error on all ranks, because other ranks may
// wait for the transfer. If the coordinator ends for another reason, all handles are done at once,
// but a transfer may still be in flight and use its buffers. Close does not wait for such
// transfers.
func DeclarePushPull[T comm.Element](co *Coordinator, name string, n int, begin func() Future, opts ...CallOption) *Handle {
	h := co.declare(&request{kind: negotiate.PushPull, name: name, dtype: tensor.TypeOf[T](), count: n, root: -1}, opts)
	if begin == nil && h.invalid == nil {
		h.invalid = fault.New(fault.Misuse, h.describe(), co.worldRank(co.rank), "begin: got nil, want a function")
	}
	h.begin = begin
	return h
}

// transfer begins the transfer of a Bucket, which has one tensor. It returns at once.
func (x *executor) transfer(b *negotiate.Bucket, times bucketTimes) error {
	items, err := x.lookup(b)
	if err != nil {
		return err
	}
	it := items[0]
	t := it.h.begin()
	times.packed = times.started
	x.transfers.Go(func() {
		<-t.Done()
		if err := t.Wait(context.Background()); err != nil {
			x.mu.Lock()
			if x.transferErr == nil {
				x.transferErr = err
			}
			x.mu.Unlock()
			x.co.post(event{err: err})
			x.co.processEvents()
			return
		}
		x.record(b, []item{it}, times)
		x.finished(b)
	})
	return nil
}
