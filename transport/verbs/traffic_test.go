package verbs

import (
	"net"
	"testing"
	"time"

	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/tcp"
	"github.com/tutti-go/tutti/transport/verbs/softdevice"
)

// A discard is a Sink that drops everything, and counts the frames.
type discard struct{ frames int }

func (d *discard) Buffer(transport.Header) []byte { return nil }
func (d *discard) Arrived(h transport.Header, n int) {
	if n == h.Size {
		d.frames++
	}
}

// A Conn whose peer has no device stays on the set-up link, so it must return the counts of that
// link.
func TestTrafficOfTheSetUpLinkIsReturned(t *testing.T) {
	far, err := New(Options{Setup: tcp.New(tcp.Options{}), Device: softdevice.NewFabric().Device(0), OnRequest: true})
	if err != nil {
		t.Fatal(err)
	}
	near := tcp.New(tcp.Options{})
	t.Cleanup(func() { near.Close(); far.Close() })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	conns := make(chan transport.Conn, 1)
	addr, err := far.Serve(l, func(c transport.Conn) { conns <- c })
	if err != nil {
		t.Fatal(err)
	}
	from, err := near.Dial(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	to := <-conns
	to.(transport.Pending).Admit()
	from.Send(&transport.Frame{Head: []byte("head"), Body: make([]byte, 100), Done: func(error) {}})
	in := new(discard)
	for deadline := time.Now().Add(20 * time.Second); in.frames == 0; {
		if _, err := to.Progress(in, 1); err != nil || time.Now().After(deadline) {
			t.Fatalf("no frame has arrived: %v", err)
		}
	}
	type meter interface{ Traffic() (_, _, _, _ uint64) }
	sent, _, _, _ := from.(meter).Traffic()
	if _, _, received, _ := to.(meter).Traffic(); received != sent || received == 0 {
		t.Errorf("got %d bytes received, want the %d that were sent", received, sent)
	}
}
