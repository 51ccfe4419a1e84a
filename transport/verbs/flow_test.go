package verbs

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	transcripts "github.com/tutti-go/tutti/internal/test/golden"
)

// Transcripts are conversations with one flow, in testdata/*.flow. A line is an
// input; the line below it, which begins with a tab, is what the step must want:
//
//	offer head=H size=N [place=P at=A]    a frame is to be sent
//	pull                                  what may be posted?
//	came KIND [none] [credit=..] [...]    a message
//	wrote place=P size=N [more]           a write has come
//	placed | declined | expose id=I size=N [kept] | conceal place=P | reposted
//
// A new flow begins with: flow depth=D theirs=T payload=P segment=S
func TestTranscripts(t *testing.T) {
	transcripts.Replay(t, "testdata/*.flow", replay)
}

// replay carries a transcript's inputs out, and writes it again with what came.
func replay(text []byte) ([]byte, error) {
	var f *flow
	var out bytes.Buffer
	for line := range strings.Lines(string(text)) {
		if line[0] == '\t' {
			continue
		}
		out.WriteString(line)
		words := strings.Fields(line)
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
	place := uint32(v["place"])
	switch words[0] {
	case "offer":
		_, direct := v["place"]
		return input{op: inFrame, frame: frame{head: int(v["head"]), size: v["size"], id: uint32(v["id"]), exposed: direct, handle: place, at: v["at"]}}, nil
	case "pull":
		return input{op: inNext}, nil
	case "came":
		p := packet{flag: flagOf(v), head: int(v["head"]), credit: uint32(v["credit"]), freed: uint32(v["freed"]), id: uint32(v["id"]),
			handle: place, size: v["size"], addr: v["addr"], rkey: uint32(v["rkey"])}
		for k := ack; k <= tensorWrite; k++ {
			if k.String() == words[1] {
				p.kind = k
			}
		}
		return input{op: inMessage, packet: p}, nil
	case "wrote":
		if v["more"] == 1 {
			place |= more
		}
		return input{op: inWrite, handle: place, size: v["size"]}, nil
	case "placed":
		return input{op: inAccept, size: v["size"], addr: v["addr"], rkey: uint32(v["rkey"])}, nil
	case "laid":
		return input{op: inRingReady, size: v["size"], addr: v["addr"], rkey: uint32(v["rkey"])}, nil
	case "declined":
		return input{op: inDecline}, nil
	case "expose":
		return input{op: inExpose, id: uint32(v["id"]), noNotify: v["kept"] == 1, size: v["size"], addr: v["addr"], rkey: uint32(v["rkey"])}, nil
	case "conceal":
		return input{op: inUnexpose, handle: place}, nil
	case "reposted":
		return input{op: inReposted}, nil
	}
	return input{}, fmt.Errorf("no input %q", words[0])
}

func flagOf(v map[string]uint64) byte {
	return byte(v["none"]*flagDeclined + v["landed"]*flagInRing + v["again"]*flagRenew + v["kept"]*flagNoNotify)
}

// show is an output as transcripts write it.
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
		s := fmt.Sprintf("post %v credit=%d", p.kind, p.credit)
		switch p.kind {
		case tensorWrite, bufferRequest:
			s += fmt.Sprintf(" head=%d size=%d", p.head, p.size)
		case bufferResponse, tensorRequest, bufferIdle:
			s += fmt.Sprintf(" place=%#x size=%d", p.handle, p.size)
		}
		for flag, name := range map[byte]string{flagDeclined: " none", flagInRing: " landed", flagRenew: " again", flagNoNotify: " kept"} {
			if p.flag == flag {
				s += name
			}
		}
		if p.freed > 0 {
			s += fmt.Sprintf(" freed=%d", p.freed)
		}
		return s + last
	case outWriteImm:
		s := fmt.Sprintf("write off=%d at=%d size=%d place=%#x", o.off, o.at, o.size, o.handle&^more)
		if o.handle&more != 0 {
			s += " more"
		}
		return s + last
	case outWrite:
		return fmt.Sprintf("fill at=%d size=%d", o.at, o.size) + last
	case outUnexposed:
		if o.drained {
			return "hidden quiet"
		}
		return "hidden"
	case outSkip:
		return "skip"
	case outNeedBuffer:
		return fmt.Sprintf("ask head=%d size=%d", p.head, p.size)
	case outFrame:
		if p.flag == flagInRing {
			return fmt.Sprintf("small head=%d size=%d landed at=%d", p.head, p.size, o.off)
		}
		return fmt.Sprintf("small head=%d size=%d", p.head, p.size)
	case outBodyPart:
		return fmt.Sprintf("part %d", o.size)
	case outExposedFrame:
		return fmt.Sprintf("direct id=%d size=%d", o.id, o.size)
	case outExposed:
		return fmt.Sprintf("shown place=%#x", o.handle)
	}
	return "nothing"
}
