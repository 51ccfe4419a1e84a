//go:build verbs && linux && cgo

package verbs

// #include "device_verbs.h"
import "C"

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// A waiter is a goroutine that waits for the events of some completion queues.
type waiter struct {
	channel *C.struct_ibv_comp_channel
	events  *os.File // the channel's descriptor, in Go's poller; nil: not opened
	ended   chan struct{}
}

// openWaiter makes w's channel, and a descriptor of it that Go's poller may close.
func (d *hardDevice) openWaiter(w *waiter) (err error) {
	if w.channel, err = C.ibv_create_comp_channel(d.context); w.channel == nil {
		return fmt.Errorf("completion channel: %w", err)
	}
	// In one call: a process that is started between a dup and a close-on-exec would
	// inherit the channel.
	fd, err := unix.FcntlInt(uintptr(w.channel.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("completion channel: %w", err)
	}
	if err := syscall.SetNonblock(fd, true); err != nil {
		syscall.Close(fd)
		return err
	}
	w.events = os.NewFile(uintptr(fd), "completion channel of "+d.pick.name)
	return nil
}

// wait hands events to the pairs that they are for, until close.
func (d *hardDevice) wait(w *waiter) {
	defer close(w.ended)
	raw, err := w.events.SyscallConn()
	var pair C.uintptr_t
	var rc C.int
	take := func(uintptr) bool {
		rc = C.tutti_event(w.channel, &pair)
		return rc != C.EAGAIN
	}
	for err == nil {
		if err = raw.Read(take); err != nil || rc != 0 {
			return
		}
		d.mu.Lock()
		notify := d.pairs[uintptr(pair)]
		d.mu.Unlock()
		if notify != nil {
			notify()
		}
	}
}
