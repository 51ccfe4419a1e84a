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
func (d *ibDevice) openWaiter(w *waiter) (err error) {
	if w.channel, err = C.ibv_create_comp_channel(d.context); w.channel == nil {
		return fmt.Errorf("completion channel: %w", err)
	}
	if w.events, err = pollable(int(w.channel.fd), "completion channel of "+d.selection.name); err != nil {
		return fmt.Errorf("completion channel: %w", err)
	}
	return nil
}

// pollable is a descriptor of what fd is one of, in Go's poller, which may close it.
func pollable(fd int, name string) (*os.File, error) {
	// In one call: a process that is started between a dup and a close-on-exec would
	// inherit it.
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

// wait hands events to the pairs that they are for, until close.
func (d *ibDevice) wait(w *waiter) {
	defer close(w.ended)
	raw, err := w.events.SyscallConn()
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
		if p != nil {
			p.notify()
		}
	}
}

// watchAsync passes on the events that are of no work, until close.
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

// handleEvent acts on one event: of a pair, a port, or, where both are 0, the device.
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
	err := e.err()
	for _, p := range ended {
		p.ended.CompareAndSwap(nil, &err)
		p.notify()
	}
}
