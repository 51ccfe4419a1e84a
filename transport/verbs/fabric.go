package verbs

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"
)

// A Fabric joins RDMA devices that are made of software, in one process: queue
// pairs, completion queues, registered memory and its keys behave as hardware's
// do, down to what hardware does about mistakes. It exists for tests, which it
// lets run on every machine; data is copied at once, on the goroutine that posts.
//
// All its methods may be called concurrently.
type Fabric struct {
	mu      sync.Mutex // guards all of the fabric, its devices, pairs and regions
	pairs   map[uint32]*softPair
	regions map[uint32]*softRegion
	last    uint32 // the last number given to a pair or a region
	stalls  int    // works that met no receive, which the protocol must not let happen
	ask     func(Step) Break
}

// NewFabric is a Fabric without devices.
func NewFabric() *Fabric {
	return &Fabric{pairs: make(map[uint32]*softPair), regions: make(map[uint32]*softRegion), last: 0x100}
}

// number is a number that no pair or region has.
func (f *Fabric) number() uint32 {
	f.last++
	return f.last
}

// A softDevice is one end's device; memory is registered with it alone.
type softDevice struct {
	fabric *Fabric
	number int
}

type softRegion struct {
	device *softDevice
	mem    []byte
	remote bool
}

func (d *softDevice) describe() string { return "software device" }

func (d *softDevice) network() string { return "software" }

func (d *softDevice) memory(size int) ([]byte, func() error, error) {
	const line = 64 // what Allocator promises
	b := make([]byte, size+line-1)
	off := int(-addressOf(b) % line)
	return b[off : off+size : off+size], func() error { return nil }, nil
}

func (d *softDevice) alloc(size int, remote bool) (*region, error) {
	return d.register(make([]byte, size), remote)
}

func (d *softDevice) register(b []byte, remote bool) (*region, error) {
	f := d.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	key := f.number()
	f.regions[key] = &softRegion{device: d, mem: b, remote: remote}
	return &region{mem: b, addr: addressOf(b), lkey: key, rkey: key, deregister: func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.regions, key)
		return nil
	}}, nil
}

func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// find is the part of a region that starts at addr; nil when there is no such.
func (d *softDevice) find(key uint32, addr uint64, n int, remote bool) []byte {
	r := d.fabric.regions[key]
	if r == nil || r.device != d || remote && !r.remote {
		return nil
	}
	off := addr - addressOf(r.mem)
	if off > uint64(len(r.mem)) || uint64(n) > uint64(len(r.mem))-off {
		return nil
	}
	return r.mem[off : off+uint64(n)]
}

func (d *softDevice) newQueuePair(depth int, notify func()) (queuePair, error) {
	f := d.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	p := &softPair{device: d, number: f.number(), depth: depth, notify: notify}
	p.room = 4*depth + 16
	f.pairs[p.number] = p
	return p, nil
}

// close reports what was left behind.
func (d *softDevice) close() error {
	pairs, regions := d.fabric.held(func(of *softDevice) bool { return of == d })
	if pairs+regions > 0 {
		return fmt.Errorf("%d queue pairs and %d memory regions are left behind", pairs, regions)
	}
	return nil
}

// Held is how many queue pairs and memory regions the fabric's devices hold: none once
// all Transports on them are closed.
func (f *Fabric) Held() (pairs, regions int) {
	return f.held(func(*softDevice) bool { return true })
}

func (f *Fabric) held(by func(*softDevice) bool) (pairs, regions int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.pairs {
		if by(p.device) {
			pairs++
		}
	}
	for _, r := range f.regions {
		if by(r.device) {
			regions++
		}
	}
	return pairs, regions
}

// A softPair is a queue pair; the fabric's lock guards it.
type softPair struct {
	device *softDevice
	number uint32
	depth  int
	room   int // completions that the queue holds
	notify func()
	peer   uint32 // 0: not connected
	state  pairState

	receives []softReceive // posted, oldest first
	stalled  []workRequest // posted, and met no receive
	done     []completion  // oldest first
	armed    bool
	overrun  bool  // a completion was lost
	trouble  error // an event that ends the pair
}

type pairState uint8

const (
	pairReady pairState = iota
	pairBroken
	pairClosed
)

type softReceive struct {
	id  uint64
	mem []byte
}

var errPairState = errors.New("the queue pair is in the error state")

func (p *softPair) local() address { return address{qpn: p.number, mtu: 5} }

func (p *softPair) connect(peer address) error {
	p.device.fabric.mu.Lock()
	defer p.device.fabric.mu.Unlock()
	if p.state != pairReady || p.peer != 0 {
		return errPairState
	}
	p.peer = peer.qpn
	return nil
}

func (p *softPair) receive(id uint64, r *region, mem []byte) error {
	f := p.device.fabric
	var wake []func()
	defer func() { ring(wake) }()
	f.mu.Lock()
	defer f.mu.Unlock()
	if p.state == pairClosed || p.device.find(r.lkey, addressOf(mem), len(mem), false) == nil && len(mem) > 0 {
		return errPairState
	}
	if p.state == pairBroken {
		return nil // flushed, and nobody is told twice
	}
	p.receives = append(p.receives, softReceive{id, mem})
	if peer := f.pairs[p.peer]; peer != nil && len(peer.stalled) > 0 && peer.state == pairReady {
		w := peer.stalled[0]
		peer.stalled = peer.stalled[1:]
		wake = peer.run(&w, wake)
	}
	return nil
}

func ring(wake []func()) {
	for _, notify := range wake {
		notify()
	}
}

func (p *softPair) send(ws []workRequest) error {
	f := p.device.fabric
	var buf [4]func()
	wake := buf[:0]
	f.mu.Lock()
	if p.state != pairReady || p.peer == 0 {
		f.mu.Unlock()
		return errPairState
	}
	for i := range ws {
		if len(p.stalled) > 0 && p.state == pairReady {
			p.stalled = append(p.stalled, ws[i])
			continue
		}
		wake = p.run(&ws[i], wake)
	}
	f.mu.Unlock()
	ring(wake)
	return nil
}

// run does w, as the devices of both ends do, and returns who is to be notified.
func (p *softPair) run(w *workRequest, wake []func()) []func() {
	if p.state != pairReady {
		return p.complete(completion{id: w.id, status: flushed}, wake)
	}
	to := p.device.fabric.pairs[p.peer]
	switch {
	case to == nil || to.state != pairReady || to.peer != p.number:
		return p.breakDown(completion{id: w.id, status: retryExceeded}, wake)
	case len(w.mem) > 0 && !w.inline && p.device.find(w.lkey, addressOf(w.mem), len(w.mem), false) == nil:
		return p.breakDown(completion{id: w.id, status: localProtect}, wake)
	case w.noImm:
		return p.runSilent(w, to, wake)
	case len(to.receives) == 0:
		p.device.fabric.stalls++
		p.stalled = append(p.stalled, *w)
		return wake
	}
	at := p.judge(w, to)
	if at == BreakBefore || at == BreakWithin && !w.write {
		return p.breakOff(w, wake)
	}
	r := to.receives[0]
	dst := r.mem
	if w.write {
		if dst = to.device.find(w.rkey, w.raddr, len(w.mem), true); dst == nil && len(w.mem) > 0 {
			wake = to.breakDown(completion{id: r.id, recv: true, status: remoteAccess}, wake)
			return p.breakDown(completion{id: w.id, status: remoteAccess}, wake)
		}
	} else if len(w.mem) > len(dst) {
		wake = to.breakDown(completion{id: r.id, recv: true, status: localLength}, wake)
		return p.breakDown(completion{id: w.id, status: remoteInvalid}, wake)
	}
	if at == BreakWithin {
		copy(dst, w.mem[:len(w.mem)/2])
		return p.breakOff(w, wake)
	}
	copy(dst, w.mem)
	to.receives = to.receives[:copy(to.receives, to.receives[1:])]
	wake = to.complete(completion{id: r.id, recv: true, write: w.write, bytes: len(w.mem), imm: w.imm}, wake)
	return p.ended(w, at, wake)
}

// ended is the end of a work that was carried out.
func (p *softPair) ended(w *workRequest, at Break, wake []func()) []func() {
	switch {
	case at == BreakAfter:
		return p.breakOff(w, wake)
	case w.signaled:
		return p.complete(completion{id: w.id}, wake)
	}
	return wake
}

// runSilent does a write that takes no receive. Where one of no bytes may go is not
// looked up, as by hardware.
func (p *softPair) runSilent(w *workRequest, to *softPair, wake []func()) []func() {
	dst := to.device.find(w.rkey, w.raddr, len(w.mem), true)
	if dst == nil && len(w.mem) > 0 {
		wake = to.breakDown(completion{recv: true, status: remoteAccess}, wake)
		return p.breakDown(completion{id: w.id, status: remoteAccess}, wake)
	}
	at := p.judge(w, to)
	switch at {
	case BreakBefore:
		return p.breakOff(w, wake)
	case BreakWithin:
		copy(dst, w.mem[:len(w.mem)/2])
		return p.breakOff(w, wake)
	}
	copy(dst, w.mem)
	return p.ended(w, at, wake)
}

// complete queues c. A queue that overruns loses completions, and breaks the pair.
func (p *softPair) complete(c completion, wake []func()) []func() {
	at := NoBreak
	if c.status == success {
		at = p.judge(nil, p.device.fabric.pairs[p.peer])
	}
	if at == NoBreak || at == BreakAfter {
		wake = p.queue(c, wake)
	}
	if at != NoBreak {
		wake = p.breakDown(completion{id: c.id, recv: c.recv, status: fatal}, wake)
	}
	return wake
}

// queue has the owner find c.
func (p *softPair) queue(c completion, wake []func()) []func() {
	if len(p.done) == p.room {
		p.state, p.overrun = pairBroken, true
		return wake
	}
	p.done = append(p.done, c)
	if p.armed {
		p.armed = false
		wake = append(wake, p.notify)
	}
	return wake
}

// breakDown puts the pair into the error state with its first error; what is posted
// is flushed behind it.
func (p *softPair) breakDown(c completion, wake []func()) []func() {
	if p.state != pairReady {
		return wake
	}
	p.state = pairBroken
	wake = p.queue(c, wake)
	for _, w := range p.stalled {
		wake = p.queue(completion{id: w.id, status: flushed}, wake)
	}
	p.receives, p.stalled = nil, nil
	return wake
}

func (p *softPair) poll(into []completion, _ int) (int, error) {
	p.device.fabric.mu.Lock()
	defer p.device.fabric.mu.Unlock()
	if p.overrun {
		return 0, errOverrun
	}
	n := copy(into, p.done)
	p.done = p.done[:copy(p.done, p.done[n:])]
	if n == 0 {
		return 0, p.trouble
	}
	return n, nil
}

// softInline is what many devices take inline.
const softInline = 220

func (p *softPair) inline() int { return softInline }

func (p *softPair) arm() error {
	p.device.fabric.mu.Lock()
	defer p.device.fabric.mu.Unlock()
	p.armed = true
	return nil
}

func (p *softPair) close() error {
	p.device.fabric.mu.Lock()
	defer p.device.fabric.mu.Unlock()
	p.state, p.peer, p.receives, p.stalled, p.done = pairClosed, 0, nil, nil, nil
	delete(p.device.fabric.pairs, p.number)
	return nil
}
