package comm

import "context"

// PrepareRecvNamed declares once where the tensors of a name from rank from arrive: buf is
// exposed to that rank, which writes each of them straight into it, without offering it
// first. RecvNamed without a buffer returns such a tensor with Data in buf, until
// Tensor.Release allows the sender to write the next one.
//
// Tensors that are small enough to be sent eagerly (Parameters.Threshold), that are larger than
// buf, or that are sent before the one in buf was released come the ordinary way, with
// Data elsewhere. So do all tensors if the transport cannot expose buf, or Checksums is set; the log
// says so. The transports memory and verbs expose any memory, shm only memory from Alloc, and at
// most 32 buffers at a time to each rank. If such a bound is reached, later receives try again to
// expose buf. A name has at most one prepared buffer, which the program does not write to until
// stop has returned.
//
// stop ends the preparation. It returns when no rank writes into the buffer any more, and the
// program may use it. A tensor in the buffer that was not received is moved elsewhere. If ctx ends
// first, the buffer still belongs to the library, and stop may be called again. stop may be called
// by any goroutine.
func (c *Comm) PrepareRecvNamed(from int, name string, buf []byte) (stop func(context.Context) error, err error) {
	if err := c.checkNamed("preparerecvnamed", from, name, nil); err != nil {
		return nil, err
	}
	end, err := c.group.PrepareNamed(from, name, buf)
	if err != nil {
		return nil, c.withOp("preparerecvnamed "+name, err)
	}
	return func(ctx context.Context) error {
		if err := checkContext("preparerecvnamed "+name, ctx); err != nil {
			return err
		}
		if err := end(ctx); err != nil {
			return c.withOp("preparerecvnamed "+name, err)
		}
		return nil
	}, nil
}
