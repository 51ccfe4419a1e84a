package verbs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Transcripts are conversations with one flow, in testdata/*.flow. A line is an
// input; the indented line below it is what the step must want:
//
//	offer head=H size=N [place=P at=A]    a frame is to be sent
//	pull                                  what may be posted?
//	came KIND [none] [credit=..] [...]    a message
//	wrote place=P size=N [more]           a write has come
//	placed | declined | expose id=I size=N | conceal place=P | reposted
//
// A new flow begins with: flow depth=D theirs=T payload=P segment=S
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.flow")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".flow"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			replay(t, string(text))
		})
	}
}

func replay(t *testing.T, text string) {
	var f *flow
	var got string
	for i, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimSpace(line)
		switch {
		case trimmed == "" || trimmed[0] == '#':
		case line[0] == ' ' || line[0] == '\t':
			if got != trimmed {
				t.Fatalf("line %d: got %q, want %q", i+1, got, trimmed)
			}
			got = ""
		default:
			if got != "" {
				t.Fatalf("line %d: the transcript says nothing of %q before it", i+1, got)
			}
			words := strings.Fields(trimmed)
			v := values(t, words[1:])
			if words[0] == "flow" {
				f = newFlow(int(v["depth"]), int(v["theirs"]), int(v["payload"]), int(v["segment"]))
				continue
			}
			out, err := f.step(inputOf(t, words, v))
			got = show(out, err)
		}
	}
}

func values(t *testing.T, words []string) map[string]uint64 {
	v := make(map[string]uint64)
	for _, w := range words {
		name, text, ok := strings.Cut(w, "=")
		n := uint64(1)
		if ok {
			if _, err := fmt.Sscanf(text, "%v", &n); err != nil {
				t.Fatalf("%q: %v", w, err)
			}
		}
		v[name] = n
	}
	return v
}

func inputOf(t *testing.T, words []string, v map[string]uint64) input {
	place := uint32(v["place"])
	switch words[0] {
	case "offer":
		_, direct := v["place"]
		return input{do: offered, frame: frame{head: int(v["head"]), size: v["size"], id: uint32(v["id"]), direct: direct, place: place, at: v["at"]}}
	case "pull":
		return input{do: pull}
	case "came":
		p := packet{flag: flagOf(v), head: int(v["head"]), credit: uint32(v["credit"]), freed: uint32(v["freed"]), id: uint32(v["id"]),
			place: place, size: v["size"], addr: v["addr"], rkey: uint32(v["rkey"])}
		for k := ack; k <= tensorWrite; k++ {
			if k.String() == words[1] {
				p.kind = k
			}
		}
		return input{do: came, packet: p}
	case "wrote":
		if v["more"] == 1 {
			place |= more
		}
		return input{do: wrote, place: place, size: v["size"]}
	case "placed":
		return input{do: placed, size: v["size"], addr: v["addr"], rkey: uint32(v["rkey"])}
	case "laid":
		return input{do: laid, size: v["size"], addr: v["addr"], rkey: uint32(v["rkey"])}
	case "declined":
		return input{do: declined}
	case "expose":
		return input{do: exposed, id: uint32(v["id"]), size: v["size"], addr: v["addr"], rkey: uint32(v["rkey"])}
	case "conceal":
		return input{do: concealed, place: place}
	case "reposted":
		return input{do: reposted}
	}
	t.Fatalf("no input %q", words[0])
	return input{}
}

func flagOf(v map[string]uint64) byte {
	return byte(v["none"]*flagNone + v["landed"]*flagLanded + v["again"]*flagAgain)
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
	switch o.do {
	case post:
		s := fmt.Sprintf("post %v credit=%d", p.kind, p.credit)
		switch p.kind {
		case tensorWrite, bufferRequest:
			s += fmt.Sprintf(" head=%d size=%d", p.head, p.size)
		case bufferResponse, tensorRequest, bufferIdle:
			s += fmt.Sprintf(" place=%#x size=%d", p.place, p.size)
		}
		for flag, name := range map[byte]string{flagNone: " none", flagLanded: " landed", flagAgain: " again"} {
			if p.flag == flag {
				s += name
			}
		}
		if p.freed > 0 {
			s += fmt.Sprintf(" freed=%d", p.freed)
		}
		return s + last
	case write:
		s := fmt.Sprintf("write off=%d at=%d size=%d place=%#x", o.off, o.at, o.size, o.place&^more)
		if o.place&more != 0 {
			s += " more"
		}
		return s + last
	case fill:
		return fmt.Sprintf("fill at=%d size=%d", o.at, o.size)
	case hidden:
		if o.quiet {
			return "hidden quiet"
		}
		return "hidden"
	case skip:
		return "skip"
	case ask:
		return fmt.Sprintf("ask head=%d size=%d", p.head, p.size)
	case small:
		if p.flag == flagLanded {
			return fmt.Sprintf("small head=%d size=%d landed at=%d", p.head, p.size, o.off)
		}
		return fmt.Sprintf("small head=%d size=%d", p.head, p.size)
	case part:
		return fmt.Sprintf("part %d", o.size)
	case direct:
		return fmt.Sprintf("direct id=%d size=%d", o.id, o.size)
	case shown:
		return fmt.Sprintf("shown place=%#x", o.place)
	}
	return "nothing"
}
