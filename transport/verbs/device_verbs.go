//go:build verbs && linux && cgo

package verbs

/*
#cgo LDFLAGS: -libverbs
#include <errno.h>
#include <string.h>
#include <infiniband/verbs.h>

// Much of verbs.h is static inline or a macro, and its unions are opaque to cgo: what
// follows is that, as functions, and nothing else. They return an errno value.

static int tutti_query_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *a) {
	return ibv_query_port(c, port, a);
}
static int tutti_gid(struct ibv_context *c, uint8_t port, int i, uint8_t *gid, uint32_t *type) {
	struct ibv_gid_entry e;
	int rc = ibv_query_gid_ex(c, port, i, &e, 0);
	if (rc == 0) {
		memcpy(gid, e.gid.raw, 16);
		*type = e.gid_type;
	}
	return rc;
}
static struct ibv_mr *tutti_reg_mr(struct ibv_pd *pd, uintptr_t p, size_t n, int access) {
	return ibv_reg_mr(pd, (void *)p, n, access);
}
static int tutti_notify(struct ibv_cq *cq) { return ibv_req_notify_cq(cq, 0); }

static struct ibv_qp *tutti_create_qp(struct ibv_pd *pd, struct ibv_cq *cq, uint32_t depth, uint32_t *inlined) {
	struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = *inlined } };
	struct ibv_qp *qp = ibv_create_qp(pd, &a);
	*inlined = a.cap.max_inline_data;
	return qp;
}
static int tutti_init(struct ibv_qp *qp, uint8_t port) {
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = port,
		.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE };
	return ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}
static int tutti_connect(struct ibv_qp *qp, uint8_t port, int gid_index, const uint8_t *gid, uint32_t qpn,
		uint32_t their_psn, uint32_t psn, uint16_t lid, int mtu, uint8_t retries) {
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTR, .path_mtu = mtu, .dest_qp_num = qpn, .rq_psn = their_psn,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12, .ah_attr = { .is_global = 1, .dlid = lid, .port_num = port,
		.grh = { .sgid_index = gid_index, .hop_limit = 64 } } };
	memcpy(a.ah_attr.grh.dgid.raw, gid, 16);
	int rc = ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
		IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (rc) return rc;
	struct ibv_qp_attr s = { .qp_state = IBV_QPS_RTS, .sq_psn = psn, .timeout = 14, .retry_cnt = retries,
		.rnr_retry = retries, .max_rd_atomic = 1 };
	return ibv_modify_qp(qp, &s, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}
static int tutti_recv(struct ibv_qp *qp, uint64_t id, uint64_t addr, uint32_t len, uint32_t lkey) {
	struct ibv_sge sge = { .addr = addr, .length = len, .lkey = lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;
	return ibv_post_recv(qp, &wr, &bad);
}

typedef struct {
	uint64_t id, addr, raddr;
	uint32_t len, lkey, rkey, imm, opcode, flags;
} tutti_work;

static int tutti_send(struct ibv_qp *qp, const tutti_work *w, int n) {
	struct ibv_send_wr wr[16], *bad;
	struct ibv_sge sge[16];
	memset(wr, 0, sizeof wr);
	for (int i = 0; i < n; i++) {
		sge[i] = (struct ibv_sge){ .addr = w[i].addr, .length = w[i].len, .lkey = w[i].lkey };
		wr[i].wr_id = w[i].id;
		wr[i].sg_list = &sge[i];
		wr[i].num_sge = w[i].len > 0;
		wr[i].opcode = w[i].opcode;
		wr[i].send_flags = w[i].flags;
		wr[i].imm_data = htobe32(w[i].imm);
		wr[i].wr.rdma.remote_addr = w[i].raddr;
		wr[i].wr.rdma.rkey = w[i].rkey;
		wr[i].next = i + 1 < n ? &wr[i + 1] : NULL;
	}
	return ibv_post_send(qp, wr, &bad);
}

typedef struct {
	uint64_t id;
	uint32_t status, vendor, bytes, imm, recv, write;
} tutti_done;

static int tutti_poll(struct ibv_cq *cq, tutti_done *d, int n) {
	struct ibv_wc wc[16];
	n = ibv_poll_cq(cq, n, wc);
	for (int i = 0; i < n; i++)
		d[i] = (tutti_done){ .id = wc[i].wr_id, .status = wc[i].status, .vendor = wc[i].vendor_err,
			.bytes = wc[i].byte_len, .imm = be32toh(wc[i].imm_data), .recv = wc[i].opcode >> 7 & 1,
			.write = wc[i].opcode == IBV_WC_RECV_RDMA_WITH_IMM };
	return n;
}
// The pair's number comes with the event, as the queue's context.
static int tutti_event(struct ibv_comp_channel *ch, uintptr_t *pair) {
	struct ibv_cq *cq;
	void *context;
	if (ibv_get_cq_event(ch, &cq, &context)) return errno;
	*pair = (uintptr_t)context;
	ibv_ack_cq_events(cq, 1);
	return 0;
}
static struct ibv_cq *tutti_create_cq(struct ibv_context *c, int n, uintptr_t pair, struct ibv_comp_channel *ch) {
	return ibv_create_cq(c, n, (void *)pair, ch, 0);
}
*/
import "C"

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"
	"unsafe"
)

// Built reports whether this program was built with libibverbs.
const Built = true

const (
	hardPort = 1
	// retries is below 7, which has some drivers try for ever.
	retries = 6
	// wantInline is how many bytes are to go inline: a message with a short body.
	wantInline = 220
	// batch is how many works go to the device in one call.
	batch = 16
)

// A hardDevice is one device of libibverbs'. One goroutine waits for its events.
type hardDevice struct {
	name    string
	context *C.struct_ibv_context
	pd      *C.struct_ibv_pd
	channel *C.struct_ibv_comp_channel
	port    C.struct_ibv_port_attr
	gid     [16]byte
	index   C.int
	events  *os.File // the channel's descriptor, in Go's poller
	ended   chan struct{}

	mu    sync.Mutex // guards the rest
	pairs map[uintptr]func()
	last  uintptr
}

// openDevice opens the first device that has a usable GID, or the one that
// TUTTI_VERBS_DEVICE names.
func openDevice() (device, error) {
	var n C.int
	list, err := C.ibv_get_device_list(&n)
	if list == nil {
		return nil, fmt.Errorf("libibverbs lists no devices: %w; is the kernel module ib_uverbs loaded?", err)
	}
	defer C.ibv_free_device_list(list)
	var tried []error
	for _, dev := range unsafe.Slice(list, int(n)) {
		name := C.GoString(C.ibv_get_device_name(dev))
		if want := os.Getenv("TUTTI_VERBS_DEVICE"); want != "" && want != name {
			continue
		}
		d := &hardDevice{name: name, ended: make(chan struct{}), pairs: make(map[uintptr]func())}
		if err := d.open(dev); err != nil {
			d.release()
			tried = append(tried, fmt.Errorf("%s: %w", name, err))
			continue
		}
		go d.wait()
		return d, nil
	}
	if tried != nil {
		return nil, errors.Join(tried...)
	}
	return nil, fmt.Errorf("none of %d devices is the one wanted (TUTTI_VERBS_DEVICE=%q); ibv_devices lists them", int(n), os.Getenv("TUTTI_VERBS_DEVICE"))
}

func (d *hardDevice) open(dev *C.struct_ibv_device) (err error) {
	if d.context, err = C.ibv_open_device(dev); d.context == nil {
		return fmt.Errorf("open: %w", err)
	}
	if rc := C.tutti_query_port(d.context, hardPort, &d.port); rc != 0 {
		return fmt.Errorf("query port: %w", syscall.Errno(rc))
	}
	if d.port.state != C.IBV_PORT_ACTIVE {
		return fmt.Errorf("port %d is not active; bring its network interface up", hardPort)
	}
	if err := d.findGID(); err != nil {
		return err
	}
	if d.pd, err = C.ibv_alloc_pd(d.context); d.pd == nil {
		return fmt.Errorf("protection domain: %w", err)
	}
	if d.channel, err = C.ibv_create_comp_channel(d.context); d.channel == nil {
		return fmt.Errorf("completion channel: %w", err)
	}
	fd, err := syscall.Dup(int(d.channel.fd))
	if err != nil {
		return err
	}
	if err := syscall.SetNonblock(fd, true); err != nil {
		syscall.Close(fd)
		return err
	}
	syscall.CloseOnExec(fd)
	d.events = os.NewFile(uintptr(fd), "completion channel of "+d.name)
	return nil
}

// findGID takes the GID of RoCE version 2 over IPv4, else any of version 2, else
// the first.
func (d *hardDevice) findGID() error {
	best := 0
	for i := range C.int(d.port.gid_tbl_len) {
		var gid [16]byte
		var kind C.uint32_t
		if C.tutti_gid(d.context, hardPort, i, (*C.uint8_t)(&gid[0]), &kind) != 0 || gid == [16]byte{} {
			continue
		}
		worth := 1
		if kind == C.IBV_GID_TYPE_ROCE_V2 {
			worth = 2
			if [12]byte(gid[:12]) == [12]byte{10: 0xFF, 11: 0xFF} {
				worth = 3
			}
		}
		if worth > best {
			best, d.gid, d.index = worth, gid, i
		}
	}
	if best == 0 {
		return errors.New("it has no GID; give its network interface an address")
	}
	return nil
}

func (d *hardDevice) describe() string { return d.name }

// alloc is memory outside Go's heap, which the collector need not keep in place.
func (d *hardDevice) alloc(size int, remote bool) (*region, error) {
	mem, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		return nil, err
	}
	r, err := d.register(mem, remote)
	if err != nil {
		syscall.Munmap(mem)
		return nil, err
	}
	drop := r.drop
	r.drop = func() error { return errors.Join(drop(), syscall.Munmap(mem)) }
	return r, nil
}

func (d *hardDevice) register(b []byte, remote bool) (*region, error) {
	pin := new(runtime.Pinner)
	pin.Pin(unsafe.SliceData(b))
	access := C.int(C.IBV_ACCESS_LOCAL_WRITE)
	if remote {
		access |= C.IBV_ACCESS_REMOTE_WRITE
	}
	mr, err := C.tutti_reg_mr(d.pd, C.uintptr_t(addressOf(b)), C.size_t(len(b)), access)
	if mr == nil {
		pin.Unpin()
		return nil, fmt.Errorf("%s: ibv_reg_mr: %w", d.name, err)
	}
	return &region{mem: b, addr: addressOf(b), lkey: uint32(mr.lkey), rkey: uint32(mr.rkey), drop: func() error {
		defer pin.Unpin()
		if rc := C.ibv_dereg_mr(mr); rc != 0 {
			return fmt.Errorf("%s: ibv_dereg_mr: %w", d.name, syscall.Errno(rc))
		}
		return nil
	}}, nil
}

// wait hands events to the pairs that they are for, until release.
func (d *hardDevice) wait() {
	defer close(d.ended)
	raw, err := d.events.SyscallConn()
	var pair C.uintptr_t
	var rc C.int
	take := func(uintptr) bool {
		rc = C.tutti_event(d.channel, &pair)
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

func (d *hardDevice) close() error {
	d.events.Close()
	<-d.ended
	return d.release()
}

// release gives back what open took; the device refuses while something is left.
func (d *hardDevice) release() error {
	var errs []error
	check := func(what string, rc C.int) {
		if rc != 0 {
			errs = append(errs, fmt.Errorf("%s: %s: %w", d.name, what, syscall.Errno(rc)))
		}
	}
	if d.channel != nil {
		check("ibv_destroy_comp_channel", C.ibv_destroy_comp_channel(d.channel))
	}
	if d.pd != nil {
		check("ibv_dealloc_pd", C.ibv_dealloc_pd(d.pd))
	}
	if d.context != nil {
		check("ibv_close_device", C.ibv_close_device(d.context))
	}
	return errors.Join(errs...)
}

// A hardPair is a queue pair of libibverbs'.
type hardPair struct {
	device *hardDevice
	number uintptr
	cq     *C.struct_ibv_cq
	qp     *C.struct_ibv_qp
	psn    uint32
	room   int // bytes that go inline
	works  [batch]C.tutti_work
	done   [batch]C.tutti_done
}

func (d *hardDevice) newPair(depth int, notify func()) (pair, error) {
	var b [4]byte
	rand.Read(b[:])
	d.mu.Lock()
	d.last++
	p := &hardPair{device: d, number: d.last, psn: binary.LittleEndian.Uint32(b[:]) & 0xFFFFFF}
	d.pairs[p.number] = notify
	d.mu.Unlock()
	err := p.open(depth)
	if err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *hardPair) open(depth int) (err error) {
	d := p.device
	if p.cq, err = C.tutti_create_cq(d.context, C.int(2*depth+2), C.uintptr_t(p.number), d.channel); p.cq == nil {
		return fmt.Errorf("ibv_create_cq: %w", err)
	}
	inlined := C.uint32_t(wantInline)
	if p.qp, err = C.tutti_create_qp(d.pd, p.cq, C.uint32_t(depth), &inlined); p.qp == nil {
		inlined = 0 // a device that takes so much does not refuse for another reason twice
		p.qp, err = C.tutti_create_qp(d.pd, p.cq, C.uint32_t(depth), &inlined)
	}
	if p.qp == nil {
		return fmt.Errorf("ibv_create_qp: %w", err)
	}
	p.room = int(inlined)
	if rc := C.tutti_init(p.qp, hardPort); rc != 0 {
		return fmt.Errorf("ibv_modify_qp to INIT: %w", syscall.Errno(rc))
	}
	return nil
}

func (p *hardPair) local() endpoint {
	d := p.device
	return endpoint{gid: d.gid, qpn: uint32(p.qp.qp_num), psn: p.psn, lid: uint16(d.port.lid), mtu: uint8(d.port.active_mtu)}
}

func (p *hardPair) connect(peer endpoint) error {
	d := p.device
	rc := C.tutti_connect(p.qp, hardPort, d.index, (*C.uint8_t)(&peer.gid[0]), C.uint32_t(peer.qpn), C.uint32_t(peer.psn),
		C.uint32_t(p.psn), C.uint16_t(peer.lid), C.int(min(peer.mtu, uint8(d.port.active_mtu))), retries)
	if rc != 0 {
		return fmt.Errorf("ibv_modify_qp: %w", syscall.Errno(rc))
	}
	return nil
}

func (p *hardPair) receive(id uint64, r *region, mem []byte) error {
	if rc := C.tutti_recv(p.qp, C.uint64_t(id), C.uint64_t(addressOf(mem)), C.uint32_t(len(mem)), C.uint32_t(r.lkey)); rc != 0 {
		return fmt.Errorf("ibv_post_recv: %w", syscall.Errno(rc))
	}
	return nil
}

func (p *hardPair) send(ws []work) error {
	for len(ws) > 0 {
		n := min(len(ws), batch)
		for i := range ws[:n] {
			p.works[i] = hardWork(&ws[i])
		}
		if rc := C.tutti_send(p.qp, &p.works[0], C.int(n)); rc != 0 {
			return fmt.Errorf("ibv_post_send: %w", syscall.Errno(rc))
		}
		ws = ws[n:]
	}
	return nil
}

func hardWork(w *work) C.tutti_work {
	h := C.tutti_work{id: C.uint64_t(w.id), len: C.uint32_t(len(w.mem)), lkey: C.uint32_t(w.lkey),
		raddr: C.uint64_t(w.raddr), rkey: C.uint32_t(w.rkey), imm: C.uint32_t(w.imm)}
	if len(w.mem) > 0 {
		h.addr = C.uint64_t(addressOf(w.mem))
	}
	switch {
	case w.silent:
		h.opcode = C.IBV_WR_RDMA_WRITE
	case w.write:
		h.opcode = C.IBV_WR_RDMA_WRITE_WITH_IMM
	default:
		h.opcode = C.IBV_WR_SEND
	}
	if w.signaled {
		h.flags = C.IBV_SEND_SIGNALED
	}
	if w.inline {
		h.flags |= C.IBV_SEND_INLINE
	}
	return h
}

func (p *hardPair) poll(into []completion) (int, error) {
	n := int(C.tutti_poll(p.cq, &p.done[0], C.int(min(len(into), batch))))
	if n < 0 {
		return 0, errors.New("ibv_poll_cq failed; the completion queue may have overrun")
	}
	for i := range n {
		d := &p.done[i]
		into[i] = completion{id: uint64(d.id), recv: d.recv != 0, write: d.write != 0, status: status(d.status),
			vendor: uint32(d.vendor), bytes: int(d.bytes), imm: uint32(d.imm)}
	}
	return n, nil
}

func (p *hardPair) inline() int { return p.room }

func (p *hardPair) arm() error {
	if rc := C.tutti_notify(p.cq); rc != 0 {
		return fmt.Errorf("ibv_req_notify_cq: %w", syscall.Errno(rc))
	}
	return nil
}

func (p *hardPair) close() error {
	p.device.mu.Lock()
	delete(p.device.pairs, p.number)
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

var _ device = (*hardDevice)(nil)
