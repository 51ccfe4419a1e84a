package mesh

import (
	"context"

	"github.com/tutti-go/tutti/transport"
)

// A lane is what a Conn is for. It is agreed in the handshake.
type lane uint8

const (
	laneControl lane = iota + 1 // heartbeats, floods, verdicts
	laneData                    // messages
	laneJoin                    // the address exchange through rank 0
)

// dialLane opens a Conn to rank and proves who we are. It tries once. A peer that
// turns us down gets fault.Refused, or errDuplicate when it has such a Conn already.
func (m *Mesh) dialLane(ctx context.Context, rank int, l lane) (transport.Conn, error) {
	return nil, errDuplicate
}
