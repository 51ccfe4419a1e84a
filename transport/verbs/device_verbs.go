//go:build verbs && linux && cgo

package verbs

// #cgo LDFLAGS: -libverbs
// #include "device_verbs.h"
import "C"

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/tutti-go/tutti/internal/headroom"
	"github.com/tutti-go/tutti/transport/verbs/internal/rdma"
)

// Built reports whether this program was built with libibverbs.
const Built = true

const (
	// inlineBytes is the number of bytes that should be sent inline. It covers a message with a
	// short body.
	inlineBytes = 220
	// batchSize is the maximum number of work requests that one call of the device posts.
	batchSize = 16
)

// An ibDevice is a device of libibverbs. Each of its waiters waits for the events of some of its
// completion queues.
type ibDevice struct {
	selection *selection
	config    *config
	context   *C.struct_ibv_context
	pd        *C.struct_ibv_pd
	waiters   []*waiter // immutable after open
	events    *os.File  // asynchronous events; nil: not opened
	asyncDone chan struct{}
	down      atomic.Bool // the last event of the port was that it is down

	mu         sync.Mutex // guards the rest
	queuePairs map[uintptr]*ibQueuePair
	last       uintptr
	load       []int // number of completion queues, by waiter
}

// withDevices calls do with the list of this host's devices.
func withDevices(do func([]*C.struct_ibv_device) error) error {
	var n C.int
	list, err := C.ibv_get_device_list(&n)
	if list == nil {
		return fmt.Errorf("list devices: %w; check that the kernel module ib_uverbs is loaded", err)
	}
	defer C.ibv_free_device_list(list)
	return do(unsafe.Slice(list, int(n)))
}

// openDevice opens the device that choose selects, and starts its waiters.
func openDevice(w *config) (d rdma.Device, err error) {
	err = withDevices(func(list []*C.struct_ibv_device) error {
		p, _, err := choose(describeAll(list), w)
		if err != nil {
			return err
		}
		h := &ibDevice{selection: p, config: w, queuePairs: make(map[uintptr]*ibQueuePair), asyncDone: make(chan struct{})}
		if err := h.open(list[p.device]); err != nil {
			h.release()
			return fmt.Errorf("%v: %w", p, err)
		}
		// The goroutines start last, so that the call of release above need not stop them.
		for _, w := range h.waiters {
			go h.wait(w)
		}
		go h.watchAsync()
		d = h
		return nil
	})
	return d, err
}

// explainDevices returns the explanation that choose gives for the devices of this host.
func explainDevices(w *config) (why []string, err error) {
	err = withDevices(func(list []*C.struct_ibv_device) (err error) {
		_, why, err = choose(describeAll(list), w)
		return err
	})
	return why, err
}

// describeAll returns the data about the devices that choose needs.
func describeAll(list []*C.struct_ibv_device) []deviceInfo {
	infos := make([]deviceInfo, len(list))
	for i, dev := range list {
		infos[i].name = C.GoString(C.ibv_get_device_name(dev))
		infos[i].ports, infos[i].err = portsOf(dev)
	}
	return infos
}

// portsOf queries the ports and GIDs of a device.
func portsOf(dev *C.struct_ibv_device) ([]portInfo, error) {
	context, err := C.ibv_open_device(dev)
	if context == nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	defer C.ibv_close_device(context)
	var a C.struct_ibv_device_attr
	if rc := C.ibv_query_device(context, &a); rc != 0 {
		return nil, fmt.Errorf("query: %w", syscall.Errno(rc))
	}
	ports := make([]portInfo, a.phys_port_cnt)
	for i := range ports {
		var port C.struct_ibv_port_attr
		n := C.uint8_t(i + 1)
		if rc := C.tutti_query_port(context, n, &port); rc != 0 {
			return nil, fmt.Errorf("query port %d: %w", n, syscall.Errno(rc))
		}
		ports[i] = portInfo{number: i + 1, active: port.state == C.IBV_PORT_ACTIVE, mtu: uint8(port.active_mtu), lid: uint16(port.lid)}
		for index := range C.int(port.gid_tbl_len) {
			g := gidInfo{index: int(index)}
			var kind C.uint32_t
			if C.tutti_gid(context, n, index, (*C.uint8_t)(&g.gid[0]), &kind) == 0 && g.gid != [16]byte{} {
				g.roce = map[C.uint32_t]int{C.IBV_GID_TYPE_ROCE_V1: 1, C.IBV_GID_TYPE_ROCE_V2: 2}[kind]
				ports[i].gids = append(ports[i].gids, g)
			}
		}
	}
	return ports, nil
}

// open opens the device, its asynchronous events, a protection domain and the waiters. If it
// fails, the caller calls release.
func (d *ibDevice) open(dev *C.struct_ibv_device) (err error) {
	if d.context, err = C.ibv_open_device(dev); d.context == nil {
		return fmt.Errorf("open: %w", err)
	}
	// Each device has a separate descriptor for asynchronous events.
	if d.events, err = pollable(int(d.context.async_fd), "events of "+d.selection.name); err != nil {
		return fmt.Errorf("events: %w", err)
	}
	if d.pd, err = C.ibv_alloc_pd(d.context); d.pd == nil {
		return fmt.Errorf("protection domain: %w", err)
	}
	d.load = make([]int, max(d.config.waiters, 1))
	for range d.load {
		w := &waiter{ended: make(chan struct{})}
		d.waiters = append(d.waiters, w)
		if err := d.openWaiter(w); err != nil {
			return err
		}
	}
	return nil
}

// Describe implements rdma.Device.
func (d *ibDevice) Describe() string {
	if d.down.Load() {
		return d.selection.String() + ", whose port is down"
	}
	return d.selection.String()
}

// Network implements rdma.Device.
func (d *ibDevice) Network() string { return d.selection.network() }

// Alloc implements rdma.Device. The memory is outside the Go heap.
func (d *ibDevice) Alloc(size int, remote bool) (*rdma.Region, error) {
	mem, free, err := d.Memory(size)
	if err != nil {
		return nil, err
	}
	r, err := d.Register(mem, remote)
	if err != nil {
		free()
		return nil, err
	}
	drop := r.Deregister
	r.Deregister = func() error { return errors.Join(drop(), free()) }
	return r, nil
}

// Memory implements rdma.Device. It refuses to allocate more than half of the free memory of the
// host. Pinning touches all pages, and if memory runs out, the kernel kills processes instead of
// returning an error.
func (d *ibDevice) Memory(size int) ([]byte, func() error, error) {
	if err := headroom.Check(int64(size)); err != nil {
		return nil, nil, err
	}
	mem, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		return nil, nil, err
	}
	return mem, func() error { return syscall.Munmap(mem) }, nil
}

// Register implements rdma.Device. It pins b for the garbage collector and for the device. Local
// access includes writes by the device, which receives need.
func (d *ibDevice) Register(b []byte, remote bool) (*rdma.Region, error) {
	pin := new(runtime.Pinner)
	pin.Pin(unsafe.SliceData(b))
	// Remote access is granted only on request, because a peer needs no key for memory that this
	// end only sends.
	access := C.int(C.IBV_ACCESS_LOCAL_WRITE)
	if remote {
		access |= C.IBV_ACCESS_REMOTE_WRITE
	}
	mr, err := C.tutti_reg_mr(d.pd, C.uintptr_t(rdma.AddressOf(b)), C.size_t(len(b)), access)
	if mr == nil {
		pin.Unpin()
		return nil, fmt.Errorf("%s: ibv_reg_mr: %w", d.selection.name, err)
	}
	return &rdma.Region{Mem: b, Addr: rdma.AddressOf(b), LKey: uint32(mr.lkey), RKey: uint32(mr.rkey), Deregister: func() error {
		defer pin.Unpin()
		if rc := C.ibv_dereg_mr(mr); rc != 0 {
			return fmt.Errorf("%s: ibv_dereg_mr: %w", d.selection.name, syscall.Errno(rc))
		}
		return nil
	}}, nil
}

// Close implements rdma.Device. It ends the goroutines before it releases the device, because
// they use its channels.
func (d *ibDevice) Close() error {
	for _, w := range d.waiters {
		w.events.Close()
		<-w.ended
	}
	d.events.Close()
	<-d.asyncDone
	return d.release()
}

// release frees what open allocated. Closing the device fails while any of its objects still
// exist.
func (d *ibDevice) release() error {
	var errs []error
	check := func(what string, rc C.int) {
		if rc != 0 {
			errs = append(errs, fmt.Errorf("%s: %s: %w", d.selection.name, what, syscall.Errno(rc)))
		}
	}
	for _, w := range d.waiters {
		if w.events != nil {
			// After the Close of the device, this is a second call, which does nothing.
			w.events.Close()
		}
		if w.channel != nil {
			check("ibv_destroy_comp_channel", C.ibv_destroy_comp_channel(w.channel))
		}
	}
	if d.events != nil {
		d.events.Close() // possibly a second call, too
	}
	if d.pd != nil {
		check("ibv_dealloc_pd", C.ibv_dealloc_pd(d.pd))
	}
	if d.context != nil {
		check("ibv_close_device", C.ibv_close_device(d.context))
	}
	return errors.Join(errs...)
}

// An ibQueuePair is a queue pair of libibverbs.
type ibQueuePair struct {
	device     *ibDevice
	number     uintptr
	notify     func()
	ended      atomic.Pointer[error] // error of an asynchronous event; nil: none
	waiter     int
	cq         *C.struct_ibv_cq
	qp         *C.struct_ibv_qp
	psn        uint32
	inlineRoom int // most bytes of an inline work request
	batch      [batchSize]C.tutti_work
	done       [batchSize]C.tutti_done
}

// NewQueuePair implements rdma.Device. It assigns the queue pair to the least loaded waiter. C
// code identifies the queue pair by its number, because C must not keep a Go pointer.
func (d *ibDevice) NewQueuePair(depth int, notify func()) (rdma.QueuePair, error) {
	var b [4]byte
	rand.Read(b[:])
	// Completion events name the queue pair by this number. The number must be in queuePairs
	// before an event can arrive.
	d.mu.Lock()
	d.last++
	p := &ibQueuePair{device: d, number: d.last, notify: notify, psn: binary.LittleEndian.Uint32(b[:]) & 0xFFFFFF}
	d.queuePairs[p.number] = p
	p.waiter = leastLoaded(d.load)
	d.load[p.waiter]++
	d.mu.Unlock()
	err := p.open(depth)
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// open makes the completion queue and the queue pair in state INIT, in which it can receive.
func (p *ibQueuePair) open(depth int) (err error) {
	d := p.device
	if p.cq, err = C.tutti_create_cq(d.context, C.int(2*depth+2), C.uintptr_t(p.number), d.waiters[p.waiter].channel, C.int(p.waiter)); p.cq == nil {
		return fmt.Errorf("ibv_create_cq: %w", err)
	}
	// The device reports how many inline bytes it grants, which may be more than requested.
	inlined := C.uint32_t(inlineBytes)
	if p.qp, err = C.tutti_create_qp(d.pd, p.cq, C.uintptr_t(p.number), C.uint32_t(depth), &inlined); p.qp == nil {
		inlined = 0 // the device may refuse this number of inline bytes; try without inline bytes
		p.qp, err = C.tutti_create_qp(d.pd, p.cq, C.uintptr_t(p.number), C.uint32_t(depth), &inlined)
	}
	if p.qp == nil {
		return fmt.Errorf("ibv_create_qp: %w", err)
	}
	p.inlineRoom = int(inlined)
	if rc := C.tutti_init(p.qp, C.uint8_t(d.selection.port.number), C.uint16_t(d.config.pkey)); rc != 0 {
		return fmt.Errorf("ibv_modify_qp to INIT: %w", syscall.Errno(rc))
	}
	return nil
}

// Local implements rdma.QueuePair.
func (p *ibQueuePair) Local() rdma.Address {
	c := p.device.selection
	return rdma.Address{GID: c.gid.gid, QPN: uint32(p.qp.qp_num), PSN: p.psn, LID: c.port.lid, MTU: p.device.mtu()}
}

// mtu returns the MTU that this end proposes. The two ends use the smaller of their proposals.
func (d *ibDevice) mtu() uint8 {
	if m := mtuOf(d.config.mtu); m != 0 {
		return min(m, d.selection.port.mtu)
	}
	return d.selection.port.mtu
}

// Connect implements rdma.QueuePair. It moves the queue pair through the states RTR and RTS.
func (p *ibQueuePair) Connect(peer rdma.Address) error {
	c, w := p.device.selection, p.device.config
	path := C.tutti_path{qpn: C.uint32_t(peer.QPN), their_psn: C.uint32_t(peer.PSN), psn: C.uint32_t(p.psn),
		gid_index: C.uint32_t(c.gid.index), lid: C.uint16_t(peer.LID), port: C.uint8_t(c.port.number),
		mtu: C.uint8_t(min(peer.MTU, p.device.mtu())), traffic_class: C.uint8_t(w.class), service_level: C.uint8_t(w.level),
		timeout: C.uint8_t(w.timeout), retries: C.uint8_t(w.retries), rnr_retries: C.uint8_t(w.rnr)}
	for i, b := range peer.GID {
		path.gid[i] = C.uint8_t(b)
	}
	if rc := C.tutti_connect(p.qp, &path); rc != 0 {
		return fmt.Errorf("ibv_modify_qp: %w", syscall.Errno(rc))
	}
	return nil
}

// Receive implements rdma.QueuePair.
func (p *ibQueuePair) Receive(id uint64, r *rdma.Region, mem []byte) error {
	if rc := C.tutti_recv(p.qp, C.uint64_t(id), C.uint64_t(rdma.AddressOf(mem)), C.uint32_t(len(mem)), C.uint32_t(r.LKey)); rc != 0 {
		return fmt.Errorf("ibv_post_recv: %w", syscall.Errno(rc))
	}
	return nil
}

// Send implements rdma.QueuePair. It posts batches of batchSize work requests with one call into
// C per batch, because a call costs about as much as a work request.
func (p *ibQueuePair) Send(ws []rdma.WorkRequest) error {
	for len(ws) > 0 {
		n := min(len(ws), batchSize)
		for i := range ws[:n] {
			p.batch[i] = cWorkRequest(&ws[i])
		}
		if rc := C.tutti_send(p.qp, &p.batch[0], C.int(n)); rc != 0 {
			return fmt.Errorf("ibv_post_send: %w", syscall.Errno(rc))
		}
		ws = ws[n:]
	}
	return nil
}

// cWorkRequest converts w for C.
func cWorkRequest(w *rdma.WorkRequest) C.tutti_work {
	h := C.tutti_work{id: C.uint64_t(w.ID), len: C.uint32_t(len(w.Mem)), lkey: C.uint32_t(w.LKey),
		raddr: C.uint64_t(w.RemoteAddr), rkey: C.uint32_t(w.RKey), imm: C.uint32_t(w.Imm)}
	if len(w.Mem) > 0 {
		h.addr = C.uint64_t(rdma.AddressOf(w.Mem))
	}
	switch {
	case w.NoImm:
		h.opcode = C.IBV_WR_RDMA_WRITE
	case w.Write:
		h.opcode = C.IBV_WR_RDMA_WRITE_WITH_IMM
	default:
		h.opcode = C.IBV_WR_SEND
	}
	if w.Signaled {
		h.flags = C.IBV_SEND_SIGNALED
	}
	if w.Inline {
		h.flags |= C.IBV_SEND_INLINE
	}
	return h
}

// Poll implements rdma.QueuePair. The loop over spins runs in C, because one call into C per
// spin would cost more than the check itself.
func (p *ibQueuePair) Poll(into []rdma.Completion, spins int) (int, error) {
	n := int(C.tutti_poll(p.cq, &p.done[0], C.int(min(len(into), batchSize)), C.int(spins)))
	if n < 0 {
		return 0, errors.New("ibv_poll_cq failed: the completion queue may have overrun; report this as a bug")
	}
	// Completions are returned before the error of an event, because they may have more detail.
	if n == 0 {
		if err := p.ended.Load(); err != nil {
			return 0, *err
		}
	}
	for i := range n {
		d := &p.done[i]
		into[i] = rdma.Completion{ID: uint64(d.id), Recv: d.recv != 0, Write: d.write != 0, Status: rdma.Status(d.status),
			Vendor: uint32(d.vendor), Bytes: int(d.bytes), Imm: uint32(d.imm)}
	}
	return n, nil
}

// Inline implements rdma.QueuePair.
func (p *ibQueuePair) Inline() int { return p.inlineRoom }

// Arm implements rdma.QueuePair.
func (p *ibQueuePair) Arm() error {
	if rc := C.tutti_notify(p.cq); rc != 0 {
		return fmt.Errorf("ibv_req_notify_cq: %w", syscall.Errno(rc))
	}
	return nil
}

// Close implements rdma.QueuePair. No further event is dispatched to the queue pair.
func (p *ibQueuePair) Close() error {
	// Events that are already being dispatched may still call notify, which does no harm after
	// Close.
	p.device.mu.Lock()
	delete(p.device.queuePairs, p.number)
	p.device.load[p.waiter]--
	p.device.mu.Unlock()
	var errs []error
	if p.qp != nil {
		if rc := C.ibv_destroy_qp(p.qp); rc != 0 {
			errs = append(errs, fmt.Errorf("ibv_destroy_qp: %w", syscall.Errno(rc)))
		}
	}
	if p.cq != nil {
		if rc := C.ibv_destroy_cq(p.cq); rc != 0 {
			errs = append(errs, fmt.Errorf("ibv_destroy_cq: %w", syscall.Errno(rc)))
		}
	}
	return errors.Join(errs...)
}

var _ rdma.Device = (*ibDevice)(nil)
