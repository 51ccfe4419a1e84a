package membership

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/golden"
)

// TestTranscripts replays the files under testdata. A transcript starts with "rank 1 of 3", and
// "joined" or not, and then has one line per input, which starts with the time. Lines that start
// with > are the outputs. The test compares them or, with -update, rewrites them.
//
//	0ms tick
//	5ms link-up 2
//	7ms recv 2 alive of 2 #1 body "host-2"
func TestTranscripts(t *testing.T) {
	golden.Replay(t, "testdata/*.txt", replay)
}

// replay runs a transcript and writes it again with the outputs of this run.
func replay(text []byte) ([]byte, error) {
	var s *Machine
	var out bytes.Buffer
	for n, line := range strings.Split(strings.TrimRight(string(text), "\n"), "\n") {
		if strings.HasPrefix(line, "> ") {
			continue
		}
		fmt.Fprintln(&out, line)
		words, err := fields(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n+1, err)
		}
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		if words[0] == "rank" {
			s = New(Config{Me: number(words[1]), Size: number(words[3]), Host: "host-" + words[1],
				Joined: slices.Contains(words, "joined"), Heartbeat: 250 * Millisecond, Silence: 4 * Second})
			continue
		}
		at, in, err := parseInput(words)
		if err != nil || s == nil {
			return nil, fmt.Errorf("line %d: %q: %v", n+1, line, err)
		}
		for _, o := range s.Step(at, in) {
			if o, ok := o.(Send); ok && o.Msg.Kind == Heartbeat {
				continue // heartbeats would hide the other outputs
			}
			fmt.Fprintln(&out, ">", o)
		}
	}
	return out.Bytes(), nil
}

// fields splits a line at spaces, and keeps quoted texts whole.
func fields(line string) (words []string, err error) {
	for line = strings.TrimSpace(line); line != ""; line = strings.TrimSpace(line) {
		if line[0] != '"' {
			word, rest, _ := strings.Cut(line, " ")
			words, line = append(words, word), rest
			continue
		}
		quoted, err := strconv.QuotedPrefix(line)
		if err != nil {
			return nil, err
		}
		word, err := strconv.Unquote(quoted)
		if err != nil {
			return nil, err
		}
		words, line = append(words, word), line[len(quoted):]
	}
	return words, nil
}

func number(s string) int {
	n, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(s, "#"), ","))
	return n
}

func parseInput(words []string) (at Time, in Input, err error) {
	at = Time(number(strings.TrimSuffix(words[0], "ms"))) * Time(Millisecond)
	words = append(words, "", "", "")
	r, text := number(words[2]), words[3]
	switch words[1] {
	case "tick":
		in = Tick{}
	case "link-up":
		in = LinkUp{r}
	case "link-down":
		in = LinkDown{Rank: r, Stalled: slices.Contains(words, "stalled"), Cause: text}
	case "failed":
		in = DialFailed{Rank: r, Evicted: text == "evicted", NoProcess: text == "no-process", Cause: "refused"}
	case "data-down":
		in = DataLinkDown{r, text}
	case "abort":
		in = Announce{Err: fault.New(fault.Revoked, "abort", r, "%s", text)}
	case "flood":
		in = Flood{byte(r), []byte(text)}
	case "ask":
		in = Question{ID: 1, Ranks: []int{r}, Body: []byte(text)}
	case "fence":
		in = Fence{uint64(r)}
	case "cancel-fence":
		in = CancelFence{uint64(r)}
	case "reply":
		in = Reply{r, uint32(number(words[3])), []byte(words[4])}
	case "goodbye":
		in = Goodbye{}
	case "recv":
		m, err := parseMessage(words[3:])
		return at, Received{r, m}, err
	default:
		err = fmt.Errorf("unknown input %q", words[1])
	}
	return at, in, err
}

// parseMessage parses the output of Message.String.
func parseMessage(words []string) (m Message, err error) {
	k := slices.Index(kindNames[:], words[0])
	if k < 0 {
		return m, fmt.Errorf("unknown kind %q", words[0])
	}
	m = Message{Kind: MessageKind(k), Origin: number(words[2])}
	for i := 3; i+1 < len(words); i += 2 {
		value := words[i+1]
		switch words[i] {
		case "about":
			m.About = number(value)
		case "code":
			m.Code = byte(number(value))
		case "age":
			m.Age = Span(number(strings.TrimSuffix(value, "ms"))) * Millisecond
		case "ref":
			m.Ref = uint32(number(value))
		case "body":
			m.Body = []byte(value)
		case "lost", "link":
			e := fault.New(fault.PeerLost, "mesh", m.Origin, "gone")
			if words[i] == "link" {
				e.Kind = fault.LinkLost
			}
			for _, r := range strings.Split(value, ",") {
				e.Peers = append(e.Peers, fault.Peer{Rank: number(r)})
			}
			m.Body = e.AppendWire(nil)
		case "":
		default:
			if words[i][0] != '#' {
				return m, fmt.Errorf("unknown field %q", words[i])
			}
			m.Seq = uint32(number(words[i]))
			i--
		}
	}
	return m, nil
}
