// Package softdevice implements RDMA devices in software, for tests of the verbs transport and
// of layers above it. The devices need no hardware, and a test can break them at each step.
//
// A Fabric joins devices within one process. Queue pairs, completion queues, registered memory and
// keys behave as in hardware, also after mistakes. A wrong key, a message longer than its buffer,
// or an overrun completion queue ends the queue pair with the status that hardware gives. Data is
// copied at once, by the goroutine that posts.
//
// Fabric.SetHook breaks a queue pair at a step that the test chooses. Methods of SoftQueuePair
// inject the failures that hardware can have at any time.
package softdevice

import (
	"fmt"
	"sync"

	"github.com/tutti-go/tutti/transport/verbs/internal/rdma"
)

// A Fabric joins devices. All its methods may be called concurrently.
type Fabric struct {
	mu         sync.Mutex // guards the fabric, its devices, queue pairs and regions
	queuePairs map[uint32]*SoftQueuePair
	regions    map[uint32]*region
	lastNumber uint32 // of a queue pair or a region
	notReady   int    // work requests that found no posted receive
	hook       func(Action) Break
	notify     []func() // to be called once mu is unlocked
}

// NewFabric returns a Fabric without devices.
func NewFabric() *Fabric {
	return &Fabric{queuePairs: make(map[uint32]*SoftQueuePair), regions: make(map[uint32]*region), lastNumber: 0x100}
}

// Device returns a new device. Its Actions name it by number.
func (f *Fabric) Device(number int) rdma.Device { return &device{fabric: f, number: number} }

// NotReady returns the number of work requests that have found no posted receive. It must stay 0 if
// the protocol is correct.
func (f *Fabric) NotReady() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.notReady
}

// Held returns the number of queue pairs and memory regions that the devices hold. Both are 0
// once all Transports are closed.
func (f *Fabric) Held() (queuePairs, regions int) {
	return f.heldBy(func(*device) bool { return true })
}

func (f *Fabric) heldBy(matches func(*device) bool) (queuePairs, regions int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.queuePairs {
		if matches(p.device) {
			queuePairs++
		}
	}
	for _, r := range f.regions {
		if matches(r.device) {
			regions++
		}
	}
	return queuePairs, regions
}

// Writable reports whether a peer may write n bytes at addr with the key.
func (f *Fabric) Writable(key uint32, addr uint64, n int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.regions[key]
	return r != nil && r.device.find(key, addr, n, true) != nil
}

// newNumber returns a number that no queue pair or region has had.
func (f *Fabric) newNumber() uint32 {
	f.lastNumber++
	return f.lastNumber
}

// unlock unlocks mu, and then calls the notify functions of queue pairs that have completions.
func (f *Fabric) unlock() {
	var buf [4]func()
	notify := append(buf[:0], f.notify...)
	clear(f.notify)
	f.notify = f.notify[:0]
	f.mu.Unlock()
	for _, n := range notify {
		n()
	}
}

// A device is the device of one end. Memory is registered with one device only.
type device struct {
	fabric *Fabric
	number int
}

type region struct {
	device *device
	mem    []byte
	remote bool
}

func (d *device) Describe() string { return "software device" }

func (d *device) Network() string { return "software" }

func (d *device) Memory(size int) ([]byte, func() error, error) {
	const alignment = 64
	b := make([]byte, size+alignment-1)
	off := int(-rdma.AddressOf(b) % alignment)
	return b[off : off+size : off+size], func() error { return nil }, nil
}

func (d *device) Alloc(size int, remote bool) (*rdma.Region, error) {
	return d.Register(make([]byte, size), remote)
}

func (d *device) Register(b []byte, remote bool) (*rdma.Region, error) {
	f := d.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	key := f.newNumber()
	f.regions[key] = &region{device: d, mem: b, remote: remote}
	return &rdma.Region{Mem: b, Addr: rdma.AddressOf(b), LKey: key, RKey: key, Deregister: func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.regions, key)
		return nil
	}}, nil
}

// find returns the n bytes at addr in the region with the key. It returns nil if the device has
// not registered these bytes with that key. mu is held.
func (d *device) find(key uint32, addr uint64, n int, remote bool) []byte {
	r := d.fabric.regions[key]
	if r == nil || r.device != d || remote && !r.remote {
		return nil
	}
	off := addr - rdma.AddressOf(r.mem)
	if off > uint64(len(r.mem)) || uint64(n) > uint64(len(r.mem))-off {
		return nil
	}
	return r.mem[off : off+uint64(n)]
}

func (d *device) NewQueuePair(depth int, notify func()) (rdma.QueuePair, error) {
	f := d.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	p := &SoftQueuePair{device: d, number: f.newNumber(), capacity: 4*depth + 16, notify: notify}
	f.queuePairs[p.number] = p
	return p, nil
}

// Close fails if queue pairs or regions are left.
func (d *device) Close() error {
	queuePairs, regions := d.fabric.heldBy(func(of *device) bool { return of == d })
	if queuePairs+regions > 0 {
		return fmt.Errorf("close: %d queue pairs and %d memory regions are still open, want none", queuePairs, regions)
	}
	return nil
}
