package verbs

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	transcripts "github.com/tutti-go/tutti/internal/test/golden"
)

// Transcripts are conversations with one flow, in testdata/*.flow. A line is an input.
// The line below it, which begins with a tab, is the output of that step:
//
//	frame head=H size=N [handle=P at=A]   a frame is queued
//	next                                  what may be posted?
//	message KIND [declined] [credit=..]   a message has arrived
//	write handle=P size=N [more]          a write with an immediate value has arrived
//	accept | decline                      the answer to need-buffer
//	ring size=N addr=A                    a ring has been allocated
//	expose id=I size=N [nonotify] | unexpose handle=P
//	reposted                              a receive has been posted again
//
// A new flow begins with: flow depth=D theirs=T payload=P segment=S
func TestTranscripts(t *testing.T) {
	transcripts.Replay(t, "testdata/*.flow", replay)
}

// replay applies the inputs of a transcript to a flow, and returns the transcript with the
// actual outputs.
func replay(text []byte) ([]byte, error) {
	var f *flow
	var out bytes.Buffer
	for input_ := range strings.Lines(string(text)) {
		if input_[0] == '\t' {
			continue
		}
		out.WriteString(input_)
		words := strings.Fields(input_)
		if len(words) == 0 || words[0][0] == '#' {
			continue
		}
		v, err := values(words[1:])
		if err != nil {
			return nil, err
		}
		if words[0] == "flow" {
			f = newFlow(int(v["depth"]), int(v["theirs"]), int(v["payload"]), int(v["segment"]))
			continue
		}
		in, err := inputOf(words, v)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&out, "\t%s\n", show(f.step(in)))
	}
	return out.Bytes(), nil
}

func values(words []string) (map[string]uint64, error) {
	v := make(map[string]uint64)
	for _, w := range words {
		name, text, ok := strings.Cut(w, "=")
		n := uint64(1)
		if ok {
			if _, err := fmt.Sscanf(text, "%v", &n); err != nil {
				return nil, fmt.Errorf("%q: %w", w, err)
			}
		}
		v[name] = n
	}
	return v, nil
}

func inputOf(words []string, v map[string]uint64) (input, error) {
	handle := uint32(v["handle"])
	switch words[0] {
	case "frame":
		_, direct := v["handle"]
		return input{op: inFrame, frame: frame{head: int(v["head"]), size: v["size"], id: uint32(v["id"]), exposed: direct, handle: handle, at: v["at"]}}, nil
	case "next":
		return input{op: inNext}, nil
	case "message":
		p := packet{flag: flagOf(v), head: int(v["head"]), credit: uint32(v["credit"]), freed: uint32(v["freed"]), id: uint32(v["id"]),
			handle: handle, size: v["size"], addr: v["addr"], rkey: uint32(v["rkey"])}
		for k := ack; k <= tensorWrite; k++ {
			if k.String() == words[1] {
				p.kind = k
			}
		}
		return input{op: inMessage, packet: p}, nil
	case "write":
		if v["more"] == 1 {
			handle |= more
		}
		return input{op: inWrite, handle: handle, size: v["size"]}, nil
	case "accept":
		return input{op: inAccept, size: v["size"], addr: v["addr"], rkey: uint32(v["rkey"])}, nil
	case "ring":
		return input{op: inRingReady, size: v["size"], addr: v["addr"], rkey: uint32(v["rkey"])}, nil
	case "decline":
		return input{op: inDecline}, nil
	case "expose":
		return input{op: inExpose, id: uint32(v["id"]), noNotify: v["nonotify"] == 1, size: v["size"], addr: v["addr"], rkey: uint32(v["rkey"])}, nil
	case "unexpose":
		return input{op: inUnexpose, handle: handle}, nil
	case "reposted":
		return input{op: inReposted}, nil
	}
	return input{}, fmt.Errorf("no input %q", words[0])
}

func flagOf(v map[string]uint64) byte {
	return byte(v["declined"]*flagDeclined + v["ring"]*flagInRing + v["renew"]*flagRenew + v["nonotify"]*flagNoNotify)
}

// show returns an output as transcripts write it.
func show(o output, err error) string {
	if err != nil {
		return "error: " + err.Error()
	}
	last := ""
	if o.last {
		last = " last"
	}
	p := o.packet
	switch o.op {
	case outSend:
		s := fmt.Sprintf("send %v credit=%d", p.kind, p.credit)
		switch p.kind {
		case tensorWrite, bufferRequest:
			s += fmt.Sprintf(" head=%d size=%d", p.head, p.size)
		case bufferResponse, tensorRequest, bufferIdle:
			s += fmt.Sprintf(" handle=%#x size=%d", p.handle, p.size)
		}
		for flag, name := range map[byte]string{flagDeclined: " declined", flagInRing: " ring", flagRenew: " renew", flagNoNotify: " nonotify"} {
			if p.flag == flag {
				s += name
			}
		}
		if p.freed > 0 {
			s += fmt.Sprintf(" freed=%d", p.freed)
		}
		return s + last
	case outWriteImm:
		s := fmt.Sprintf("write-imm off=%d at=%d size=%d handle=%#x", o.off, o.at, o.size, o.handle&^more)
		if o.handle&more != 0 {
			s += " more"
		}
		return s + last
	case outWrite:
		return fmt.Sprintf("write at=%d size=%d", o.at, o.size) + last
	case outUnexposed:
		if o.drained {
			return "unexposed drained"
		}
		return "unexposed"
	case outSkip:
		return "skip"
	case outNeedBuffer:
		return fmt.Sprintf("need-buffer head=%d size=%d", p.head, p.size)
	case outFrame:
		if p.flag == flagInRing {
			return fmt.Sprintf("frame head=%d size=%d ring at=%d", p.head, p.size, o.off)
		}
		return fmt.Sprintf("frame head=%d size=%d", p.head, p.size)
	case outBodyPart:
		return fmt.Sprintf("body-part %d", o.size)
	case outExposedFrame:
		return fmt.Sprintf("exposed-frame id=%d size=%d", o.id, o.size)
	case outExposed:
		return fmt.Sprintf("exposed handle=%#x", o.handle)
	}
	return "nothing"
}
