package verbs

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"testing"

	"github.com/tutti-go/tutti/transport"
)

// A flowPair holds two flows, and everything that is in flight between them. The explorer visits
// all orders in which the two ends may act. It checks the protocol for deadlocks: when neither end
// can act any more, every frame must have arrived.
type flowPair struct {
	flows        [2]flow
	queue        [2][]arrival  // arrivals on their way to flow i, in order, as on a queue pair
	left         [2][]frame    // to be sent by flow i
	got          [2]int        // frames that arrived at flow i
	receivesUsed [2]int        // receives of flow i in use: on their way, or not reposted
	bodies       [2][]ringSpan // bodies in the ring of flow i, oldest first
}

// A ringSpan is a part of a ring.
type ringSpan struct{ from, to uint64 }

// An arrival uses one receive.
type arrival struct {
	packet packet
	write  bool
	imm    uint32
	size   uint64
}

func (p *flowPair) clone() *flowPair {
	c := *p
	for i := range 2 {
		f := &c.flows[i]
		f.remotes, f.controls = slices.Clone(f.remotes), slices.Clone(f.controls)
		f.locals, f.freeSlots = slices.Clone(f.locals), slices.Clone(f.freeSlots)
		c.queue[i], c.left[i], c.bodies[i] = slices.Clone(p.queue[i]), slices.Clone(p.left[i]), slices.Clone(p.bodies[i])
	}
	return &c
}

// nextFrame gives flow i its next frame if it has none.
func (p *flowPair) nextFrame(i int) {
	if p.flows[i].out.phase == idle && len(p.left[i]) > 0 {
		p.flows[i].step(input{op: inFrame, frame: p.left[i][0]})
		p.left[i] = p.left[i][1:]
	}
}

// post posts one work request for end i, if the flow allows one.
func (p *flowPair) post(i int) (moved bool, err error) {
	p.nextFrame(i)
	out, err := p.flows[i].step(input{op: inNext})
	if err != nil || out.op == outNone {
		return false, err
	}
	if out.op == outWrite && p.flows[i].out.phase != inRing { // memory without notification
		if out.last {
			p.got[1-i]++
		}
		return true, nil
	}
	if out.op == outWrite {
		return true, p.writeRing(1-i, ringSpan{out.at, out.at + out.size})
	}
	p.queue[1-i] = append(p.queue[1-i], arrival{packet: out.packet, write: out.op == outWriteImm, imm: out.handle, size: out.size})
	if p.receivesUsed[1-i]++; p.receivesUsed[1-i] > p.flows[1-i].depth {
		return true, fmt.Errorf("end %d posted more than end %d has receives for", i, 1-i)
	}
	return true, nil
}

// writeRing puts a body into the ring of flow i. It must not overlap a body that has not been
// copied out.
func (p *flowPair) writeRing(i int, s ringSpan) error {
	for _, old := range p.bodies[i] {
		if s.from < old.to && old.from < s.to {
			return fmt.Errorf("end %d wrote %v of the ring, where %v lies", 1-i, s, old)
		}
	}
	if s.to > p.flows[i].recvRing.size {
		return fmt.Errorf("end %d wrote %v of a ring of %d bytes", 1-i, s, p.flows[i].recvRing.size)
	}
	p.bodies[i] = append(p.bodies[i], s)
	return nil
}

// deliver handles the oldest arrival of end i and posts the receive again.
func (p *flowPair) deliver(i int) (moved bool, err error) {
	if len(p.queue[i]) == 0 {
		return false, nil
	}
	a, f := p.queue[i][0], &p.flows[i]
	p.queue[i] = p.queue[i][1:]
	in := input{op: inMessage, packet: a.packet}
	if a.write {
		in = input{op: inWrite, handle: a.imm, size: a.size}
	}
	out, err := f.step(in)
	if err != nil {
		return true, err
	}
	switch out.op {
	case outNeedBuffer:
		in = input{op: inAccept, size: out.packet.size}
		if out.packet.id == declinedID {
			in = input{op: inDecline}
			p.got[i]++
		}
		if _, err = f.step(in); err != nil {
			return true, err
		}
	case outFrame, outExposedFrame:
		p.got[i]++
		if out.packet.flag == flagInRing {
			if at := p.bodies[i][0].from; at != out.off {
				return true, fmt.Errorf("end %d takes a body at %d that lies at %d", i, out.off, at)
			}
			p.bodies[i] = p.bodies[i][1:]
		}
	case outBodyPart:
		if f.arrivingSlot < 0 {
			p.got[i]++
		}
	}
	p.receivesUsed[i]--
	_, err = f.step(input{op: inReposted})
	return true, err
}

const declinedID = 99

// An explorer visits every state once. If it reaches a state that it is still visiting, the ends
// can loop forever without any frame advancing.
type explorer struct {
	*testing.T
	want     [2]int
	visiting map[string]bool // true while the state is being visited, false afterwards
	turn     int
}

func (e *explorer) visit(p *flowPair) {
	key := fmt.Sprint(*p)
	if now, seen := e.visiting[key]; now {
		e.Fatalf("the ends can go round for ever, with %v of %v frames in:\n%+v", p.got, e.want, *p)
	} else if seen {
		return
	}
	e.visiting[key] = true
	defer func() { e.visiting[key] = false }()
	stuck := true
	for i := range 2 {
		e.checkTrySend(p, i)
		for _, act := range []func(*flowPair, int) (bool, error){(*flowPair).post, (*flowPair).deliver} {
			next := p.clone()
			moved, err := act(next, i)
			if err != nil {
				e.Fatalf("after %d states: %v\n%+v", len(e.visiting), err, *p)
			}
			if moved {
				stuck = false
				e.visit(next)
			}
		}
	}
	if stuck && p.got != e.want {
		e.Fatalf("nobody can act, and %v frames of %v have arrived:\n%+v", p.got, e.want, *p)
	}
}

// checkTrySend checks that TrySend has the same effect as queuing the frame, and that it changes
// nothing if it returns false.
func (e *explorer) checkTrySend(p *flowPair, i int) {
	if p.flows[i].out.phase != idle {
		return
	}
	fast, slow := p.clone(), p.clone()
	at := &fast.flows[i]
	if e.turn++; e.turn%7 == 0 { // a frame that fits no message
		at.payload, slow.flows[i].payload = 9, 9
	}
	before := *at
	got, ok := at.trySend(0, 10)
	if !ok {
		if !reflect.DeepEqual(before, *at) {
			e.Fatalf("a frame that does not go at once has changed %+v to %+v", before, *at)
		}
	}
	slow.flows[i].step(input{op: inFrame, frame: frame{size: 10}})
	out, err := slow.flows[i].step(input{op: inNext})
	if err != nil || ok != (out.op == outSend && out.last) {
		e.Fatalf("goes at once: %v; offered and pulled, it comes to %+v, %v, in\n%+v", ok, out, err, before)
	}
	slow.flows[i].out = at.out // slow has no data of this frame, which it has never had
	if ok && (got != out.packet || !reflect.DeepEqual(*at, slow.flows[i])) {
		e.Fatalf("at once %+v, with\n%+v; offered and pulled %+v, with\n%+v", got, *at, out.packet, slow.flows[i])
	}
}

func TestFlowNeverDeadlocksOrLoops(t *testing.T) {
	long, short, drop := frame{size: 120}, frame{size: 10}, frame{size: 120, id: declinedID}
	direct, full := frame{exposed: true, handle: handleOf(0, 1), size: 120}, frame{exposed: true, handle: handleOf(0, 1), size: 500}
	mid := frame{size: 104}
	kept := frame{exposed: true, handle: handleOf(1, 1), size: 100}
	deepest := 4
	if os.Getenv("TUTTI_SOAK") != "" {
		deepest = 6
	}
	for name, left := range map[string][2][]frame{
		"short both ways":                {{short, short, short, short}, {short, short, short}},
		"long both ways":                 {{long, short, long}, {long, long}},
		"dropped":                        {{drop, short, drop}, {long, drop}},
		"exposed both ways":              {{direct, short, direct}, {direct, direct, short}},
		"written full":                   {{full, direct, full}, {full}},
		"without notification both ways": {{kept, short, kept}, {kept, kept, short}},
		"rings both ways":                {{mid, mid, mid, mid}, {mid, long, mid}},
		"ring one way":                   {{mid, mid, mid, direct, mid, short, mid, mid}, nil},
		"one way":                        {{short, long, direct, drop, short, direct}, nil},
	} {
		for depth := minDepth; depth <= deepest; depth++ {
			p := &flowPair{left: left}
			for i := range p.flows {
				p.flows[i] = *newFlow(depth, depth, 100, 60)
				ins := []input{{op: inExpose, size: 500}, {op: inRingReady, size: 4*104 + 3}}
				if name == "without notification both ways" {
					ins[1] = input{op: inExpose, size: 300, id: transport.NoNotify, noNotify: true}
				}
				for _, in := range ins {
					if _, err := p.flows[i].step(in); err != nil {
						t.Fatal(err)
					}
				}
			}
			e := &explorer{T: t, want: [2]int{len(left[1]), len(left[0])}, visiting: make(map[string]bool)}
			e.visit(p)
			t.Logf("%s, depth %d: %d states", name, depth, len(e.visiting))
		}
	}
}
