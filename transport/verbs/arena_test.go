package verbs

import (
	"bytes"
	"errors"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/verbs/internal/rdma"
	"github.com/tutti-go/tutti/transport/verbs/softdevice"
)

// registrations returns how many memory regions the fabric holds.
func registrations(f *softdevice.Fabric) int {
	_, regions := f.Held()
	return regions
}

func TestArenaIsRegisteredOnce(t *testing.T) {
	b := newConnPair(t, softdevice.NewFabric(), Options{})
	home := b.ends[1].transport
	mem, free, err := home.Alloc(1 << 20)
	if err != nil || rdma.AddressOf(mem)%64 != 0 || len(mem) != 1<<20 || bytes.Count(mem, []byte{0}) != len(mem) {
		t.Fatalf("%d bytes at %#x: %v", len(mem), rdma.AddressOf(mem), err)
	}
	before := registrations(b.fabric)
	b.ends[1].Send(&transport.Frame{Body: mem[100:80_000], Done: ignore})
	b.until("what was sent from it", func() bool { return b.sinks[0].n == 1 })
	to, release, err := b.ends[1].Expose(1, mem[5000:6000])
	if err != nil {
		t.Fatal(err)
	}
	if err := free(); !errors.Is(err, fault.Misuse) {
		t.Errorf("free of exposed memory: got %v, want %v", err, fault.Misuse)
	}
	<-waitDone(b, b.send(&transport.Frame{To: to, ID: 1, Body: bytes.Repeat([]byte{7}, 1000)}))
	b.until("what was written to it", func() bool { return b.sinks[1].n == 1 })
	if bytes.Count(mem, []byte{7}) != 1000 || mem[5000] != 7 {
		t.Error("the write is not where the memory was exposed")
	}
	// The three new registrations are for the requested buffer, the ring that came with it, and the
	// body that was written.
	if got := registrations(b.fabric); got > before+3 {
		t.Errorf("%d registrations, before %d", got, before)
	}
	release()
	if err := free(); err != nil {
		t.Error(err)
	}
	if err := free(); !errors.Is(err, fault.Misuse) {
		t.Errorf("the second time: got %v, want %v", err, fault.Misuse)
	}
}

// waitDone progresses both ends until a Done has run, and returns a channel with its error.
func waitDone(b *connPair, done <-chan error) <-chan error {
	out := make(chan error, 1)
	b.until("Done", func() bool {
		select {
		case err := <-done:
			out <- err
			return true
		default:
			return false
		}
	})
	return out
}

// Two parts of one arena are exposed at the same time, and one part is released before the peer has
// written to it. A late write to that part must be refused, and the other part must stay exposed.
func TestPartsOfAnArenaAreExposedAndReleasedSeparately(t *testing.T) {
	f := softdevice.NewFabric()
	d := f.Device(0)
	c := newCache(d, 1<<20, true)
	mem, _, _ := d.Memory(1000)
	arena, err := c.addArena(mem)
	if err != nil {
		t.Fatal(err)
	}
	acquire := func(b []byte) *registration {
		l, err := c.acquire(b)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	first, second := acquire(mem[:400]), acquire(mem[400:])
	if first != arena || second == arena || first.region.RKey == second.region.RKey {
		t.Error("two uses share one registration")
	}
	if err := c.removeArena(arena); !errors.Is(err, errInUse) {
		t.Errorf("got %v, want %v", err, errInUse)
	}
	key := first.region.RKey
	first.invalidate()
	if f.Writable(key, rdma.AddressOf(mem), 1) || !f.Writable(second.region.RKey, rdma.AddressOf(mem[400:]), 600) {
		t.Error("released memory can be written, or exposed memory cannot")
	}
	again := acquire(mem[10:20])
	if again != arena || again.region.RKey == key {
		t.Error("the key of the released memory is valid again")
	}
	again.release()
	second.release() // cached from now on
	if err := c.removeArena(arena); err != nil {
		t.Error(err)
	}
	if n := registrations(f); n > 0 {
		t.Errorf("%d registrations of memory that was freed", n)
	}
	if l := acquire(mem[:10]); l == arena {
		t.Error("freed memory counts as an arena's")
	} else {
		l.release()
	}
	c.close()
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

func TestArenaOutlivesItsTransport(t *testing.T) {
	b := newConnPair(t, softdevice.NewFabric(), Options{})
	home := b.ends[0].transport
	mem, free, err := home.Alloc(100)
	if err != nil {
		t.Fatal(err)
	}
	if err := home.Close(); err != nil {
		t.Error(err)
	}
	mem[99] = 1
	if err := free(); err != nil {
		t.Error(err)
	}
	if _, _, err := home.Alloc(100); !errors.Is(err, fault.Closed) {
		t.Errorf("after Close: got %v, want %v", err, fault.Closed)
	}
	if _, _, err := b.ends[1].transport.Alloc(-1); !errors.Is(err, fault.Misuse) {
		t.Errorf("a negative size: got %v, want %v", err, fault.Misuse)
	}
}
