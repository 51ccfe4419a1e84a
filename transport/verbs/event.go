package verbs

import (
	"errors"
	"fmt"

	"github.com/tutti-go/tutti/transport/verbs/internal/rdma"
)

// An event is the type of an asynchronous event of a device (ibv_get_async_event). The values are
// those of enum ibv_event_type in libibverbs.
type event uint32

// The events that this package distinguishes.
const (
	queueOverran     event = 0
	queuePairFatal   event = 1
	queuePairRequest event = 2
	queuePairAccess  event = 3
	deviceFatal      event = 8
	portActive       event = 9
	portError        event = 10
)

// endsQueuePair reports whether the event ends its queue pairs. A port that is down does not end a
// queue pair, because the port may be up again before the retries end.
func (e event) endsQueuePair() bool {
	switch e {
	case queueOverran, queuePairFatal, queuePairRequest, queuePairAccess, deviceFatal:
		return true
	}
	return false
}

// err explains the event and names the remedy.
func (e event) err() error {
	switch e {
	case queueOverran:
		return rdma.ErrOverrun
	case queuePairFatal:
		return errors.New("the device has closed the queue pair; look at the kernel's log (dmesg)")
	case queuePairRequest, queuePairAccess:
		return errors.New("the device has refused a request of the peer's; look for the error at the peer")
	case deviceFatal:
		return errors.New("the device has failed; look at the kernel's log (dmesg)")
	}
	return fmt.Errorf("unknown device event %d", e)
}
