package rendezvous

import "github.com/tutti-go/tutti/transport"

// A remoteBuffer is a buffer that a peer has prepared. This rank writes the tensors of one name
// into it. The engine's lock guards it.
//
//	filled  writer  meaning
//	false   nil     free: the next tensor that fits may be written
//	true    set     a send writes there; aborted, it leaves the buffer free
//	true    nil     the peer was notified; its release frees the buffer
//
// An unprepare frame removes the buffer from remoteByKey at once. This rank acknowledges the frame
// when no send writes to the buffer any more. Every kindWritten frame for the buffer precedes the
// acknowledgement on the stream.
type remoteBuffer struct {
	id      uint32
	key     preparedKey
	token   transport.Token
	size    uint64
	filled  bool     // from the first write until the peer releases it
	writer  *Request // the send that writes there and is not announced yet
	closing bool     // the peer has sent an unprepare frame
}

// handlePrepare records a buffer that the peer has prepared. Pending sends can use it, because
// launch looks up the buffer.
func (p *peer) handlePrepare(h *frameHeader, name []byte) {
	k := preparedKey{h.context, string(name)}
	switch {
	case p.remote[h.id] != nil || p.remoteByKey[k] != nil:
		p.protocolError("prepare: got buffer %d for tensor %q a second time, want it once", h.id, name)
	// The bound is twice maxPrepared, because the peer no longer counts a buffer once it has sent
	// the unprepare frame.
	case len(p.remote) >= 2*maxPrepared:
		p.protocolError("prepare: got %d buffers, want at most %d", 2*maxPrepared+1, 2*maxPrepared)
	default:
		rb := &remoteBuffer{id: h.id, key: k, token: h.token, size: h.size}
		p.remote[h.id], p.remoteByKey[k] = rb, rb
	}
}

// handleRelease frees a buffer whose tensor the peer has received.
func (p *peer) handleRelease(id uint32) {
	rb := p.remote[id]
	if rb == nil || !rb.filled || rb.writer != nil {
		p.protocolError("release: got buffer %d, want one that holds a tensor", id)
		return
	}
	rb.filled = false
}

// handleUnprepare stops the use of a remote buffer. It acknowledges at once, or when the buffer's
// writer is done.
func (p *peer) handleUnprepare(id uint32) {
	rb := p.remote[id]
	if rb == nil || rb.closing {
		p.protocolError("unprepare: got buffer %d, want one that was prepared", id)
		return
	}
	rb.closing = true
	delete(p.remoteByKey, rb.key)
	p.endRemote(rb)
}

// endRemote acknowledges the end of a buffer that is closing and has no writer.
func (p *peer) endRemote(rb *remoteBuffer) {
	if rb.closing && rb.writer == nil {
		delete(p.remote, rb.id)
		p.sendControl(frameHeader{kind: kindUnprepareAck, id: rb.id})
	}
}

// remoteFor returns the remote buffer that a send may be written into, or nil. It returns nil if
// there is no buffer for the tensor's name, if the buffer is not free, if the tensor is empty or
// does not fit, or if there is no credit for its envelope.
func (p *peer) remoteFor(req *Request) *remoteBuffer {
	if req.tensor == nil || len(p.remoteByKey) == 0 || len(req.buf) == 0 || p.credit < envelopeCost {
		return nil
	}
	rb := p.remoteByKey[preparedKey{req.mc.id, req.key.name}]
	if rb == nil || rb.filled || uint64(len(req.buf)) > rb.size {
		return nil
	}
	return rb
}

// writeTo begins to write req into a remote buffer. It charges the credit of the envelope now, so
// that the announcement never waits for credit.
func (p *peer) writeTo(req *Request, rb *remoteBuffer) {
	rb.filled, rb.writer = true, req
	p.credit -= envelopeCost
	p.writing = append(p.writing, req)
	req.phase, req.remote, req.token = phaseFlowing, rb, rb.token
	p.enqueueData(req)
}

// announce queues a frame of kindWritten, which tells the peer that the tensor of req is in the
// buffer. The frame follows the last data frame of req.
func (p *peer) announce(req *Request) {
	var h frameHeader
	p.fillHeader(req, &h)
	h.kind, h.id = kindWritten, req.remote.id
	p.sendControl(h)
	p.endWrite(req)
}

// endWrite detaches req from its remote buffer when req has been announced or has ended.
func (p *peer) endWrite(req *Request) {
	rb := req.remote
	req.remote, rb.writer = nil, nil
	for i, w := range p.writing {
		if w == req {
			last := len(p.writing) - 1
			p.writing[i], p.writing[last] = p.writing[last], nil
			p.writing = p.writing[:last]
			break
		}
	}
	if p.isDown() == nil {
		p.endRemote(rb)
	}
}

// cancelWrite frees the buffer of a send that ended before it was announced. The peer does not know
// the send, so the credit of its envelope is free again, too.
func (p *peer) cancelWrite(req *Request) {
	if req.remote == nil {
		return
	}
	req.remote.filled = false
	p.endWrite(req)
	if p.isDown() == nil {
		p.addCredit(envelopeCost, 0)
	}
}

// overtakes reports whether an earlier message with req's key is still being written directly.
// Tensors with the same name and step must be received in the order sent, so req then waits in
// pending until the earlier message is announced.
func (p *peer) overtakes(req *Request) bool {
	for _, w := range p.writing {
		if req.tensor != nil && w.mc == req.mc && w.key == req.key {
			return true
		}
	}
	return false
}
