package comm

import "context"

// PrepareRecvNamed prepares one receive buffer for all tensors of one name from another rank. It
// exposes buf to that rank, which writes each tensor straight into buf without offering it first.
// RecvNamed without a buffer then returns the tensor with Data in buf. The sender may write the
// next tensor only after Tensor.Release.
//
// Some tensors do not arrive in buf, but in other memory: tensors that are small enough to be sent
// eagerly (Parameters.Threshold), tensors larger than buf, and tensors sent before the tensor in
// buf was released. If the transport cannot expose buf, or Checksums is set, no tensor arrives in
// buf, and the log says so. The transports memory and verbs expose any memory. The transport shm
// exposes only memory from Alloc, and at most 32 buffers at a time to each rank. If such a bound is
// reached, later receives try again to expose buf. On a communicator, a rank prepares at most one
// buffer for a name and a sender. The program must not write to the buffer until the returned
// function stop has returned.
//
// A call of stop ends the preparation. It returns when no rank writes into the buffer any more, and
// the program may use the buffer again. A tensor in the buffer that was not received is moved
// elsewhere. If ctx ends first, or if the job ends, for example by Abort, stop returns an error.
// The buffer then still belongs to the library, and the program may call stop again. Any goroutine
// may call stop.
func (c *Comm) PrepareRecvNamed(from int, name string, buf []byte) (stop func(context.Context) error, err error) {
	if err := c.checkNamed("preparerecvnamed", from, name, nil); err != nil {
		return nil, err
	}
	end, err := c.group.PrepareNamed(from, name, buf)
	if err != nil {
		return nil, c.messageError("preparerecvnamed "+name, err)
	}
	return func(ctx context.Context) error {
		if err := checkContext("preparerecvnamed "+name, ctx); err != nil {
			return err
		}
		if err := end(ctx); err != nil {
			return c.messageError("preparerecvnamed "+name, err)
		}
		return nil
	}, nil
}
