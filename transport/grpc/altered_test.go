package grpc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	rpc "google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/relay"
	"github.com/tutti-go/tutti/transport"
)

// framing describes a stream.
var framing = relay.Framing{Preamble: preambleSize, Size: func(p []byte) int {
	return preambleSize + int(p[1]) + int(binary.LittleEndian.Uint64(p)>>16)
}}

// startProxy starts a proxy that terminates HTTP/2 between a dialling rank and target, and passes
// the bytes of the stream through the Filters.
func startProxy(t *testing.T, target string, up, down relay.Filter) (addr string) {
	t.Helper()
	desc := streamDesc(func(_ any, s rpc.ServerStream) error { return proxy(s, target, up, down) })
	server := rpc.NewServer(rpc.ForceServerCodecV2(codec{}))
	server.RegisterService(&rpc.ServiceDesc{ServiceName: serviceName, HandlerType: (*any)(nil), Streams: []rpc.StreamDesc{desc}}, struct{}{})
	l := listen(t)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		<-ended
	})
	return l.Addr().String()
}

// proxy serves one stream.
func proxy(s rpc.ServerStream, target string, up, down relay.Filter) error {
	cc, err := rpc.NewClient("passthrough:///"+target, rpc.WithTransportCredentials(insecure.NewCredentials()),
		rpc.WithDefaultCallOptions(rpc.ForceCodecV2(codec{})))
	if err != nil {
		return err
	}
	defer cc.Close()
	desc := streamDesc(nil)
	far, err := cc.NewStream(s.Context(), &desc, methodName)
	if err != nil {
		return err
	}
	if err := s.SendHeader(nil); err != nil {
		return err
	}
	back := make(chan error, 1)
	go func() { back <- pass(s, far, down) }()
	pass(far, s, up)
	far.CloseSend()
	return <-back
}

// pass copies messages until one of the streams ends.
func pass(to, from stream, filter relay.Filter) error {
	for {
		var m incoming
		if err := from.RecvMsg(&m); err != nil {
			return err
		}
		b := m.bufs.Materialize()
		m.bufs.Free()
		if filter != nil {
			b = filter(b)
		}
		if err := to.SendMsg(&message{bufs: mem.BufferSlice{mem.SliceBuffer(b)}}); err != nil {
			return err
		}
	}
}

// A proxy injects each fault into each frame of a short stream, in both directions. The receiver
// must get the frames before the fault, and then an error that names the frame numbers. If the last
// frame is dropped, only the counts of the two ends show the fault.
func TestAlteredFramesAreNoticedAtOnce(t *testing.T) {
	const frames = 4
	for _, lie := range []relay.Fault{relay.Drop, relay.Double, relay.Swap} {
		for k := range frames {
			for _, up := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s %d up %v", lie, k, up), func(t *testing.T) {
					near, far := New(Options{}), New(Options{})
					t.Cleanup(func() { near.Close(); far.Close() })
					conns := make(chan transport.Conn, 1)
					addr, err := far.Serve(listen(t), func(c transport.Conn) { conns <- c })
					if err != nil {
						t.Fatal(err)
					}
					filters := [2]relay.Filter{}
					if up {
						filters[0] = framing.Alter(lie, k)
					} else {
						filters[1] = framing.Alter(lie, k)
					}
					ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
					defer cancel()
					from, err := near.Dial(ctx, startProxy(t, addr, filters[0], filters[1]))
					if err != nil {
						t.Fatal(err)
					}
					to := <-conns
					to.(transport.Pending).Admit()
					if !up {
						from, to = to, from
					}
					checkAltered(t, from, to, lie, k, frames)
				})
			}
		}
	}
}

// checkAltered sends frames over a link whose proxy alters one frame.
func checkAltered(t *testing.T, from, to transport.Conn, lie relay.Fault, k, frames int) {
	t.Helper()
	sent, lost := 0, 0
	for i := range frames {
		f := &transport.Frame{Head: []byte("head"), Body: fmt.Append(nil, "body ", i, strings.Repeat("x", 10*i)), Done: func(error) {}}
		from.Send(f)
		n := preambleSize + len(f.Head) + len(f.Body)
		if sent += n; i == k {
			lost = n
		}
	}
	right := k // frames before the fault
	if lie == relay.Double {
		right++
	}
	var in recordingSink
	if lie != relay.Double && k == frames-1 {
		for deadline := time.Now().Add(20 * time.Second); ; {
			if _, err := to.Progress(&in, 1); err != nil {
				t.Fatal(err)
			}
			written, _, _, _ := traffic(from)
			_, _, received, arrived := traffic(to)
			if written == uint64(sent) && received == uint64(sent-lost) && arrived > received {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d bytes were sent, %d received and %d arrived; want %d sent and %d received", written, received, arrived, sent, sent-lost)
			}
		}
	}
	var err error
	for deadline := time.Now().Add(20 * time.Second); err == nil; _, err = to.Progress(&in, 1) {
		if time.Now().After(deadline) {
			t.Fatal("no error came")
		}
	}
	got, want := map[relay.Fault]int{relay.Drop: k + 1, relay.Double: k, relay.Swap: k + 1}[lie], right
	if text := fmt.Sprintf("got sequence number %d, want %d", got, want); !errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), text) {
		t.Errorf("got %v, want a refusal with %q", err, text)
	}
	if len(in.bodies) != right {
		t.Errorf("got %d frames, want the %d before the fault", len(in.bodies), right)
	}
	for i, b := range in.bodies {
		if want := fmt.Sprint("body ", i, strings.Repeat("x", 10*i)); string(b) != want {
			t.Errorf("frame %d: got %q, want %q", i, b, want)
		}
	}
}

// traffic returns the results of the method Traffic.
func traffic(c transport.Conn) (sent, acked, received, arrived uint64) {
	return c.(interface{ Traffic() (_, _, _, _ uint64) }).Traffic()
}

// Each end must learn from the frames of the other end how many bytes have arrived there.
func TestFramesCarryAcknowledgements(t *testing.T) {
	near, far := New(Options{}), New(Options{})
	defer near.Close()
	defer far.Close()
	conns := make(chan transport.Conn, 1)
	addr, err := far.Serve(listen(t), func(c transport.Conn) { conns <- c })
	if err != nil {
		t.Fatal(err)
	}
	a, err := near.Dial(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	b := <-conns
	b.(transport.Pending).Admit()
	const frame = preambleSize + 100
	for round := range uint64(3) {
		for _, ends := range [][2]transport.Conn{{a, b}, {b, a}} {
			var in recordingSink
			ends[0].Send(&transport.Frame{Body: make([]byte, 100), Done: func(error) {}})
			for in.last != 100 {
				if _, err := ends[1].Progress(&in, 1); err != nil {
					t.Fatal(err)
				}
			}
		}
		if _, acked, received, _ := traffic(a); acked != (round+1)*frame || received != (round+1)*frame {
			t.Errorf("round %d: got %d bytes acknowledged and %d received, want %d", round, acked, received, (round+1)*frame)
		}
	}
}
