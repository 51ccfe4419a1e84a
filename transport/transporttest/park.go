package transporttest

import (
	"runtime"
	"testing"
	"time"

	"github.com/tutti-go/tutti/transport"
)

func parkPromises() []promise {
	return []promise{
		{"Parker/FrameEndsPark", frameEndsPark},
		{"Parker/WakeEndsPark", wakeEndsPark},
		{"Parker/ParkEndsByItself", parkEndsByItself},
		{"Parker/CloseEndsPark", closeEndsPark},
		{"Parker/ParkNeverLosesAWakeUp", parkNeverLoses},
	}
}

// parker is e's Conn as a Parker; the test is skipped when it is none.
func (e *end) parker() transport.Parker {
	p, ok := e.Conn.(transport.Parker)
	if !ok {
		e.w.tb.Skipf("%T is not a transport.Parker", e.Conn)
	}
	return p
}

// parkUntil parks between polls until done.
func (e *end) parkUntil(what string, done func() bool) {
	deadline := time.Now().Add(patience())
	for !done() && e.err == nil {
		if state, _ := e.progress(); state != transport.Idle {
			runtime.Gosched()
			continue
		}
		if !done() && e.err == nil && !e.parker().Park(time.Until(deadline)) {
			e.w.errorf("%s: %s: no wake-up came in %v", e.name, what, patience())
			return
		}
	}
}

func frameEndsPark(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	far.parker()
	far.settle()
	stop := near.keepPolling()
	defer stop()
	for range 3 {
		before := len(far.sink.got)
		s := near.send(nil, pattern(400_000, 1)) // before or in the Park, as it comes
		w.within("the end of a Park", func() {
			far.parkUntil("a frame", func() bool { return len(far.sink.got) > before && s.done() })
		})
	}
}

func wakeEndsPark(t *testing.T, mk Maker) {
	w, _, far := pair(t, mk)
	p := far.parker()
	far.settle()
	p.Wake()
	if !p.Park(patience()) {
		t.Error("a Wake before Park did not count")
	}
	parked := make(chan struct{})
	go func() {
		defer close(parked)
		for woken := false; !woken; {
			woken = p.Park(patience())
		}
	}()
	p.Wake()
	w.await("the end of a Park by Wake", parked)
}

func parkEndsByItself(t *testing.T, mk Maker) {
	w, _, far := pair(t, mk)
	p := far.parker()
	far.settle()
	w.within("the end of a Park by time", func() {
		for range 100 { // the wire itself may have something to say at first
			if !p.Park(time.Millisecond) {
				return
			}
			far.settle()
		}
		t.Error("Park on a quiet Conn returns true time after time")
	})
	w.within("a Park of no time", func() { p.Park(0); p.Park(-1) })
}

func closeEndsPark(t *testing.T, mk Maker) {
	for _, closer := range []string{"own", "peer's"} {
		t.Run(closer, func(t *testing.T) {
			w, near, far := pair(t, mk)
			far.parker()
			far.settle()
			parked := make(chan struct{})
			go func() {
				defer close(parked)
				far.parkUntil("the Close", func() bool { return false })
			}()
			map[string]*end{"own": far, "peer's": near}[closer].Close()
			w.await("the end of a Park by Close", parked)
			w.within("a Park after the end", func() {
				if !far.parker().Park(patience()) {
					t.Error("Park on a closed Conn sleeps")
				}
			})
		})
	}
}

// parkNeverLoses plays ping-pong between two goroutines that sleep in Park.
func parkNeverLoses(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	near.parker()
	w.pingPong(near, far, (*end).parkUntil)
}
