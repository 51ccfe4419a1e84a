package part

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/internal/test/golden"
)

// TestTranscripts replays the files under testdata. A file has commands for one Machine, and after
// each command its outputs in lines that begin with >. The test compares the outputs; with -update
// it rewrites them. A request is named by the number of its line, outputs included.
//
//	new synchronous fail            or asynchronous, bounded 2; or continue
//	begin 1 primary 1,2 workers 7,8 lost 9     the replicas; or: begin 1 replica workers 7,8
//	push 7 1                        client and Seq; also set, close
//	pull 7                          client; also save
//	replicate push 3 7 1            with the index
//	done 1 3                        server and index
//	epoch 0 push 7 1                an input of another epoch than the present one
//	seal
//	state; atVersion
func TestTranscripts(t *testing.T) {
	golden.Replay(t, "testdata/*.txt", replay)
}

func replay(text []byte) ([]byte, error) {
	var out bytes.Buffer
	var m *Machine
	for n, line := range strings.Split(strings.TrimRight(string(text), "\n"), "\n") {
		if strings.HasPrefix(line, "> ") {
			continue
		}
		fmt.Fprintln(&out, line)
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		// The names of requests must not depend on the outputs that a file has.
		request := uint64(bytes.Count(out.Bytes(), []byte("\n")))
		if words[0] == "new" {
			m = New(config(words[1:]), State{})
			continue
		}
		if m == nil {
			return nil, fmt.Errorf("line %d: no machine yet", n+1)
		}
		if words[0] == "state" || words[0] == "atVersion" {
			s := m.State()
			if words[0] == "atVersion" {
				s = s.AtVersion()
			}
			fmt.Fprintf(&out, "> index %d, version %d, waiting %d, lost %v\n", s.Index, s.Version, m.Waiting(), m.Lost())
			for _, c := range s.Clients {
				fmt.Fprintf(&out, "> %+v\n", c)
			}
			continue
		}
		outputs, err := command(m, words, request)
		if err != nil {
			return nil, fmt.Errorf("line %d: %q: %w", n+1, line, err)
		}
		for _, o := range outputs {
			fmt.Fprintln(&out, ">", describe(o))
		}
	}
	return out.Bytes(), nil
}

func config(words []string) (cfg Config) {
	cfg.Mode = map[string]Mode{"synchronous": Synchronous, "asynchronous": Asynchronous, "bounded": Bounded}[words[0]]
	for _, w := range words[1:] {
		if w == "continue" {
			cfg.Policy = Continue
		} else if w != "fail" {
			cfg.Staleness = number(w)
		}
	}
	return cfg
}

func number(s string) uint64 {
	n, _ := strconv.ParseUint(s, 10, 64)
	return n
}

func numbers(s string) (ns []uint64) {
	for w := range strings.SplitSeq(s, ",") {
		ns = append(ns, number(w))
	}
	return ns
}

// command executes one command.
func command(m *Machine, words []string, request uint64) ([]Output, error) {
	switch words[0] {
	case "seal":
		return m.Seal(), nil
	case "begin":
		e := Members{Epoch: number(words[1]), Primary: words[2] == "primary"}
		for i := 3; i < len(words); i++ {
			switch words[i] {
			case "workers":
				i++
				e.Workers = numbers(words[i])
			case "lost":
				i++
				e.Lost = numbers(words[i])
			default:
				for _, r := range numbers(words[i]) {
					e.Replicas = append(e.Replicas, int(r))
				}
			}
		}
		return m.Begin(e), nil
	}
	in, err := input(words, m.epoch, request)
	if err != nil {
		return nil, err
	}
	return m.Step(in), nil
}

func input(words []string, epoch, request uint64) (in Input, err error) {
	in = Input{Epoch: epoch, Request: request}
	if words[0] == "epoch" {
		in.Epoch, words = number(words[1]), words[2:]
	}
	switch words[0] {
	case "done":
		in.Kind, in.Server, in.Index, in.Request = ReplicaDone, int(number(words[1])), number(words[2]), 0
		return in, nil
	case "replicate":
		in.Kind, in.Index = Replicate, number(words[2])
		if in.Entry, err = kind(words[1]); err != nil {
			return in, err
		}
		words = words[2:]
	default:
		if in.Kind, err = kind(words[0]); err != nil {
			return in, err
		}
	}
	in.Client = number(words[1])
	if !in.Kind.reads() {
		in.Seq = number(words[2])
	}
	return in, nil
}

func kind(word string) (InputKind, error) {
	for k := Push; k <= Save; k++ {
		if k.String() == word {
			return k, nil
		}
	}
	return 0, fmt.Errorf("unknown command")
}

func describe(o Output) string {
	s := o.Kind.String()
	switch o.Kind {
	case Forward:
		s += fmt.Sprintf(" to %d: %v with index %d: client %d, seq %d, request %d", o.Server, o.Entry, o.Index, o.Client, o.Seq, o.Request)
	case Complete:
		s += fmt.Sprintf(" version %d of %d contributions", o.Version, o.Contributions)
	case Answer:
		s += fmt.Sprintf(" %d with version %d", o.Request, o.Version)
		if o.State != nil {
			s += fmt.Sprintf(", saved %+v", *o.State)
		}
	case Refuse:
		s += fmt.Sprintf(" %d: %v", o.Request, o.Refusal)
	case ReplicaAcknowledge:
		s += fmt.Sprintf(": index %d", o.Index)
	default:
		s += fmt.Sprintf(" %d", o.Request)
	}
	if o.First {
		s += ", the first"
	}
	if o.Repeated {
		s += ", repeated"
	}
	return s
}
