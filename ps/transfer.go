package ps

import (
	"bufio"
	"context"
	"encoding/binary"
	"io"
	"slices"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/ps/internal/assign"
	"github.com/tutti-go/tutti/ps/internal/message"
	"github.com/tutti-go/tutti/ps/internal/part"
	"github.com/tutti-go/tutti/ps/internal/storage"
)

// A transfer is a sequence of messages of at most maxChunk bytes. The last one is empty. They contain:
//
//	4 bytes  length, and then a message.PartHead with the part's State
//	4 bytes  length, and then the error of the last change, in its wire form
//	         the values and slots, as storage saves them
//	4 bytes  number of bodies that were folded for the next version, and then these
//	         the bodies that are Held, in the order of the clients in the State
//
// Each body is 4 bytes for its rows, 4 bytes for its length, and the body. All integers are little
// endian.
const maxChunk = 1 << 20

// maxHead bounds the head of a transfer.
const maxHead = 1 << 30

// transferAll carries out the transfers that this rank is part of, all in the order of the plan, so that
// no two ranks wait for each other. It returns, by rank of the epoch, the IDs of parts that the rank
// could not receive, for example because its memory is used up.
func (n *node) transferAll(ctx context.Context, e *epoch, transfers []assign.Transfer, registry map[uint32]*registered) (failed [][]uint64, err error) {
	var mine []uint64
	for _, t := range transfers {
		switch n.c.Rank() {
		case t.From:
			err = n.server.sendPart(&chunkWriter{ctx, e, t.To}, keyOf(t.ID))
		case t.To:
			r := &chunkReader{ctx: ctx, e: e, from: t.From}
			refused := n.server.receivePart(r, keyOf(t.ID), registry)
			_, err = io.Copy(io.Discard, r)
			if err == nil && refused != nil {
				n.opts.log.Warn("ps: cannot keep a copy of a part", "rank", n.worldRank(n.c.Rank()), "err", refused)
				mine = append(mine, t.ID)
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return exchange(ctx, e.c, mine)
}

// A chunkWriter sends a transfer.
type chunkWriter struct {
	ctx context.Context
	e   *epoch
	to  int
}

// Write implements io.Writer.
func (w *chunkWriter) Write(b []byte) (n int, err error) {
	for chunk := range slices.Chunk(b, maxChunk) {
		if err := w.e.wires.Send(w.ctx, w.e.ranks[w.to], tagTransfer, chunk); err != nil {
			return n, err
		}
		n += len(chunk)
	}
	return n, nil
}

// end sends the last message.
func (w *chunkWriter) end() error { return w.e.wires.Send(w.ctx, w.e.ranks[w.to], tagTransfer, nil) }

// A chunkReader receives a transfer.
type chunkReader struct {
	ctx  context.Context
	e    *epoch
	from int
	buf  []byte
	left []byte
	err  error
}

// Read implements io.Reader.
func (r *chunkReader) Read(b []byte) (int, error) {
	if len(r.left) == 0 && r.err == nil {
		if r.buf == nil {
			r.buf = make([]byte, maxChunk)
		}
		var n int
		n, r.err = r.e.wires.Recv(r.ctx, r.e.ranks[r.from], tagTransfer, r.buf)
		if r.left = r.buf[:n]; n == 0 && r.err == nil {
			r.err = io.EOF
		}
	}
	n := copy(b, r.left)
	r.left = r.left[n:]
	if n == 0 {
		return 0, r.err
	}
	return n, nil
}

// sendPart sends a part, whose machine is sealed.
func (s *Server) sendPart(to *chunkWriter, key partKey) error {
	s.mu.Lock()
	p := s.parts[key]
	s.mu.Unlock()
	w := bufio.NewWriterSize(to, maxChunk)
	state := p.machine.State()
	writeBytes(w, (&message.PartHead{Name: p.spec.Name, Part: key.part, State: state}).Append(nil))
	var failure []byte
	if p.failure != nil {
		failure = wireError(p.failure)
	}
	writeBytes(w, failure)
	var values storage.Save
	var err error
	if p.table != nil {
		values, err = p.table.Save()
	} else {
		values = p.dense.Save()
	}
	if err != nil {
		return err
	}
	_, err = values.WriteTo(w)
	values.Close()
	if err != nil {
		return err
	}
	writeNumber(w, len(p.folded))
	for _, j := range p.folded {
		writeBody(w, j)
	}
	for _, c := range state.Clients {
		if c.Share == part.Held {
			writeBody(w, p.jobs[c.Request])
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return to.end()
}

func writeNumber(w *bufio.Writer, n int) {
	w.Write(binary.LittleEndian.AppendUint32(nil, uint32(n))) // the error stays until Flush
}

func writeBytes(w *bufio.Writer, b []byte) {
	writeNumber(w, len(b))
	w.Write(b)
}

func writeBody(w *bufio.Writer, j *job) {
	writeNumber(w, j.q.Rows)
	writeBytes(w, j.body)
}

// receivePart receives a part, which replaces an older copy of it. After an error this server has no
// copy of the part, and the rest of the transfer must be read.
func (s *Server) receivePart(r io.Reader, key partKey, registry map[uint32]*registered) error {
	s.mu.Lock()
	if old := s.parts[key]; old != nil {
		delete(s.parts, key)
		old.free()
	}
	s.mu.Unlock()
	p, err := s.readPart(r, key, registry[key.tensor])
	if err != nil {
		return err
	}
	p.count64()
	s.mu.Lock()
	s.parts[key] = p
	s.mu.Unlock()
	return nil
}

func (s *Server) readPart(r io.Reader, key partKey, known *registered) (*shard, error) {
	b, err := readBytes(r, maxHead)
	if err != nil {
		return nil, err
	}
	head, ok := message.ParsePartHead(b)
	if !ok {
		return nil, s.errorf(fault.Mismatch, "transfer: got a part that cannot be read; run the same version of the program on all ranks")
	}
	failure, err := readBytes(r, maxHead)
	if err != nil {
		return nil, err
	}
	p, err := s.newCopy(&known.spec, key, known.placement.Parts[key.part])
	if err != nil {
		return nil, err
	}
	if err = p.read(r, head.State, failure); err != nil {
		p.free()
		return nil, err
	}
	return p, nil
}

// read reads what follows the head of a transfer.
func (p *shard) read(r io.Reader, state part.State, failure []byte) (err error) {
	if len(failure) > 0 {
		e, err := fault.ParseWire(failure)
		if err != nil {
			return err
		}
		p.failure = e
	}
	if p.table != nil {
		err = p.table.Load(r)
	} else {
		err = p.dense.Load(r)
	}
	if err != nil {
		return err
	}
	folded, err := readNumber(r)
	if err != nil {
		return err
	}
	for range folded {
		j, err := p.readBody(r)
		if err != nil {
			return err
		}
		p.folded = append(p.folded, j)
	}
	for i := range state.Clients {
		c := &state.Clients[i]
		if c.Share != part.Held {
			continue
		}
		j, err := p.readBody(r)
		if err != nil {
			return err
		}
		c.Request = j.name
	}
	p.machine = part.New(p.config(), state)
	return nil
}

// readBody reads the body of a push that belongs to an incomplete version.
func (p *shard) readBody(r io.Reader) (*job, error) {
	rows, err := readNumber(r)
	if err != nil {
		return nil, err
	}
	size, err := readNumber(r)
	if err != nil {
		return nil, err
	}
	p.next += 2
	j := &job{part: p, name: p.next, replied: true}
	j.q = message.Request{Kind: message.Replicate, Entry: uint8(part.Push), Rows: rows}
	if want := p.entrySize(&j.q); size != want {
		return nil, p.s.errorf(fault.Mismatch, "transfer of %s: got a push of %d bytes, want %d", p.name(), size, want)
	}
	if size > 0 {
		j.buffer = p.s.n.pool.get(size)
		j.body = j.buffer.Bytes()
	}
	if _, err := io.ReadFull(r, j.body); err != nil {
		return nil, err
	}
	p.jobs[j.name] = j
	return j, nil
}

func readNumber(r io.Reader) (int, error) {
	var b [4]byte
	_, err := io.ReadFull(r, b[:])
	return int(binary.LittleEndian.Uint32(b[:])), err
}

func readBytes(r io.Reader, limit int) ([]byte, error) {
	n, err := readNumber(r)
	if err != nil || n > limit {
		return nil, err
	}
	b := make([]byte, n)
	_, err = io.ReadFull(r, b)
	return b, err
}
