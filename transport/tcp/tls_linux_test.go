package tcp

import (
	"bytes"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// securePair returns both ends of a link under TLS whose listener has done the handshake.
func securePair(t *testing.T) (dialled, accepted *raw) {
	t.Helper()
	all := secureListeners(t, 2)
	for _, n := range all {
		t.Cleanup(func() { n.Transport.Close() })
	}
	conns := make(chan transport.Conn, 1)
	addr, err := all[1].Transport.Serve(all[1].Listener, func(c transport.Conn) { conns <- c })
	if err != nil {
		t.Fatal(err)
	}
	near, err := all[0].Transport.Dial(soon(t), addr)
	if err != nil {
		t.Fatal(err)
	}
	far := receive(t, conns)
	dialled, ok := near.(*raw)
	accepted, too := far.(*raw)
	if !ok || !too || dialled.tls == nil || accepted.tls == nil {
		t.Fatalf("got %T and %T, want TLS on two descriptors of Conns", near, far)
	}
	return dialled, accepted
}

func TestTLSRunsOnTheConnsOwnDescriptors(t *testing.T) {
	near, far := securePair(t)
	far.Admit()
	for _, size := range []int{0, 1, stageBytes - 1, stageBytes + 1, sealBytes, 3<<20 + 7} {
		body := bytes.Repeat([]byte{byte(size), 1, 2, 3, 5, 8, 13}, size/7+1)[:size]
		sent := make(chan error, 1)
		near.Send(&transport.Frame{Head: []byte("h"), Body: body, Done: func(err error) { sent <- err }})
		in, pump := &bufferSink{}, &bufferSink{}
		err := move(t, far, in, func() bool {
			near.Progress(pump, 1) // writes the bytes for which the socket had no room
			return in.frames == 1
		})
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(in.body[:size], body) {
			t.Errorf("%d bytes arrived altered", size)
		}
		if err := receive(t, sent); err != nil {
			t.Error(err)
		}
	}
}

func TestAConnUnderTLSWithoutBytesIsIdleAndWakesForThem(t *testing.T) {
	near, far := securePair(t)
	far.Admit()
	in := &bufferSink{}
	// This reads the magic.
	if err := move(t, far, in, func() bool { return !far.buffered.Load() }); err != nil {
		t.Fatal(err)
	}
	woken := make(chan struct{})
	far.Arm(func() { close(woken) })
	near.Send(&transport.Frame{Head: []byte("h"), Done: func(error) {}})
	receive(t, woken)
	if err := move(t, far, in, func() bool { return in.frames == 1 }); err != nil {
		t.Fatal(err)
	}
	if n, errno := far.tls.read(make([]byte, 8), nil); n != 0 || errno != syscall.EAGAIN {
		t.Errorf("a read without bytes: got %d and %v, want %v", n, errno, syscall.EAGAIN)
	}
}

// If an attacker on the path alters a byte of a record, or cuts the connection within a record, the
// Conn must fail.
func TestARecordThatIsAlteredOrCutEndsTheConn(t *testing.T) {
	for name, alter := range map[string]func(record []byte) []byte{
		"altered": func(b []byte) []byte { b[len(b)-1] ^= 1; return b },
		"cut":     func(b []byte) []byte { return b[:len(b)-1] },
	} {
		t.Run(name, func(t *testing.T) {
			near, far := securePair(t)
			far.Admit()
			in := &bufferSink{}
			if err := move(t, far, in, func() bool { return !far.buffered.Load() }); err != nil {
				t.Fatal(err)
			}
			near.tls.seal([]byte("bytes that never arrive"))
			if record := alter(near.tls.out); !writeWhole(near.fd, record) {
				t.Fatal("cannot write")
			}
			syscall.Shutdown(near.fd, syscall.SHUT_WR)
			err := move(t, far, in, func() bool { return false })
			if !errors.Is(err, fault.LinkLost) || in.frames != 0 {
				t.Errorf("got %v and %d frames, want %v and none", err, in.frames, fault.LinkLost)
			}
			if name == "cut" && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("got %v, want the end of the stream", err)
			}
		})
	}
}

// writeWhole writes a few bytes to a socket with room for them.
func writeWhole(fd int, b []byte) bool {
	n, err := syscall.Write(fd, b)
	return err == nil && n == len(b)
}

func TestWhatWaitsForAPeerThatReadsNothingIsBounded(t *testing.T) {
	s := &tlsConn{}
	record := make([]byte, stageBytes)
	n := 0
	for ; n < 1000; n++ {
		if _, err := s.Write(record); err != nil {
			break
		}
	}
	if n*stageBytes > maxUnsent+2*stageBytes {
		t.Errorf("%d bytes wait, want at most about %d", n*stageBytes, maxUnsent)
	}
	var _ net.Conn = s
}
