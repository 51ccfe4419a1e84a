package mesh

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// A scriptedConn is a Conn whose Progress and Close call functions that the test sets.
type scriptedConn struct {
	transport.Conn // nil: no other method is called
	progress       func() transport.State
	close          func()
}

func (c *scriptedConn) Send(f *transport.Frame)  { f.Done(fault.Closed) }
func (c *scriptedConn) Arm(func())               {}
func (c *scriptedConn) Unsent() (int, time.Time) { return 0, time.Time{} }

func (c *scriptedConn) Progress(transport.Sink, int) (transport.State, error) {
	return c.progress(), nil
}

func (c *scriptedConn) Close() error {
	c.close()
	return nil
}

// up makes c the data Conn from rank 0 to rank 1 of a job of two ranks.
func (r *testJob) up(c transport.Conn) *Link {
	l := r.meshes[0].Link(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = linkUp
	l.conn.Store(&upConn{Conn: c})
	return l
}

func withData(_ int, cfg *Config) { cfg.Data = &recorder{got: make(map[string]int)} }

func TestNobodyReadsALinkOnceCloseHasReturned(t *testing.T) {
	r := started(t, 2, withData)
	defer r.close()
	inside := make(chan bool)
	release := make(chan struct{})
	var reading atomic.Bool
	var l *Link
	closes := 0
	c := &scriptedConn{
		progress: func() transport.State {
			reading.Store(true)
			defer reading.Store(false)
			inside <- true
			<-release
			return transport.Idle
		},
		close: func() {
			if closes++; closes == 2 {
				close(release)
				return
			} else if closes > 2 {
				return
			}
			// Another goroutine could do this while this goroutine is in Close.
			l.close(errors.New("again"))
			if reading.Load() {
				t.Error("the second end returned while a Progress was under way")
				close(release)
			}
		},
	}
	l = r.up(c)
	go l.Progress()
	<-inside
	l.close(errors.New("first"))
	if reading.Load() {
		t.Error("the first end returned while a Progress was under way")
	}
}

func TestAWaitEndsInTimeWhileItsLinksMoveForOthers(t *testing.T) {
	r := started(t, 2, withData)
	defer r.close()
	l := r.up(&scriptedConn{progress: func() transport.State { return transport.Moved }, close: func() {}})
	m := r.meshes[0]
	for name, wait := range map[string]func(w *Waiter) error{
		"context": func(w *Waiter) error {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			return m.Wait(ctx, w, neverMet{}, nil, l)
		},
		"patience": func(w *Waiter) error {
			return m.Wait(t.Context(), w, neverMet{}, fixedDeadline(time.Now().Add(10*time.Millisecond)), l)
		},
	} {
		ended := make(chan error, 1)
		go func() {
			w := m.NewWaiter()
			ended <- wait(w)
		}()
		select {
		case err := <-ended:
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: got %v", name, err)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: the wait goes on", name)
		}
	}
}

type neverMet struct{}

func (neverMet) Met() bool { return false }

// A fixedDeadline is a WaitPolicy that ends the wait at a fixed time.
type fixedDeadline time.Time

func (u fixedDeadline) NextCheck() time.Time { return time.Time(u) }
func (u fixedDeadline) Check() error         { return context.DeadlineExceeded }

// A lateDial is a transport. A dial that begins while late returns true waits until up returns
// true, and then fails.
type lateDial struct {
	transport.Transport
	late func() bool // reports whether dials must fail
	up   func() bool
	over chan struct{}
}

var errLate = errors.New("the wire is down")

func (d *lateDial) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	if !d.late() {
		return d.Transport.Dial(ctx, addr)
	}
	for !d.up() && ctx.Err() == nil {
		// Reason: up has no event, because it reads the state of the link.
		time.Sleep(time.Millisecond)
	}
	defer close(d.over)
	return nil, errLate
}

func TestAFailedDialKeepsThePeersConn(t *testing.T) {
	var armed atomic.Bool
	piles := [2]*recorder{}
	d := &lateDial{late: armed.Load, over: make(chan struct{})}
	r := started(t, 2, func(i int, cfg *Config) {
		piles[i] = &recorder{got: make(map[string]int)}
		cfg.Data = piles[i]
		if i == 1 {
			d.Transport, cfg.Transport = cfg.Transport, d
		}
	})
	defer r.close()
	l := r.meshes[1].Link(0)
	d.up = func() bool { return l.Conn() != nil }
	armed.Store(true)
	l.Open() // its dial blocks until rank 0's Conn has come, and then fails
	r.meshes[0].Link(1).Open()
	<-d.over
	armed.Store(false) // when rank 0 closes below, rank 1 dials its control link again
	f := &transport.Frame{Head: []byte("h"), Body: []byte("still here"), Done: func(error) {}}
	l.Send(f)
	eventually(t, "the frame arrives", func() bool { return piles[0].count() == 1 || len(piles[1].lost()) > 0 })
	if lost := piles[1].lost(); len(lost) != 0 {
		t.Errorf("rank 1 has given up the links to %v", lost)
	}
}
