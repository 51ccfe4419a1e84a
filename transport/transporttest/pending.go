package transporttest

import (
	"testing"

	"github.com/tutti-go/tutti/transport"
)

func pendingTests() []testCase {
	return []testCase{
		{"Pending/SmallFramesBeforeAdmit", smallBeforeAdmit},
		{"Greeter/OthersFirstBytesAreNotItsOwn", othersFirstBytes},
	}
}

// smallBeforeAdmit exchanges small frames before Admit, as a handshake does, and a large frame
// after Admit. All of them must arrive.
func smallBeforeAdmit(t *testing.T, mk Maker) {
	w := newCluster(t, mk, 2)
	a, b := w.dial(0, 1)
	pending, ok := b.(transport.Pending)
	if !ok {
		// Reason: limits before Admit are an optional ability.
		t.Skipf("%T is not a transport.Pending: it has no limits before Admit", b)
	}
	near, far := w.newEndpoint("dialling end", a), w.newEndpoint("accepting end", b)
	w.exchange([]*sentFrame{near.send(pattern(128, 1), pattern(1000, 1))}, far)
	answer := far.send(pattern(128, 2), pattern(1000, 2))
	w.until("the answer", func() bool { return len(near.sink.got) == 1 && answer.done() })
	w.exchange([]*sentFrame{near.send(pattern(100, 3), nil)}, far)
	pending.Admit()
	w.exchange([]*sentFrame{near.send(nil, pattern(3<<20, 4))}, far)
}

// othersFirstBytes passes the first bytes of other protocols to Prefix, which must reject them.
func othersFirstBytes(t *testing.T, mk Maker) {
	w := newCluster(t, mk, 1)
	g, ok := w.nodes[0].Transport.(transport.Greeter)
	if !ok || g.Proto() == "" {
		// Reason: a shared listener is an optional ability.
		t.Skipf("%T is not a transport.Greeter: it shares no listener", w.nodes[0].Transport)
	}
	for _, first := range []string{
		"GET / HTTP/1.1\r\n", "POST", "SSH-2.0-", "\x16\x03\x01\x02", "\x00\x00\x00\x00", "\xff\xff\xff\xff", "\r\n\r\n",
	} {
		if g.Prefix([]byte(first)) {
			t.Errorf("Prefix accepts a connection that opens with %q", first)
		}
	}
}
