package grpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/transport"
)

// The bytes of HTTP/2 that an unauthenticated peer may send (RFC 9113, sections 3.4 and 4.1).
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

const (
	frameData         = 0x0
	frameHeaders      = 0x1
	frameSettings     = 0x4
	frameContinuation = 0x9
	endHeaders        = 0x4
)

// h2Frame is one HTTP/2 frame.
func h2Frame(kind, flags byte, stream uint32, payload []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(payload))<<8|uint32(kind))
	b = append(b, flags)
	b = binary.BigEndian.AppendUint32(b, stream)
	return append(b, payload...)
}

// fields encodes a header block of literal fields without indexing (RFC 7541, section 6.2.2).
func fields(pairs ...string) []byte {
	var b []byte
	for i, s := range pairs {
		if i%2 == 0 {
			b = append(b, 0)
		}
		b = append(append(b, byte(len(s))), s...)
	}
	return b
}

// request encodes a HEADERS frame that opens a stream.
func request(stream uint32, path string, more ...string) []byte {
	return h2Frame(frameHeaders, endHeaders, stream, fields(append([]string{
		":method", "POST", ":scheme", "http", ":path", path, ":authority", "x",
		"content-type", "application/grpc", "te", "trailers"}, more...)...))
}

// wireMessage returns the bytes that a peer sends after the preface and empty settings.
func wireMessage(parts ...[]byte) []byte {
	return append(append([]byte(preface), h2Frame(frameSettings, 0, 0, nil)...), bytes.Join(parts, nil)...)
}

// data encodes one gRPC message in a DATA frame.
func data(stream uint32, msg []byte) []byte {
	head := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(msg)))
	return h2Frame(frameData, 0, stream, append(head, msg...))
}

func TestUnprovenPeersAreRefusedAndOthersServed(t *testing.T) {
	big := bytes.Repeat([]byte("x"), 16000)
	for _, tc := range []struct {
		name  string
		bytes []byte
	}{
		{"nothing at all", nil},
		{"half a preface", []byte(preface[:10])},
		{"a web request", []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")},
		{"noise behind the preface", append([]byte(preface), bytes.Repeat([]byte{0xa5}, 1000)...)},
		{"a preface and silence", []byte(preface)},
		{"settings and silence", wireMessage()},
		{"another method", wireMessage(request(1, "/another/Method"))},
		{"an unknown compression", wireMessage(request(1, methodName, "grpc-encoding", "magic"))},
		{"a deadline that has passed", wireMessage(request(1, methodName, "grpc-timeout", "1n"))},
		{"endless headers", wireMessage(h2Frame(frameHeaders, 0, 1, big), h2Frame(frameContinuation, 0, 1, big), h2Frame(frameContinuation, 0, 1, big))},
		{"a stream of noise", wireMessage(request(1, methodName), data(1, bytes.Repeat([]byte{0x5a}, 100)))},
		{"a stream and too many bytes", wireMessage(request(1, methodName), data(1, encode(&transport.Frame{}, 0)), data(1, big), data(1, big), data(1, big))},
		{"a message too large to be one", wireMessage(request(1, methodName), h2Frame(frameData, 0, 1, []byte{0, 0x7f, 0xff, 0xff, 0xff}))},
		{"a frame with a long body", wireMessage(request(1, methodName), data(1, encode(&transport.Frame{Body: make([]byte, pendingBody+1)}, 0)))},
		{"two streams", wireMessage(request(1, methodName), request(3, methodName))},
		{"many streams", wireMessage(request(1, methodName), request(3, methodName), request(5, methodName), request(7, "/x/y"))},
	} {
		t.Run(tc.name, func(t *testing.T) {
			leak.Check(t)
			h := newUnprovenPeers(t)
			defer h.close()
			h.connect(tc.bytes)
			near, err := h.dialler.Dial(context.Background(), h.addr)
			if err != nil {
				t.Fatalf("Dial after the stranger: %v", err)
			}
			if err := near.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// An unprovenPeers serves unauthenticated peers like package mesh: it waits a limited time for the
// first frame, and then closes the Conn.
type unprovenPeers struct {
	t               *testing.T
	server, dialler *Transport
	addr            string
}

func newUnprovenPeers(t *testing.T) *unprovenPeers {
	t.Helper()
	h := &unprovenPeers{t: t, server: New(Options{Log: slog.New(slog.DiscardHandler)}), dialler: New(Options{})}
	h.server.openTimeout = 100 * time.Millisecond
	addr, err := h.server.Serve(listen(t), func(c transport.Conn) { go h.receive(c) })
	if err != nil {
		t.Fatal(err)
	}
	h.addr = addr
	return h
}

// receive checks that the Conn of an unauthenticated peer delivers only small frames.
func (h *unprovenPeers) receive(c transport.Conn) {
	defer c.Close()
	late := time.AfterFunc(200*time.Millisecond, func() { c.Close() })
	defer late.Stop()
	var got recordingSink
	_, err := drain(h.t, c, &got, never)
	for _, b := range got.bodies {
		if len(b) > pendingBody {
			h.t.Errorf("a stranger's body of %d bytes was placed", len(b))
		}
	}
	var f *fault.Error
	if !errors.As(err, &f) || strings.Contains(err.Error(), "code =") {
		h.t.Errorf("the Conn ended with %v, want a *fault.Error without a status code", err)
	}
}

// connect sends b and waits for the end of the connection.
func (h *unprovenPeers) connect(b []byte) {
	h.t.Helper()
	c, err := net.Dial("tcp", h.addr)
	if err != nil {
		h.t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	c.Write(b) // may fail: the server need not read all of it
	_, err = io.Copy(io.Discard, c)
	var slow net.Error
	if errors.As(err, &slow) && slow.Timeout() {
		h.t.Error("the stranger is still connected after 20 s")
	}
}

func (h *unprovenPeers) close() {
	h.dialler.Close()
	h.server.Close()
}

func TestUnprovenPeersDoNotDelayClose(t *testing.T) {
	leak.Check(t)
	tr := New(Options{})
	addr, err := tr.Serve(listen(t), func(transport.Conn) {})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range [][]byte{nil, []byte(preface), wireMessage(), wireMessage(request(1, methodName))} {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.Write(b)
	}
	start := time.Now()
	tr.Close()
	if elapsed := time.Since(start); elapsed > defaultOpenTimeout/2 {
		t.Errorf("Close took %v", elapsed)
	}
}

func TestPendingConnsAreBoundedUntilAdmit(t *testing.T) {
	for _, tc := range []struct {
		name        string
		frames      int
		size        int
		admit       bool
		least, most int // bounds of the number of frames that arrive
	}{
		{"a short body is taken", 1, pendingBody, false, 1, 1},
		{"a long body is not", 1, pendingBody + 1, false, 0, 0},
		{"nor are many short ones", 20, pendingBody, false, 0, 7},
		{"after Admit anything is", 20, 1 << 20, true, 20, 20},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := New(Options{}), New(Options{})
			defer a.Close()
			defer b.Close()
			accepted := make(chan transport.Conn, 1)
			addr, err := b.Serve(listen(t), func(c transport.Conn) { accepted <- c })
			if err != nil {
				t.Fatal(err)
			}
			near, err := a.Dial(context.Background(), addr)
			if err != nil {
				t.Fatal(err)
			}
			if _, ok := near.(transport.Pending); ok {
				t.Error("the dialling end is a Guest")
			}
			far := <-accepted
			if tc.admit {
				far.(transport.Pending).Admit()
			}
			for range tc.frames {
				near.Send(&transport.Frame{Body: make([]byte, tc.size), Done: func(error) {}})
			}
			got, err := drain(t, far, new(recordingSink), func(n int) bool { return n == tc.frames })
			if got > tc.most || got < tc.least {
				t.Errorf("%d frames arrived, and %v; want %d to %d", got, err, tc.least, tc.most)
			}
			if (err == nil) != (got == tc.frames) {
				t.Errorf("the Conn ended with %v", err)
			}
		})
	}
}
