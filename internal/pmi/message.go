package pmi

import (
	"bufio"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// maxLine bounds a line, with its newline.
const maxLine = 4096

// A message is a line of the protocol: words of the form key=value.
type message map[string]string

// A malformed error describes a line that is no message.
type malformed string

// Error returns the description.
func (m malformed) Error() string { return string(m) }

// readLine reads a line, and returns it without its newline. A line that is too long is malformed.
func readLine(in *bufio.Reader) (string, error) {
	line, err := in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return "", malformed(fmt.Sprintf("got a line of more than %d bytes", maxLine))
	}
	return strings.TrimSuffix(string(line), "\n"), err
}

// parse returns the words of a line. It ignores a word without a key, which is a later word of a
// text. A message has a command, and no key twice.
func parse(line string) (message, error) {
	m := make(message)
	for word := range strings.FieldsSeq(line) {
		k, v, ok := strings.Cut(word, "=")
		if !ok || k == "" {
			continue
		}
		if _, twice := m[k]; twice {
			return nil, malformed(fmt.Sprintf("got %.80q, want each key once", line))
		}
		m[k] = v
	}
	if m["cmd"] == "" {
		return nil, malformed(fmt.Sprintf("got %.80q, want cmd=NAME", line))
	}
	return m, nil
}

// A refusal is an answer whose rc is not 0.
type refusal struct{ command, rc, text string }

// Error returns the answer.
func (r *refusal) Error() string {
	return fmt.Sprintf("process manager: got cmd=%s rc=%.20s %.80q, want rc=0", r.command, r.rc, r.text)
}

// number returns a decimal number from lo to hi.
func number(s string, lo, hi int) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < lo || n > hi {
		return 0, fmt.Errorf("got %.20q, want a number from %d to %d", s, lo, hi)
	}
	return n, nil
}

// mappingKey is the key of the value that says which ranks are on which node.
const mappingKey = "PMI_process_mapping"

// layoutOf returns the place of a rank on its host by the value of mappingKey. The mapping lists
// blocks of (first node, nodes, ranks of each node). If the blocks hold fewer ranks than the job
// has, the next ranks begin again with the first block:
//
//	(vector,(0,2,2))          ranks 0 and 1 on node 0, ranks 2 and 3 on node 1
//	(vector,(0,1,2),(1,1,1))  ranks 0, 1 and 3 on node 0, rank 2 on node 1
//
// If the mapping is malformed, the layout is unknown.
func layoutOf(mapping string, rank, size int) layout {
	blocks, err := parseMapping(mapping)
	if err != nil {
		return layout{-1, -1}
	}
	nodes := make([]int, 0, size) // by rank
	for len(nodes) < size {
		for _, b := range blocks {
			for i := 0; i < b[1] && len(nodes) < size; i++ {
				for k := 0; k < b[2] && len(nodes) < size; k++ {
					nodes = append(nodes, b[0]+i)
				}
			}
		}
	}
	var l layout
	for r, node := range nodes {
		if node == nodes[rank] {
			l.size++
			if r < rank {
				l.rank++
			}
		}
	}
	return l
}

// parseMapping returns the blocks of a mapping. There is at least one, and each has at least one
// rank.
func parseMapping(s string) ([][3]int, error) {
	s, ok := strings.CutPrefix(s, "(vector,(")
	if !ok {
		return nil, errors.New("not a vector")
	}
	if s, ok = strings.CutSuffix(s, "))"); !ok {
		return nil, errors.New("not complete")
	}
	var blocks [][3]int
	for text := range strings.SplitSeq(s, "),(") {
		fields := strings.Split(text, ",")
		if len(fields) != 3 {
			return nil, errors.New("not three numbers")
		}
		var b [3]int
		for i, lo := range [...]int{0, 1, 1} {
			var err error
			if b[i], err = number(fields[i], lo, maxRanks); err != nil {
				return nil, err
			}
		}
		blocks = append(blocks, b)
	}
	return blocks, nil
}
