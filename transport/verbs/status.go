package verbs

import (
	"fmt"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport/verbs/internal/rdma"
)

// A statusText explains a status: its name in libibverbs, the most likely cause, and the
// remedy.
type statusText struct{ name, cause, remedy string }

// statusTexts explains the statuses. docs/verbs.md has the same remedies in a table.
var statusTexts = map[rdma.Status]statusText{
	rdma.LocalLength:      {"local length error", "a message was longer than the buffer posted for it", "both ends must run the same version"},
	rdma.LocalQueuePairOp: {"local queue pair operation error", "the link is down, or the device was reset", "look at the port's state (ibv_devinfo) and the network interface (ip link)"},
	rdma.LocalProtection:  {"local protection error", "memory was used that is not registered", "report this as a bug"},
	rdma.Flushed:          {"work request flushed", "the queue pair had failed before", "look for the first error"},
	rdma.BadResponse:      {"bad response", "the peer's device sent an invalid response", "look at cables and firmware"},
	rdma.RemoteInvalid:    {"remote invalid request", "a message was longer than the buffer that the peer posted", "both ends must run the same version"},
	rdma.RemoteAccess:     {"remote access error", "a write went to memory that the peer no longer exposes, or never has", "no action is needed if the peer has canceled the receive"},
	rdma.RemoteOp:         {"remote operation error", "the peer's device failed", "look at the peer's log"},
	rdma.RetryExceeded:    {"transport retry counter exceeded", "the peer's process or host is gone, its link is down, or packets do not get through", "check with ibv_rc_pingpong; compare GID index, RoCE version and MTU of both ends; see that UDP port 4791 is open"},
	rdma.RNRExceeded:      {"receiver not ready, retry counter exceeded", "the peer has posted no receive", "report this as a bug"},
	rdma.Fatal:            {"fatal error", "the device failed", "look at the kernel's log (dmesg)"},
	rdma.General:          {"general error", "the driver gives no reason", "look at the kernel's log (dmesg)"},
}

// completionError returns the error of a Conn whose work request has failed. Its text names the
// device, the status as in libibverbs, the most likely cause and the remedy. The status alone would
// say little to most users.
func completionError(device string, c rdma.Completion) error {
	e, ok := statusTexts[c.Status]
	if !ok {
		e = statusText{name: "an error", cause: "the driver gives no reason", remedy: "look at the kernel's log (dmesg)"}
	}
	op := "send"
	if c.Recv {
		op = "receive"
	}
	return failure(fault.LinkLost, op, fmt.Errorf("%s: %s (status %d, vendor error %#x): probably %s; %s",
		device, e.name, c.Status, c.Vendor, e.cause, e.remedy))
}

// failure makes this package's errors. A transport does not know ranks, so Rank is -1.
func failure(k fault.Kind, op string, err error) error {
	return &fault.Error{Kind: k, Op: "verbs: " + op, Rank: -1, Err: err}
}
