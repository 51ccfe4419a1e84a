package shm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// ringPair returns the two sides of one ring in plain memory.
func ringPair(size int) (*producer, *consumer, ring) {
	words := make([]uint64, size/8+8)
	skip := -int(uintptr(unsafe.Pointer(&words[0]))) & (recordAlign - 1)
	r := ring(unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(words)*8)[skip : skip+size])
	var consumed atomic.Uint64
	p := newProducer(r, &consumed, new(doorbell))
	return &p, &consumer{ring: r, sharedConsumed: &consumed, doorbell: new(doorbell), pending: new(atomic.Bool), exposures: new(exposureTable)}, r
}

// A recordingSink is a Sink that keeps what arrives, and fails the test when a call breaks the
// contract.
type recordingSink struct {
	tb   testing.TB
	got  []string // heads and bodies
	body []byte
	n    int
	open bool
}

func (k *recordingSink) Buffer(h transport.Header) []byte {
	if k.open || h.Size < 0 || len(h.Head) > transport.MaxHead {
		k.tb.Fatalf("Buffer of a head of %d and %d bytes, while a frame is open: %v", len(h.Head), h.Size, k.open)
	}
	k.open, k.n = true, -1
	if h.Size > 64<<20 {
		k.body = nil // a forged size; dropped
		return nil
	}
	k.body = make([]byte, h.Size)
	return k.body
}

func (k *recordingSink) Arrived(h transport.Header, n int) {
	if !k.open || n <= k.n || n > h.Size || n == 0 && h.Size > 0 {
		k.tb.Fatalf("Arrived with %d of %d after %d, open: %v", n, h.Size, k.n, k.open)
	}
	k.n = n
	if n == h.Size {
		k.open = false
		k.got = append(k.got, fmt.Sprintf("%d %x %x", h.ID, h.Head, k.body))
	}
}

// drain reads records until none is left, up to the given number of records.
func (k *recordingSink) drain(c *consumer, most int) error {
	for range most {
		n, _, err := c.next(k)
		if err != nil || n == 0 {
			return err
		}
	}
	return nil
}

// Frames of random lengths must pass through rings of three sizes unchanged and in order. The
// consumer reads a few records now and then.
func TestRingKeepsFramesWholeAndInOrder(t *testing.T) {
	for seed := range uint64(12) {
		rng := rand.New(rand.NewPCG(seed, 1))
		p, c, _ := ringPair(minRing << rng.IntN(3))
		k := &recordingSink{tb: t}
		var want []string
		for id := range uint32(300) {
			size := rng.IntN(1 << rng.IntN(19))
			head, data := make([]byte, rng.IntN(transport.MaxHead+1)), make([]byte, size)
			for i := range head {
				head[i] = byte(rng.Uint32())
			}
			for i := range data {
				// No byte is 0. If the producer forgets to clear a header, the consumer takes these
				// bytes for a record, and the test fails.
				data[i] = byte(rng.Uint32() | 1)
			}
			want = append(want, fmt.Sprintf("%d %x %x", id, head, data))
			b := body{one: data, left: size}
			for first, whole := true, false; !whole; {
				n, err := 0, error(nil)
				if first && size <= maxWhole {
					whole, err = p.putWhole(id, head, &b)
				} else {
					n, err = p.putChunk(id, head, first, &b)
					first, whole = first && n == 0, n > 0 && b.left == 0
				}
				if err == nil && (n == 0 && !whole || rng.IntN(3) == 0) {
					if err = k.drain(c, 1+rng.IntN(20)); !c.hasRecord() {
						c.returnSpace()
					}
				}
				if err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			}
		}
		if err := k.drain(c, 1<<20); err != nil {
			t.Fatal(err)
		}
		if len(k.got) != len(want) {
			t.Fatalf("seed %d: %d frames of %d arrived", seed, len(k.got), len(want))
		}
		for i := range want {
			if k.got[i] != want[i] {
				t.Fatalf("seed %d: frame %d: got %.100s, want %.100s", seed, i, k.got[i], want[i])
			}
		}
	}
}

// While only small frames pass, only the beginning of the ring may be touched.
func TestSmallFramesUseLittleOfTheRing(t *testing.T) {
	p, c, r := ringPair(ringSize)
	k := &recordingSink{tb: t}
	for range 20_000 {
		b := body{one: []byte("12345678"), left: 8}
		if done, err := p.putWhole(1, []byte("head"), &b); !done || err != nil {
			t.Fatal(done, err)
		}
		if err := k.drain(c, 2); err != nil {
			t.Fatal(err)
		}
		c.returnSpace()
	}
	if len(k.got) != 20_000 {
		t.Fatalf("got %d frames", len(k.got))
	}
	if rest := r[smallWrap+4096:]; !bytes.Equal(rest, make([]byte, len(rest))) {
		t.Error("the rest of the ring was used as well")
	}
}

// The producer must detect impossible values of the consumer's count.
func TestImpossibleConsumerIndexIsRefused(t *testing.T) {
	for _, lie := range []uint64{64, 1, 1 << 63, ^uint64(0), 1<<64 - 64, uint64(minRing) * 5} {
		p, c, _ := ringPair(minRing)
		err := error(nil)
		for range minRing/1024 + 2 { // until it reads the count
			b := body{one: make([]byte, 1000), left: 1000}
			if c.sharedConsumed.Store(lie); lie == 64 {
				c.sharedConsumed.Store(p.produced + 64)
			}
			if _, err = p.putWhole(1, nil, &b); err != nil {
				break
			}
		}
		if !errors.Is(err, fault.LinkLost) {
			t.Errorf("taken %#x: got %v, want %v", lie, err, fault.LinkLost)
		}
	}
}

func TestImpossibleRecordsAreRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		w    recordHeader
		size uint64 // the size in a first chunk
	}{
		"no kind":                   {w: 1 << 20},
		"an unknown kind":           {w: makeHeader(9, 0, 0, 0)},
		"a head too long":           {w: makeHeader(kindWhole, 129, 0, 0)},
		"longer than the ring":      {w: makeHeader(kindWhole, 0, minRing, 0)},
		"more of nothing":           {w: makeHeader(kindMore, 0, 10, 0)},
		"a skip at the beginning":   {w: makeHeader(kindSkip, 0, 0, 0)},
		"a first of no bytes":       {w: makeHeader(kindFirst, 0, 0, 0), size: 100},
		"a first longer than all":   {w: makeHeader(kindFirst, 0, 101, 0), size: 100},
		"a body beyond any machine": {w: makeHeader(kindFirst, 0, 100, 0), size: 1 << 45},
		"a negative body":           {w: makeHeader(kindFirst, 0, 100, 0), size: 1<<64 - 1},
	} {
		_, c, r := ringPair(minRing)
		binary.NativeEndian.PutUint64(r, uint64(tc.w))
		binary.NativeEndian.PutUint64(r[8:], tc.size)
		k := &recordingSink{tb: t}
		if err := k.drain(c, 10); !errors.Is(err, fault.LinkLost) || len(k.got) > 0 {
			t.Errorf("%s: got %v and %q, want %v", name, err, k.got, fault.LinkLost)
		}
	}
}

func TestLongFrameBeforeAdmitIsRefused(t *testing.T) {
	for _, size := range []int{maxPendingBody, maxPendingBody + 1, 100_000} {
		p, c, _ := ringPair(minRing)
		c.pending.Store(true)
		b := body{one: make([]byte, size), left: size}
		var err error
		if size <= maxWhole {
			_, err = p.putWhole(1, nil, &b)
		} else {
			_, err = p.putChunk(1, nil, true, &b)
		}
		if err != nil {
			t.Fatal(err)
		}
		err = (&recordingSink{tb: t}).drain(c, 1)
		if refused := errors.Is(err, fault.Refused); refused != (size > maxPendingBody) {
			t.Errorf("%d bytes: got %v", size, err)
		}
	}
}

// FuzzRing writes arbitrary bytes into the ring, and into the consumer's count, while both sides
// work. No memory outside the ring may be accessed, and no call of the Sink may break the contract.
// Errors are expected.
func FuzzRing(f *testing.F) {
	f.Add([]byte{}, []byte{0, 0, 1})
	f.Add(binary.NativeEndian.AppendUint64(nil, uint64(makeHeader(kindWhole, 3, 5, 7))), []byte{0, 0})
	f.Add(binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(nil, uint64(makeHeader(kindFirst, 3, 5, 7))), 100), []byte{0, 0, 9, 1})
	f.Fuzz(func(t *testing.T, lies, steps []byte) {
		p, c, r := ringPair(minRing)
		k := &recordingSink{tb: t}
		steps = steps[:min(len(steps), 200)]
		for i, s := range steps {
			at := int(s) * recordAlign % len(r)
			switch s % 4 {
			case 0:
				copy(r[at:], lies)
			case 1:
				if len(lies) >= 8 {
					c.sharedConsumed.Store(binary.NativeEndian.Uint64(lies) + uint64(s))
				}
			case 2:
				size := int(s) << (i % 9)
				b := body{one: make([]byte, size), left: size}
				var err error
				if size <= maxWhole {
					_, err = p.putWhole(uint32(i), lies[:min(len(lies), 128)], &b)
				} else {
					_, err = p.putChunk(uint32(i), nil, true, &b)
				}
				if err != nil {
					return
				}
			case 3:
				if k.drain(c, int(s)) != nil {
					return
				}
				c.returnSpace()
			}
		}
	})
}
