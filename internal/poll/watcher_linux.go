package poll

import (
	"os"
	"sync"
	"syscall"
)

// A Handler receives the events of its descriptor.
type Handler interface {
	// Event runs on the Watcher's goroutine, so it must not block. The parameter pad is the value
	// that was passed to Control, and events are the events of epoll. Event may be called after
	// Remove.
	Event(pad int32, events uint32)
}

// A Watcher is one goroutine that waits for any number of descriptors, on a separate epoll. The
// epoll's descriptor is registered with Go's poller, so the goroutine holds no thread while it
// waits. The zero Watcher is ready for use; its goroutine starts with the first Handler. Any
// goroutine may call its methods.
type Watcher struct {
	mu       sync.RWMutex // guards the fields below; the epoll itself needs no lock
	epoll    int
	file     *os.File // the epoll, as registered with Go's poller
	handlers map[int32]Handler
	lastID   int32
	done     chan struct{}
}

// Add registers h and returns its number. An event carries the number of its Handler. Unlike the
// number of a descriptor, a Handler's number is used again only after about 2³² other numbers.
func (w *Watcher) Add(h Handler) (id int32, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file == nil {
		if err := w.start(); err != nil {
			return 0, err
		}
	}
	for {
		w.lastID++
		if _, used := w.handlers[w.lastID]; !used {
			w.handlers[w.lastID] = h
			return w.lastID, nil
		}
	}
}

// start opens the epoll and starts the goroutine. w.mu is held.
func (w *Watcher) start() error {
	fd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	syscall.SetNonblock(fd, true) // so that os.NewFile registers it with Go's poller
	file := os.NewFile(uintptr(fd), "epoll")
	conn, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return err
	}
	w.epoll, w.file, w.handlers, w.done = fd, file, make(map[int32]Handler), make(chan struct{})
	go w.run(conn)
	return nil
}

// Control calls epoll_ctl on fd for the Handler with number id. The Handler must have been added
// and not removed.
func (w *Watcher) Control(op, fd int, id, pad int32, events uint32) error {
	return syscall.EpollCtl(w.epoll, op, fd, &syscall.EpollEvent{Events: events, Fd: id, Pad: pad})
}

// run passes events to their Handlers until the file is closed.
func (w *Watcher) run(conn syscall.RawConn) {
	defer close(w.done)
	events, n := make([]syscall.EpollEvent, 64), 0
	wait := func(fd uintptr) bool {
		n, _ = syscall.EpollWait(int(fd), events, 0)
		return n > 0
	}
	for conn.Read(wait) == nil {
		for _, e := range events[:n] {
			w.mu.RLock()
			h := w.handlers[e.Fd]
			w.mu.RUnlock()
			if h != nil {
				h.Event(e.Pad, e.Events)
			}
		}
	}
}

// Remove removes a Handler. The caller has already removed the Handler's descriptor from the epoll.
func (w *Watcher) Remove(id int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.handlers, id)
}

// Stop ends the goroutine, and waits for it. The caller must add no Handler afterwards.
func (w *Watcher) Stop() {
	w.mu.Lock()
	file := w.file
	w.file = nil
	w.mu.Unlock()
	if file != nil {
		file.Close()
		<-w.done
	}
}
