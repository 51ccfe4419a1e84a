package mesh

import (
	"errors"
	"slices"
	"testing"

	"github.com/tutti-go/tutti/transport"
)

// A countingConn is a Conn that counts the calls of Progress.
type countingConn struct {
	transport.Conn // nil: no other method is called
	turns          int
}

func (c *countingConn) Send(f *transport.Frame) { f.Done(nil) }
func (c *countingConn) Progress(transport.Sink, int) (transport.State, error) {
	c.turns++
	return transport.Moved, nil
}
func (c *countingConn) Arm(func())   {}
func (c *countingConn) Close() error { return nil }

// After DeferFailure, as by a Sink that rejects a frame, the next Progress must not poll the Conn.
// Otherwise another frame could arrive, and the layer above would mistake it for the rejected one.
func TestNothingArrivesOnALinkWithADeferredFailure(t *testing.T) {
	bubble(t, func(t *testing.T) {
		above := &recorder{got: make(map[string]int)}
		r := started(t, 2, func(_ int, cfg *Config) { cfg.Data = above })
		defer r.close()
		conn := new(countingConn)
		l := r.meshes[0].Link(1)
		l.install(conn, linkIdle, position{})
		l.DeferFailure(errors.New("a frame that cannot be"))
		l.Progress()
		if conn.turns != 0 {
			t.Errorf("the Conn had %d more turns", conn.turns)
		}
		if got, want := above.lost(), []int{1}; !slices.Equal(got, want) {
			t.Errorf("links %v are down, want %v", got, want)
		}
	})
}
