package comm

import (
	"context"

	"github.com/tutti-go/tutti/rendezvous"
)

// A PreparedRecv is a buffer that one rank writes the tensors of one name into, step
// after step; see PrepareRecvNamed. Its methods may be called concurrently.
type PreparedRecv struct {
	c    *Comm
	name string
	recv *rendezvous.PreparedRecv
}

// PrepareRecvNamed declares once where the tensors of a name from rank from arrive: buf is
// exposed to that rank, which writes each of them straight into it, without offering it
// first. RecvNamed without a buffer returns such a tensor with Data in buf, until
// Tensor.Release allows the sender to write the next one.
//
// Tensors that are small enough to be sent eagerly (Parameters.Threshold), that are larger than
// buf, or that are sent before the one in buf was released come the ordinary way, with
// Data elsewhere; so do all where the transport cannot expose memory. A name has at most
// one prepared buffer, which the program does not write to until Close has returned.
func (c *Comm) PrepareRecvNamed(from int, name string, buf []byte) (*PreparedRecv, error) {
	if err := c.checkNamed("preparerecvnamed", from, name, nil); err != nil {
		return nil, err
	}
	recv, err := c.group.Context().PrepareNamed(c.group.WorldRank(from), name, buf)
	if err != nil {
		return nil, c.withOp("preparerecvnamed "+name, err)
	}
	return &PreparedRecv{c, name, recv}, nil
}

// Exposed reports whether the sender may write into the buffer. It becomes true when the
// connection to the sender is established, and never where the transport cannot expose memory:
// then the tensors come the ordinary way.
func (p *PreparedRecv) Exposed() bool { return p.recv.Exposed() }

// Close ends the preparation. It returns when no rank writes into the buffer any more, and the
// program may use it. A tensor in the buffer that was not received is moved elsewhere.
// When ctx ends first, the buffer is still the library's, and Close may be called again.
func (p *PreparedRecv) Close(ctx context.Context) error {
	if err := p.recv.Close(ctx); err != nil {
		return p.c.withOp("preparerecvnamed "+p.name, err)
	}
	return nil
}
