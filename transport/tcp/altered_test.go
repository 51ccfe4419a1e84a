package tcp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/relay"
	"github.com/tutti-go/tutti/transport"
)

// framing describes a stream of frames after its first bytes.
func framing(first int) relay.Framing {
	return relay.Framing{First: first, Preamble: preambleLen, Size: func(p []byte) int {
		word := binary.LittleEndian.Uint64(p)
		return preambleLen + int(word>>48&0xFF) + int(word&(1<<48-1))
	}}
}

// A relay injects each fault into each frame of a short stream, in both directions. The receiver
// must get the frames before the fault, and then an error that names the frame numbers. If the last
// frame is dropped, only the counts of the two ends show the fault.
func TestAlteredFramesAreNoticedAtOnce(t *testing.T) {
	const frames = 5
	for kind, dialler := range map[string]func() transport.Transport{
		"raw":    func() transport.Transport { return New(Options{}) },
		"stream": func() transport.Transport { return portable{New(Options{})} },
	} {
		for _, lie := range []relay.Fault{relay.Drop, relay.Double, relay.Swap} {
			for k := range frames {
				for _, up := range []bool{true, false} {
					t.Run(fmt.Sprintf("%s/%s %d up %v", kind, lie, k, up), func(t *testing.T) {
						filters := func(int) (relay.Filter, relay.Filter) {
							if up {
								return framing(len(magic)).Alter(lie, k), nil
							}
							return nil, framing(0).Alter(lie, k)
						}
						from, to := relayed(t, dialler(), filters)
						if !up {
							from, to = to, from
						}
						checkAltered(t, from, to, lie, k, frames)
					})
				}
			}
		}
	}
}

// relayed returns the two Conns of a link through a relay.
func relayed(t *testing.T, near transport.Transport, filters func(int) (up, down relay.Filter)) (dialled, accepted transport.Conn) {
	t.Helper()
	far := New(Options{})
	t.Cleanup(func() { near.Close(); far.Close() })
	conns := make(chan transport.Conn, 1)
	addr, err := far.Serve(listen(t), func(c transport.Conn) { conns <- c })
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), waitTime)
	defer cancel()
	if dialled, err = near.Dial(ctx, relay.Start(t, addr, filters)); err != nil {
		t.Fatal(err)
	}
	accepted = receive(t, conns)
	accepted.(transport.Pending).Admit()
	return dialled, accepted
}

// checkAltered sends frames over a link whose relay alters one frame.
func checkAltered(t *testing.T, from, to transport.Conn, lie relay.Fault, k, frames int) {
	t.Helper()
	for i := range frames {
		body := fmt.Sprint("body ", i, strings.Repeat("x", 10*i))
		from.Send(&transport.Frame{Head: []byte("head"), Body: []byte(body), ID: uint32(i), Done: func(error) {}})
	}
	in := &recordingSink{tb: t, most: 1000}
	right := k // frames before the fault
	if lie == relay.Double {
		right++
	}
	if lie != relay.Double && k == frames-1 {
		if err := move(t, to, in, func() bool { return len(in.got) == right }); err != nil {
			t.Fatal(err)
		}
		sent, lost := 0, preambleLen+len("head")+len(fmt.Sprint("body ", k))+10*k
		for i := range frames {
			sent += preambleLen + len("head") + len(fmt.Sprint("body ", i)) + 10*i
		}
		wantTraffic(t, from, traffic{sent: uint64(sent)})
		wantTraffic(t, to, traffic{received: uint64(sent - lost), arrived: uint64(sent - lost)})
		return
	}
	err := move(t, to, in, func() bool { return len(in.got) > frames })
	got, want := map[relay.Fault]int{relay.Drop: k + 1, relay.Double: k, relay.Swap: k + 1}[lie], right
	if text := fmt.Sprintf("got sequence number %d, want %d", got, want); !errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), text) {
		t.Errorf("got %v, want a refusal with %q", err, text)
	}
	if len(in.got) != right {
		t.Errorf("got %d frames, want the %d before the fault", len(in.got), right)
	}
	for i, f := range in.got {
		if !strings.HasPrefix(f, fmt.Sprintf("%d \"head\" \"body %d", i, i)) {
			t.Errorf("frame %d: got %s", i, f)
		}
	}
}

// A traffic holds the results of the method Traffic.
type traffic struct{ sent, acked, received, arrived uint64 }

// wantTraffic waits until a Conn has these counts. The wait is needed because a stream's writer
// counts bytes only after it has written them.
func wantTraffic(t *testing.T, c transport.Conn, want traffic) {
	t.Helper()
	var got traffic
	for deadline := time.Now().Add(waitTime); got != want; runtime.Gosched() {
		got.sent, got.acked, got.received, got.arrived = c.(interface{ Traffic() (_, _, _, _ uint64) }).Traffic()
		if time.Now().After(deadline) {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	}
}

// Each end must learn from the frames of the other end how many bytes have arrived there.
func TestFramesCarryAcknowledgements(t *testing.T) {
	forEachKind(t, func(t *testing.T, o Options) {
		near, far := pair(t, o)
		far.(transport.Pending).Admit()
		ping := func(from, to transport.Conn) {
			in := new(bufferSink)
			from.Send(&transport.Frame{Head: []byte("head"), Body: make([]byte, 100), Done: func(error) {}})
			if err := move(t, to, in, func() bool { return in.frames == 1 }); err != nil {
				t.Fatal(err)
			}
		}
		const frame = preambleLen + 4 + 100
		ping(near, far)
		ping(near, far)
		wantTraffic(t, near, traffic{sent: 2 * frame})
		wantTraffic(t, far, traffic{received: 2 * frame, arrived: 2 * frame})
		ping(far, near)
		wantTraffic(t, near, traffic{sent: 2 * frame, acked: 2 * frame, received: frame, arrived: frame})
		ping(near, far)
		wantTraffic(t, far, traffic{sent: frame, acked: frame, received: 3 * frame, arrived: 3 * frame})
	})
}
