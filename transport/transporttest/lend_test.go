package transporttest

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tutti-go/tutti/internal/leak"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/memory"
)

// A witness is a TB that notes a failure, which is not the test's.
type witness struct {
	testing.TB
	failed atomic.Bool
}

func (w *witness) Errorf(string, ...any) { w.failed.Store(true) }
func (w *witness) Error(...any)          { w.failed.Store(true) }
func (w *witness) Fail()                 { w.failed.Store(true) }

// A closing is a Transport that notes its Close.
type closing struct {
	transport.Transport
	closed *atomic.Int32
}

func (c closing) Close() error {
	c.closed.Add(1)
	return c.Transport.Close()
}

// lend has a lender make Nodes by mk, until near is closed and over is done.
func lend(tb testing.TB, mk Maker) (near net.Conn, b *Borrower, over *sync.WaitGroup) {
	near, far := net.Pipe()
	over = new(sync.WaitGroup)
	over.Go(func() { Lend(tb, far, mk) })
	return near, Borrow(near), over
}

func TestWhatABorrowerThatDiesHasBorrowedIsClosed(t *testing.T) {
	leak.Check(t)
	hub, closed, far := memory.New(), new(atomic.Int32), &witness{TB: t}
	mk := func(testing.TB, int) []Node { return []Node{{Transport: closing{hub.Transport(), closed}}} }
	near, b, over := lend(far, mk)
	nodes := b.Maker(mk)(t, 4)
	for i := 1; i < 4; i += 2 {
		if _, err := nodes[i].Transport.Serve(nil, func(transport.Conn) {}); err != nil {
			t.Fatal(err)
		}
	}
	if err := nodes[1].Transport.Close(); err != nil {
		t.Fatal(err)
	}
	b.Stop()
	near.Close()
	over.Wait()
	if n := closed.Load(); n != 2 || !far.failed.Load() {
		t.Errorf("%d of the two Nodes lent are closed, failed: %v; want both, and a failure for the one that was left", n, far.failed.Load())
	}
	for i := 0; i < 4; i += 2 {
		nodes[i].Transport.Close()
	}
}

// A Maker may end its test, which a lender's goroutine cannot: the borrower is told.
func TestALenderThatCanMakeNoNodeSaysSo(t *testing.T) {
	leak.Check(t)
	far, here := &witness{TB: t}, &witness{TB: t}
	mk := func(tb testing.TB, _ int) []Node { tb.Fatal("there is no device"); return nil }
	near, b, over := lend(far, mk)
	own := func(testing.TB, int) []Node { return make([]Node, 1) }
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.Maker(own)(aside{here}, 2)
		t.Error("the Maker has made what the lender had not")
	}()
	<-ended
	b.Stop()
	near.Close()
	over.Wait()
	if !far.failed.Load() || !here.failed.Load() {
		t.Errorf("failed: the lender %v, the borrower %v; want both", far.failed.Load(), here.failed.Load())
	}
}
