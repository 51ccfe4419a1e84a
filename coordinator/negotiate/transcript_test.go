package negotiate

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/golden"
	"github.com/tutti-go/tutti/tensor"
)

// TestTranscripts replays the files under testdata. A file has commands, and after each command the
// trace of all ranks in lines that begin with >. The test compares the trace; with -update it
// rewrites the trace. A list is delivered as soon as it is sent, unless the rank is held. A Bucket
// is executed as soon as it is output, unless the rank is busy.
//
//	ranks 3 cache 4 partition 1000
//	0 allreduce w1 float32 4 sum    all: every rank; several tensors by "and"
//	all flush                       also join, shutdown, fault TEXT
//	hold 2; release 2; busy 0; idle 0
//	tick 1ms
//	tune 5 64 nocache 1             cycle in ms, fusion, cache, class
func TestTranscripts(t *testing.T) {
	golden.Replay(t, "testdata/*.txt", replay)
}

func replay(text []byte) ([]byte, error) {
	var out bytes.Buffer
	var s *sim
	for n, line := range strings.Split(strings.TrimRight(string(text), "\n"), "\n") {
		if strings.HasPrefix(line, "> ") {
			continue
		}
		fmt.Fprintln(&out, line)
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		if words[0] == "ranks" {
			s = newSim(config(words))
			s.trace = func(format string, args ...any) { fmt.Fprintf(&out, "> "+format+"\n", args...) }
			continue
		}
		if s == nil {
			return nil, fmt.Errorf("line %d: no ranks yet", n+1)
		}
		if err := command(s, words, n+1); err != nil {
			return nil, fmt.Errorf("line %d: %q: %w", n+1, line, err)
		}
		s.run()
	}
	return out.Bytes(), nil
}

// config parses text such as "ranks 3 cache 4 warn 60".
func config(words []string) Config {
	cfg := Config{Cycle: Millisecond, Fusion: 1 << 20, MaxFusedTensor: 1 << 16, Partition: 1 << 20, Credit: 1 << 22, UnprioritizedCredit: 1 << 30, Cache: 8}
	for i := 0; i+1 < len(words); i += 2 {
		v := number(words[i+1])
		switch words[i] {
		case "ranks":
			cfg.Size = v
		case "cache":
			cfg.Cache = v
		case "fusion":
			cfg.Fusion = v
		case "maxfused":
			cfg.MaxFusedTensor = v
		case "partition":
			cfg.Partition = v
		case "credit":
			cfg.Credit = v
		case "unprioritized":
			cfg.UnprioritizedCredit = v
		case "warn":
			cfg.StallWarn = Duration(v) * Second
		case "end":
			cfg.StallEnd = Duration(v) * Second
		}
	}
	return cfg
}

func number(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}

func command(s *sim, words []string, line int) error {
	switch words[0] {
	case "tune":
		s.stepCoordinator(Retune{Tunables{Cycle: Duration(number(words[1])) * Millisecond, Fusion: number(words[2]), Cache: words[3] == "cache", Class: uint8(number(words[4]))}})
	case "hold":
		s.paused.Add(number(words[1]))
	case "release":
		s.paused.Remove(number(words[1]))
	case "busy":
		s.busy.Add(number(words[1]))
	case "idle":
		s.busy.Remove(number(words[1]))
	case "tick":
		d := number(strings.TrimSuffix(strings.TrimSuffix(words[1], "ms"), "s"))
		if strings.HasSuffix(words[1], "ms") {
			s.tick(Duration(d) * Millisecond)
		} else {
			s.tick(Duration(d) * Second)
		}
	default:
		for r := range s.workers {
			if words[0] == "all" || words[0] == strconv.Itoa(r) {
				if err := act(s, r, words[1:], line); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// act executes a command on one rank.
func act(s *sim, rank int, words []string, line int) error {
	switch words[0] {
	case "flush":
		s.stepWorker(rank, Flush{})
	case "join":
		s.submissions++
		s.stepWorker(rank, Join{s.submissions})
	case "shutdown":
		s.stepWorker(rank, Shutdown{})
	case "fault":
		s.stepWorker(rank, Failed{fault.New(fault.PeerLost, "allreduce", rank, "%s", strings.Join(words[1:], " "))})
	default:
		var rs []TensorRequest
		for _, text := range strings.Split(strings.Join(words, " "), " and ") {
			q, err := request(strings.Fields(text))
			if err != nil {
				return err
			}
			q.Site = fmt.Sprintf("line:%d", line)
			rs = append(rs, q)
		}
		if len(rs) > 1 {
			setGroup(rs)
		}
		s.submit(rank, rs...)
	}
	return nil
}

// setGroup puts requests into one group. As in package coordinator, their names determine the
// group's number.
func setGroup(rs []TensorRequest) {
	var names []string
	for i := range rs {
		names = append(names, rs[i].Name)
	}
	slices.Sort(names)
	id := fnv.New64a()
	for _, n := range names {
		fmt.Fprintf(id, "%s\x00", n)
	}
	for i := range rs {
		rs[i].Group, rs[i].GroupSize = id.Sum64()|1, len(rs)
	}
}

// request parses text such as "allreduce w1 float32 3x4 sum priority 2".
func request(words []string) (q TensorRequest, err error) {
	for k := AllReduce; k.Valid(); k++ {
		if k.String() == words[0] {
			q.Operation = k
		}
	}
	if q.Operation == 0 {
		return q, fmt.Errorf("unknown command")
	}
	q.Name, q.Root, q.Pre, q.Post = words[1], -1, 1, 1
	words = words[2:]
	if q.Operation == AddSet || q.Operation == RemoveSet {
		q.Set = SetRegistry
		for _, w := range words {
			q.Shape = append(q.Shape, number(w))
		}
		return q, nil
	}
	if q.Operation != Barrier {
		if q.DType, err = tensor.ParseDType(words[0]); err != nil {
			return q, err
		}
		q.Wire = q.DType
		for d := range strings.SplitSeq(words[1], "x") {
			q.Shape = append(q.Shape, number(d))
		}
		words = words[2:]
	}
	if q.Operation == AllGather || q.Operation == AllToAll {
		q.Rows, q.Shape[0] = q.Shape[0], -1
	}
	if len(words)%2 == 1 {
		q.Op, words = words[0], words[1:]
		for _, c := range q.Op {
			q.OpID = 31*q.OpID + uint64(c)
		}
	}
	return q, options(&q, words)
}

func options(q *TensorRequest, words []string) error {
	for i := 0; i+1 < len(words); i += 2 {
		v := number(words[i+1])
		switch words[i] {
		case "priority":
			q.Priority = v
		case "root":
			q.Root = v
		case "set":
			q.Set = uint32(v)
		case "scale":
			q.Post = float64(v)
		case "before":
			q.Pre = float64(v)
		case "noidentity":
			q.NoIdentity = v == 1
		case "as":
			d, err := tensor.ParseDType(words[i+1])
			if err != nil {
				return err
			}
			q.Wire = d
		case "keep":
			q.Codec, q.Keep = TopK, v
		case "bits":
			q.Codec = OneBit
		default:
			return fmt.Errorf("unknown option %q", words[i])
		}
	}
	return nil
}
