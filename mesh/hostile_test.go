package mesh

import (
	"context"
	"encoding/binary"
	"hash/crc32"
	"slices"
	"testing"
	"time"

	"github.com/tutti-go/tutti/mesh/membership"
	"github.com/tutti-go/tutti/transport"
)

// FuzzControlStream lets a rank of the job, which has proven its identity, send any messages over
// its control link. Each message of the script is its length, its head without checksum and its
// body. The rank must neither panic nor take more memory for a body than maxBody, and it must go on
// to answer and to close in time.
func FuzzControlStream(f *testing.F) {
	for kind := range membership.MessageKind(255) {
		if !kind.Valid() {
			continue
		}
		m := membership.Message{Kind: kind, Origin: 1, Seq: 1, About: 2, Body: []byte("body")}
		head := appendControl(nil, m)[:controlSize-sumSize]
		f.Add(slices.Concat([]byte{byte(len(m.Body))}, head, m.Body))
		big := slices.Concat([]byte{1}, head, m.Body)
		binary.LittleEndian.PutUint32(big[1+28:], 1<<20)
		f.Add(big)
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		bubble(t, func(t *testing.T) {
			r := newTestJob(t, 3)
			r.start(t.Context(), upTo(3), withData)
			defer r.close()
			m := r.meshes[0]
			for n := 0; len(script) >= controlSize && n < 32; n++ {
				size := int(script[0])
				head := append([]byte(nil), script[1:controlSize-sumSize+1]...)
				script = script[controlSize-sumSize+1:]
				body := script[:min(size, len(script))]
				script = script[len(body):]
				if size%2 == 0 { // the head gets the body's length; otherwise it keeps the script's
					binary.LittleEndian.PutUint32(head[28:], uint32(len(body)))
				}
				deliverFrame(t, m, head, body)
				// Reason: the rank acts on the message, and on the time. No real time passes.
				time.Sleep(100 * time.Millisecond)
			}
			m.control.missing() // returns, because the goroutine runs
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			began := time.Now()
			m.Close(ctx) // any error
			if elapsed := time.Since(began); elapsed > 6*time.Second {
				t.Errorf("Close takes %v", elapsed)
			}
		})
	})
}

// deliverFrame lets a message of rank 1 arrive at a rank, with right checksums.
func deliverFrame(t *testing.T, m *Mesh, head, body []byte) {
	done := make(chan struct{})
	m.control.post(func(c *control) {
		defer close(done)
		l := c.links[1]
		if l == nil || l.brokenBecause != "" {
			return
		}
		binary.LittleEndian.PutUint32(head[32:], crc32.Checksum(body, castagnoli))
		h := transport.Header{Head: sealHead(head, 0), Size: int(binary.LittleEndian.Uint32(head[28:]))}
		buf := l.Buffer(h)
		if len(buf) > maxBody {
			t.Errorf("a message gets %d bytes, want at most %d", len(buf), maxBody)
		}
		copy(buf, body)
		if l.protocolErr == nil {
			l.Arrived(h, h.Size)
			l.deliver()
		}
		if l.protocolErr != nil {
			c.linkDown(l, l.protocolErr.Error())
		}
	})
	select {
	case <-done:
	case <-m.control.done:
	}
}
