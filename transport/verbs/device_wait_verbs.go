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

// A waiter is a goroutine that waits for the completion events of some queue pairs. It sleeps in
// the poller of the Go runtime, so it occupies no thread. One waiter is enough unless the device
// has several interrupt vectors (TUTTI_VERBS_WAITERS).
type waiter struct {
	channel *C.struct_ibv_comp_channel
	events  *os.File // the channel's descriptor in Go's poller; nil: not opened
	ended   chan struct{}
}

// openWaiter creates the completion channel of w and registers its descriptor with the poller of
// the Go runtime. Close can interrupt a wait in the poller.
func (d *ibDevice) openWaiter(w *waiter) (err error) {
	if w.channel, err = C.ibv_create_comp_channel(d.context); w.channel == nil {
		return fmt.Errorf("completion channel: %w", err)
	}
	if w.events, err = pollable(int(w.channel.fd), "completion channel of "+d.selection.name); err != nil {
		return fmt.Errorf("completion channel: %w", err)
	}
	return nil
}

// pollable duplicates fd for the poller of the Go runtime. Closing the returned file closes the
// duplicate, not fd.
func pollable(fd int, name string) (*os.File, error) {
	// One call duplicates the descriptor and sets close-on-exec. With two calls, a process
	// started between them would inherit the descriptor.
	fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := syscall.SetNonblock(fd, true); err != nil {
		syscall.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// wait dispatches completion events to their queue pairs until Close.
func (d *ibDevice) wait(w *waiter) {
	defer close(w.ended)
	raw, err := w.events.SyscallConn()
	// The poller calls read when the descriptor is readable. If read returns false (EAGAIN), the
	// poller waits again. Closing the descriptor ends the wait with an error.
	var pair C.uintptr_t
	var rc C.int
	read := func(uintptr) bool {
		rc = C.tutti_event(w.channel, &pair)
		return rc != C.EAGAIN
	}
	for err == nil {
		if err = raw.Read(read); err != nil || rc != 0 {
			return
		}
		d.mu.Lock()
		p := d.queuePairs[uintptr(pair)]
		d.mu.Unlock()
		// The queue pair may have been closed meanwhile.
		if p != nil {
			p.notify()
		}
	}
}

// watchAsync dispatches asynchronous events until Close.
func (d *ibDevice) watchAsync() {
	defer close(d.asyncDone)
	raw, err := d.events.SyscallConn()
	var kind, port C.uint32_t
	var pair C.uintptr_t
	var rc C.int
	read := func(uintptr) bool {
		rc = C.tutti_async(d.context, &kind, &pair, &port)
		return rc != C.EAGAIN
	}
	for err == nil {
		if err = raw.Read(read); err != nil || rc != 0 {
			return
		}
		d.handleEvent(event(kind), uintptr(pair), int(port))
	}
}

// handleEvent applies one asynchronous event. The event is about a queue pair if pair is not 0,
// about a port if port is not 0, and otherwise about the device.
func (d *ibDevice) handleEvent(e event, pair uintptr, port int) {
	if port == d.selection.port.number && (e == portError || e == portActive) {
		d.down.Store(e == portError)
	}
	if !e.endsQueuePair() {
		return
	}
	var ended []*ibQueuePair
	d.mu.Lock()
	for n, p := range d.queuePairs {
		if pair == 0 || n == pair {
			ended = append(ended, p)
		}
	}
	d.mu.Unlock()
	// notify is called without mu, because it may take locks of the transport.
	err := e.err()
	for _, p := range ended {
		p.ended.CompareAndSwap(nil, &err)
		p.notify()
	}
}
