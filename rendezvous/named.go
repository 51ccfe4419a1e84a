package rendezvous

import (
	"context"
	"encoding/binary"
	"fmt"
	"sort"
	"strings"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/tensor"
)

// The bounds of named tensors, per link or engine.
const (
	maxName       = 1 << 10 // bytes of a tensor's name
	maxNames      = 1 << 16 // names that a link remembers in each direction
	maxEndedSteps = 1 << 12 // ended steps that are remembered
)

// A Tensor is the content of a named message. Data belongs to the holder of the Tensor. For a
// Tensor that was received into a prepared buffer, see Release.
type Tensor struct {
	DType tensor.DType
	Shape []int // at most 8 dimensions
	Dead  bool  // the producer did not run; Data is empty
	Data  []byte

	loan loan // set if Data lies in a prepared buffer
}

// encodeTo sets the type, shape and dead flag of t in a header.
func (t *Tensor) encodeTo(h *frameHeader) {
	h.dtype, h.ndim = uint8(t.DType), uint8(len(t.Shape))
	for i, d := range t.Shape {
		h.dims[i] = int64(d)
	}
	if t.Dead {
		h.flags |= flagDead
	}
}

// decodeTensor sets t's type, shape and Dead from the envelope. It does not change Data.
func (env *envelope) decodeTensor(t *Tensor) {
	t.DType, t.Dead = tensor.DType(env.dtype), env.dead
	t.Shape = make([]int, env.ndim)
	for i := range t.Shape {
		t.Shape[i] = int(env.dims[i])
	}
}

// A step is an iteration of the program. The program chooses the step's number, and a step needs no
// explicit start. EndStep on any rank ends the step on all ranks and frees the step's messages that
// were not received. EndStep sends a flood, which may overtake messages of the step. Each rank
// therefore remembers ended steps, and drops messages that still arrive for them.

// steps is the state of the steps of all contexts: the bytes that the sends of each step hold, and
// the steps that have ended.
type steps struct {
	held  map[stepID]int64 // bytes of unfinished sends, including their envelopes
	ended map[stepID]error // the error of calls in an ended step; at most maxEndedSteps
	order []stepID         // of ended, oldest first
}

type stepID struct {
	context, step uint64
}

// hasEnded reports whether a step is remembered as ended.
func (st *steps) hasEnded(context, step uint64) bool {
	_, over := st.ended[stepID{context, step}]
	return over
}

// end records that a step has ended with err. If maxEndedSteps are recorded already, it forgets the
// oldest.
func (st *steps) end(id stepID, err error) {
	if st.ended == nil {
		st.ended = make(map[stepID]error)
	}
	if len(st.order) >= maxEndedSteps {
		delete(st.ended, st.order[0])
		st.order = st.order[:copy(st.order, st.order[1:])]
	}
	st.ended[id] = err
	st.order = append(st.order, id)
	delete(st.held, id)
}

// charge adds n to the bytes that a step's sends hold. n may be negative.
func (st *steps) charge(id stepID, n int64) {
	if st.held == nil {
		st.held = make(map[stepID]int64)
	}
	st.held[id] += n
	if st.held[id] == 0 {
		delete(st.held, id)
	}
}

// SendNamed sends a tensor by name, within a step, to a rank. It never blocks. t.Data belongs to
// the engine until done is called. done is called once, with nil if the send succeeded. A send
// fails if its receiver ends the step, or closes, before the receiver has requested the bytes.
// After a success done runs on the goroutine that moved the last bytes; after an error, on any
// goroutine. It must not block. Config.StepBytes bounds the bytes that the sends of a step hold. A
// send beyond this bound returns fault.Exhausted at once, and done is not called.
func (mc *MatchContext) SendNamed(step uint64, to int, name string, t Tensor, done func(error)) error {
	e := mc.e
	if err := e.checkNamed(name, &t); err != nil {
		return err
	}
	id := stepID{mc.id, step}
	size := int64(len(t.Data) + envelopeCost)
	e.mu.Lock()
	defer e.unlock()
	switch err, over := e.steps.ended[id]; {
	case over:
		return err
	case e.steps.held[id]+size > e.cfg.StepBytes:
		return e.stepFull(id, name, size)
	}
	e.steps.charge(id, size)
	req := e.getRequest()
	req.tensor = &t
	req.onFinish = func(req *Request) { // runs without the lock
		err := req.err
		e.mu.Lock()
		if _, over := e.steps.ended[id]; !over { // the end of a step has deleted its entry in held
			e.steps.charge(id, -size)
		}
		e.recycle(req)
		e.unlock()
		if done != nil {
			e.callBack(err, done)
		}
	}
	k := key{source: int32(e.cfg.Rank), tag: namedTag, step: step, name: name}
	e.startSend(req, mc, to, k, 0, t.Data, Auto)
	return nil
}

// checkNamed checks a tensor and its name before they are sent.
func (e *Engine) checkNamed(name string, t *Tensor) error {
	if err := e.checkName("send", name); err != nil {
		return err
	}
	if len(t.Shape) > maxDims {
		return e.misuse("send", "tensor %q: got %d dimensions, want at most %d", name, len(t.Shape), maxDims)
	}
	for _, d := range t.Shape {
		if d < 0 {
			return e.misuse("send", "tensor %q: got dimension %d, want 0 or more", name, d)
		}
	}
	return nil
}

// checkName checks a tensor's name; op is the call that the error names.
func (e *Engine) checkName(op, name string) error {
	if name == "" || len(name) > maxName {
		return e.misuse(op, "tensor name: got %d bytes, want 1 to %d", len(name), maxName)
	}
	return nil
}

// stepFull returns the error of a send beyond StepBytes. It names the step's largest unfinished
// sends, which the user should check first.
func (e *Engine) stepFull(id stepID, name string, size int64) error {
	var reqs []*Request
	for _, p := range e.peers {
		for _, list := range []*requestList{&p.pending, &p.sends} {
			for req := list.first; req != nil; req = req.next {
				if req.tensor != nil && req.mc.id == id.context && req.key.step == id.step {
					reqs = append(reqs, req)
				}
			}
		}
	}
	sort.Slice(reqs, func(i, j int) bool { return len(reqs[i].buf) > len(reqs[j].buf) })
	var largest []string
	for _, req := range reqs[:min(3, len(reqs))] {
		largest = append(largest, fmt.Sprintf("%q to rank %d (%d bytes)", req.key.name, req.peer.rank, len(req.buf)))
	}
	return fault.New(fault.Exhausted, "send", e.cfg.Rank,
		"tensor %q: got %d bytes in addition to the %d of step %d, want at most StepBytes of %d in all; receive or end the step first; the largest tensors not yet received: %s",
		name, size, e.steps.held[id], id.step, e.cfg.StepBytes, strings.Join(largest, ", "))
}

// Each link numbers the names that it carries, so that a header needs only 4 bytes for a name. A
// program that uses the same names at every step sends each name once. When all numbers are in use,
// the next new name gets the number that was given out first. Frames keep their order, so a number
// means the name that was last sent with it.

// nameID returns the number of a name on this link. If the name has no number yet, nameID assigns
// one and sends a name frame. The caller queues the frame that carries the number before any other
// frame to p.
func (p *peer) nameID(name string) uint32 {
	if id, ok := p.namesOut[name]; ok {
		return id
	}
	if len(p.outNames) < maxNames {
		p.outNames = append(p.outNames, name)
	} else {
		delete(p.namesOut, p.outNames[p.nextName])
		p.outNames[p.nextName] = name
	}
	id := uint32(p.nextName + 1)
	p.nextName = (p.nextName + 1) % maxNames
	p.namesOut[name] = id
	p.sendControlBody(frameHeader{kind: kindName, id: id}, []byte(name))
	return id
}

// RecvNamed receives a tensor by name into buf. If buf is nil, Data is either new memory of at most
// StepBytes bytes, or the prepared buffer that the sender wrote into; see PrepareNamed and
// Config.Static. A prepared buffer is the caller's until Tensor.Release.
func (mc *MatchContext) RecvNamed(ctx context.Context, p mesh.WaitPolicy, step uint64, from int, name string, buf []byte) (Tensor, error) {
	if buf == nil {
		mc.prepareFor(from, name)
	}
	req := mc.postNamed(step, from, name, buf, nil)
	err := mc.e.wait(ctx, req, p)
	t := req.receivedTensor()
	req.Free()
	if err == nil && buf == nil {
		mc.observe(step, from, name, &t)
	}
	return t, err
}

// RecvNamedAsync is like RecvNamed but calls done with the result. done runs once: with the tensor,
// on the goroutine that moved the last byte; with an error, on any goroutine. It must not block,
// but it may send.
func (mc *MatchContext) RecvNamedAsync(step uint64, from int, name string, buf []byte, done func(Tensor, error)) {
	if buf == nil {
		mc.prepareFor(from, name)
	}
	mc.postNamed(step, from, name, buf, func(req *Request) {
		t, err := req.receivedTensor(), req.err
		req.Free()
		if err == nil && buf == nil {
			mc.observe(step, from, name, &t)
		}
		if err == nil {
			done(t, nil)
			return
		}
		mc.e.callBack(err, func(err error) { done(Tensor{}, err) })
	})
}

// callBack passes the result of a named call to its callback. It passes an error through
// Config.CallBack.
func (e *Engine) callBack(err error, done func(error)) {
	if err != nil && e.cfg.CallBack != nil {
		e.cfg.CallBack(err, done)
		return
	}
	done(err)
}

// receivedTensor returns the tensor of a receive that is done.
func (req *Request) receivedTensor() Tensor {
	t := *req.tensor
	t.Data = req.buf
	return t
}

// postNamed posts the receive of a named tensor. If finished is not nil, the engine calls it when
// the request is done. Otherwise the caller waits for the request.
func (mc *MatchContext) postNamed(step uint64, from int, name string, buf []byte, finished func(*Request)) *Request {
	e := mc.e
	e.mu.Lock()
	req := e.getRequest()
	req.mc, req.buf, req.fullBuf = mc, buf, buf
	req.key = key{source: int32(from), tag: namedTag, step: step, name: name}
	req.tensor, req.alloc, req.onFinish = &Tensor{}, buf == nil, finished
	if err, over := e.steps.ended[stepID{mc.id, step}]; over {
		e.finish(req, err)
	} else {
		e.post(req)
	}
	e.unlock()
	return req
}

// FloodStep is the kind of the mesh's flood that ends a step on every rank. The receiver of the
// flood passes its body to HandleStepEnd.
const FloodStep = 's'

// EndStep ends a step on every rank of the job: its requests fail, and messages that still arrive
// for it are dropped. A nil cause ends the step normally. Any other cause aborts it, and the errors
// on the other ranks quote up to 1 KiB of the cause.
func (mc *MatchContext) EndStep(step uint64, cause error) {
	text := ""
	if cause != nil {
		text = cause.Error()
	}
	body := binary.LittleEndian.AppendUint64(nil, mc.id)
	body = binary.LittleEndian.AppendUint64(body, step)
	body = append(body, text[:min(len(text), 1<<10)]...)
	mc.e.endStep(stepID{mc.id, step}, mc.e.cfg.Rank, text)
	mc.e.m.Flood(FloodStep, body)
}

// HandleStepEnd ends a step for which another rank has called EndStep. It ignores a body that is
// too short.
func (e *Engine) HandleStepEnd(from int, body []byte) {
	if len(body) < 16 {
		return
	}
	id := stepID{binary.LittleEndian.Uint64(body), binary.LittleEndian.Uint64(body[8:])}
	e.endStep(id, from, string(body[16:]))
}

// endStep ends a step on this rank. The parameter by is the rank that called EndStep. text is empty
// for a normal end.
func (e *Engine) endStep(id stepID, by int, text string) {
	err := fault.New(fault.Closed, "step", e.cfg.Rank, "step %d was ended by rank %d", id.step, by)
	if text != "" {
		err = &fault.Error{Kind: fault.Canceled, Op: "step", Rank: e.cfg.Rank, Peers: []fault.Peer{{Rank: by}},
			Err: fmt.Errorf("step %d was aborted: %s", id.step, text)}
	}
	e.mu.Lock()
	defer e.unlock()
	if e.steps.hasEnded(id.context, id.step) {
		return
	}
	e.steps.end(id, err)
	if mc := e.contexts[id.context]; mc != nil {
		mc.failStep(id.step, err)
	}
	// Named sends outlive the Close of their context, so they are found without it.
	for _, p := range e.peers {
		p.endSendsIf(err, func(req *Request) bool {
			return req.tensor != nil && req.mc.id == id.context && req.key.step == id.step
		})
	}
}

// failStep ends all receives of a step in this context, and drops the step's messages. The caller
// ends the sends. e.mu is held.
func (mc *MatchContext) failStep(step uint64, err error) {
	e := mc.e
	in := func(k key) bool { return k.tag == namedTag && k.step == step }
	mc.eachPosted(func(req *Request) {
		if in(req.key) {
			mc.table.unpost(req)
			e.finish(req, err)
		}
	})
	for req := mc.matchedRecvs.first; req != nil; {
		next := req.next
		if in(req.key) {
			e.abort(req, err)
		}
		req = next
	}
	for m := mc.table.arrivals.first; m != nil; {
		next := m.later
		if in(m.key) {
			mc.table.removeMessage(m)
			e.dropMessage(m, flagUnreceived|flagNamed)
		}
		m = next
	}
}
