package tcp

import (
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/tutti-go/tutti/fault"
)

// A watcher is one goroutine that waits for every armed raw Conn of a Transport,
// on an epoll of their own. That epoll's descriptor lies in Go's poller, so the
// goroutine holds no thread while it waits. A socket is in there one-shot: while
// somebody polls it, it wakes nobody. The zero watcher is ready; it starts with
// the first Conn.
type watcher struct {
	mu     sync.RWMutex // guards the rest; the epoll itself needs no lock
	epoll  int
	file   *os.File // epoll, as Go's poller has it
	conns  map[int32]*raw
	lastID int32
	ended  chan struct{}
}

// add gives c a number by which events find it. Numbers are not used again
// before 2³¹ others were, unlike descriptors'.
func (w *watcher) add(c *raw) (id int32, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file == nil {
		if err := w.start(); err != nil {
			return 0, err
		}
	}
	for {
		w.lastID++
		if _, taken := w.conns[w.lastID]; !taken {
			w.conns[w.lastID] = c
			return w.lastID, nil
		}
	}
}

func (w *watcher) start() error {
	fd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	syscall.SetNonblock(fd, true) // asks os.NewFile to register it
	file := os.NewFile(uintptr(fd), "tcp epoll")
	conn, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return err
	}
	w.epoll, w.file, w.conns, w.ended = fd, file, make(map[int32]*raw), make(chan struct{})
	go w.run(conn)
	return nil
}

// run hands out events until the file is closed.
func (w *watcher) run(conn syscall.RawConn) {
	defer close(w.ended)
	events, n := make([]syscall.EpollEvent, 64), 0
	wait := func(fd uintptr) bool {
		n, _ = syscall.EpollWait(int(fd), events, 0)
		return n > 0
	}
	for conn.Read(wait) == nil {
		for _, e := range events[:n] {
			w.mu.RLock()
			c := w.conns[e.Fd]
			w.mu.RUnlock()
			if c != nil {
				c.event(e.Pad, e.Events)
			}
		}
	}
}

// remove forgets a Conn; no event finds it afterwards.
func (w *watcher) remove(id int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, id)
}

// stop ends the goroutine, and waits for it. All Conns are gone by then.
func (w *watcher) stop() {
	w.mu.Lock()
	file := w.file
	w.file = nil
	w.mu.Unlock()
	if file != nil {
		file.Close()
		<-w.ended
	}
}

// An alarm is a raw Conn's one armed wake-up, and what the epoll knows of it.
type alarm struct {
	id    int32
	armed atomic.Bool // ready is set

	mu     sync.Mutex // guards what follows
	ready  func()
	turn   int32  // counts changes of the epoll's entry, to tell stale events
	events uint32 // what the epoll waits for now; 0: nothing
	added  bool   // the epoll has an entry
}

// join enters c in its Transport's watcher.
func (a *alarm) join(t *Transport, c *raw) (err error) {
	a.id, err = t.watcher.add(c)
	return err
}

// part undoes join. The descriptor is still open.
func (a *alarm) part(t *Transport, c *raw) {
	a.mu.Lock()
	if a.added {
		syscall.EpollCtl(t.watcher.epoll, syscall.EPOLL_CTL_DEL, c.fd, nil)
		a.added = false
	}
	a.mu.Unlock()
	t.watcher.remove(a.id)
}

// take is the armed callback, which is not armed any more.
func (a *alarm) take() func() {
	ready := a.ready
	a.ready = nil
	a.armed.Store(false)
	return ready
}

// Arm implements transport.Conn; it costs one epoll_ctl, or nothing when the
// epoll still waits for an earlier one. A wake-up may be spurious: somebody else
// may have moved meanwhile what there was to move.
func (c *raw) Arm(ready func()) {
	a := &c.alarm
	a.mu.Lock()
	a.ready = ready
	a.armed.Store(true)
	var err error
	if c.buffered.Load() || c.first.get() != nil {
		c.t.calls.call(a.take())
	} else {
		err = c.watch()
	}
	a.mu.Unlock()
	if err != nil {
		c.fail(failure(fault.Exhausted, "arm", os.NewSyscallError("epoll_ctl", err)))
	}
}

// watch has the epoll wait for what Progress could move now. The alarm is locked.
func (c *raw) watch() error {
	a := &c.alarm
	events := uint32(syscall.EPOLLIN | syscall.EPOLLONESHOT)
	if c.out.stuck.Load() {
		events |= syscall.EPOLLOUT
	}
	if a.events&events == events || !c.gate.enter() {
		return nil // a Close that shut the gate wakes after it
	}
	op := syscall.EPOLL_CTL_MOD
	if !a.added {
		op = syscall.EPOLL_CTL_ADD
	}
	a.turn++
	err := syscall.EpollCtl(c.t.watcher.epoll, op, c.fd,
		&syscall.EpollEvent{Events: events, Fd: a.id, Pad: a.turn})
	if err == nil {
		a.added, a.events = true, events
	}
	if c.gate.leave() {
		go c.letGo() // not here: it wants the alarm
	}
	return err
}

// watchWrites adds queued bytes to what an armed Conn waits for.
func (c *raw) watchWrites() {
	if !c.alarm.armed.Load() {
		return
	}
	c.alarm.mu.Lock()
	var err error
	if c.alarm.ready != nil {
		err = c.watch()
	}
	c.alarm.mu.Unlock()
	if err != nil {
		c.fail(failure(fault.Exhausted, "arm", os.NewSyscallError("epoll_ctl", err)))
	}
}

// event takes the watcher's word that something could move.
func (c *raw) event(turn int32, events uint32) {
	a := &c.alarm
	a.mu.Lock()
	if turn != a.turn {
		a.mu.Unlock()
		return
	}
	a.events = 0
	if a.ready != nil && events == syscall.EPOLLOUT && !c.out.stuck.Load() {
		if c.watch() == nil { // what could be written has been written
			a.mu.Unlock()
			return
		}
	}
	ready := a.take()
	a.mu.Unlock()
	if ready != nil {
		ready()
	}
}

// wake has the armed callback run on the caller's goroutine.
func (c *raw) wake() {
	c.alarm.mu.Lock()
	ready := c.alarm.take()
	c.alarm.mu.Unlock()
	if ready != nil {
		c.t.calls.call(ready)
	}
}

// wakeIfArmed is wake where that is seldom needed.
func (c *raw) wakeIfArmed() {
	if c.alarm.armed.Load() {
		c.wake()
	}
}
