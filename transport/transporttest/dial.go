package transporttest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

func dialTests() []testCase {
	return []testCase{
		{"DialReachesAccept", dialReachesAccept},
		{"AddressIsShort", addressIsShort},
		{"ManyDialsAtOnce", manyDialsAtOnce},
		{"DialsThatCrossMakeTwoConns", dialsThatCross},
		{"DialToNobodyFails", dialToNobodyFails},
		{"DialToNonsenseFails", dialToNonsenseFails},
		{"DialEndsWithItsContext", dialEndsWithItsContext},
		{"DialAfterCloseFails", dialAfterCloseFails},
		{"ServeAfterCloseFails", serveAfterCloseFails},
	}
}

func dialReachesAccept(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	out, back := near.send([]byte("there"), []byte("x")), far.send([]byte("back"), []byte("yz"))
	w.exchange([]*sentFrame{out}, far)
	w.until("the answer", func() bool { return len(near.sink.got) == 1 })
	w.compare([]*sentFrame{back}, near.sink.got)
}

func addressIsShort(t *testing.T, mk Maker) {
	w := newCluster(t, mk, 2)
	for i, addr := range w.addrs {
		if addr == "" || len(addr) > transport.MaxAddr {
			t.Errorf("Serve of node %d: got the address %q of %d bytes, want 1 to %d bytes", i, addr, len(addr), transport.MaxAddr)
		}
	}
	if w.nodes[0].Transport.Name() == "" {
		t.Error("the Transport has no Name")
	}
}

// manyDialsAtOnce makes every node dial every other node at the same time. Each node sends its
// number on each Conn, so that countCallers can check who has accepted which Conns.
func manyDialsAtOnce(t *testing.T, mk Maker) {
	const nodes, each = 3, 5
	w := newCluster(t, mk, nodes)
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit())
	defer cancel()
	var wg sync.WaitGroup
	for from := range nodes {
		for to := range nodes {
			for range each {
				if from == to {
					continue
				}
				wg.Go(func() {
					c, err := w.nodes[from].Transport.Dial(ctx, w.addrs[to])
					if err != nil {
						t.Errorf("Dial from %d to %d: %v", from, to, err)
						return
					}
					c.Send(&w.frame([]byte(fmt.Sprint(from)), nil, nil).Frame)
				})
			}
		}
	}
	wg.Wait()
	for to := range nodes {
		w.countCallers(to, (nodes-1)*each, each)
	}
}

// countCallers checks the Conns that one node has accepted. The argument to is the number of the
// node, total is the number of its Conns, and each is the number of Conns from every other node.
// The first frame on a Conn names the node that has dialled it.
func (w *cluster) countCallers(to, total, each int) {
	var ends []*endpoint
	for range total {
		select {
		case c := <-w.accepted[to]:
			admit(c)
			ends = append(ends, w.newEndpoint(fmt.Sprint("accepted by ", to), c))
		case <-time.After(waitLimit()):
			w.tb.Fatalf("node %d has accepted %d Conns, want %d", to, len(ends), total)
		}
	}
	got := make(map[string]int)
	for _, e := range ends {
		w.poll("the first frame of a Conn", []*endpoint{e}, func() bool { return len(e.sink.got) > 0 || e.err != nil })
		if e.err != nil {
			w.tb.Fatal(e.err)
		}
		got[string(e.sink.got[0].head)]++
	}
	for from := range w.nodes {
		if from != to && got[fmt.Sprint(from)] != each {
			w.tb.Errorf("node %d accepted %d Conns from node %d, want %d", to, got[fmt.Sprint(from)], from, each)
		}
	}
}

func dialsThatCross(t *testing.T, mk Maker) {
	w := newCluster(t, mk, 2)
	a, farA := w.link(0, 1)
	b, farB := w.link(1, 0)
	first, second := a.send(nil, []byte("first")), b.send(nil, []byte("second"))
	w.until("both frames", func() bool { return len(farA.sink.got) > 0 && len(farB.sink.got) > 0 })
	w.compare([]*sentFrame{first}, farA.sink.got)
	w.compare([]*sentFrame{second}, farB.sink.got)
}

// dialToNobodyFails dials the address of a closed Transport. The Dial must fail. If the wire does
// not notice at once that nobody serves, the Dial may return a Conn, which must then fail.
func dialToNobodyFails(t *testing.T, mk Maker) {
	w := newCluster(t, mk, 2)
	w.within("Close", func() { w.closeNode(1) })
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit())
	defer cancel()
	c, err := w.nodes[0].Transport.Dial(ctx, w.addrs[1])
	if err == nil {
		e := w.newEndpoint("Conn to nobody", c)
		w.until("the failure of a Conn to nobody", func() bool { return e.err != nil })
		err = e.err
	}
	w.isFault("Dial", err)
	select {
	case <-w.accepted[1]:
		t.Error("a closed Transport has accepted a Conn")
	default:
	}
}

func dialToNonsenseFails(t *testing.T, mk Maker) {
	w := newCluster(t, mk, 1)
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit())
	defer cancel()
	for _, addr := range []string{"", "nonsense", "=;=;", "\x00\xff"} {
		c, err := w.nodes[0].Transport.Dial(ctx, addr)
		if err == nil {
			c.Close()
			t.Errorf("Dial of %q returned no error", addr)
			continue
		}
		w.isFault(fmt.Sprintf("Dial of %q", addr), err)
	}
}

func dialEndsWithItsContext(t *testing.T, mk Maker) {
	w := newCluster(t, mk, 2)
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	past, cancel := context.WithDeadline(context.Background(), time.Unix(1, 0))
	defer cancel()
	for _, tc := range []struct {
		name string
		ctx  context.Context
		kind fault.Kind
	}{{"cancelled", canceled, fault.Canceled}, {"past its deadline", past, fault.Timeout}} {
		w.within("Dial", func() {
			_, err := w.nodes[0].Transport.Dial(tc.ctx, w.addrs[1])
			if !errors.Is(err, tc.kind) || !errors.Is(err, tc.ctx.Err()) {
				t.Errorf("Dial with a context %s: got %v, want %v and %v", tc.name, err, tc.kind, tc.ctx.Err())
			}
		})
	}
}

func dialAfterCloseFails(t *testing.T, mk Maker) {
	w := newCluster(t, mk, 2)
	w.within("Close", func() { w.closeNode(0) })
	_, err := w.nodes[0].Transport.Dial(context.Background(), w.addrs[1])
	if !errors.Is(err, fault.Closed) {
		t.Errorf("Dial after Close: got %v, want %v", err, fault.Closed)
	}
}

func serveAfterCloseFails(t *testing.T, mk Maker) {
	w := newCluster(t, mk, 1)
	fresh := mk(t, 1)[0]
	w.within("Close", func() { fresh.Transport.Close() })
	_, err := fresh.Transport.Serve(fresh.Listener, func(transport.Conn) {})
	if !errors.Is(err, fault.Closed) {
		t.Errorf("Serve after Close: got %v, want %v", err, fault.Closed)
	}
	if fresh.Listener != nil {
		fresh.Listener.Close()
	}
}
