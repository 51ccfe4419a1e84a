package rdma

import "errors"

// A Status is how a work request ended: enum ibv_wc_status of libibverbs.
type Status uint8

// The statuses that devices report in practice; all but Success end the queue pair.
const (
	Success          Status = 0
	LocalLength      Status = 1
	LocalQueuePairOp Status = 2
	LocalProtection  Status = 4
	Flushed          Status = 5
	BadResponse      Status = 7
	RemoteInvalid    Status = 9
	RemoteAccess     Status = 10
	RemoteOp         Status = 11
	RetryExceeded    Status = 12
	RNRExceeded      Status = 13
	Fatal            Status = 19
	General          Status = 21
)

// ErrOverrun is the error of a completion queue that has lost a completion.
var ErrOverrun = errors.New("the completion queue has overrun; report this as a bug")
