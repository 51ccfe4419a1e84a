package collective

import (
	"strconv"
	"strings"

	"github.com/tutti-go/tutti/fault"
)

// Force makes t choose the named algorithms regardless of its rules. The text has the form of
// TUTTI_ALGORITHM, for example "allreduce:ring,broadcast:binomial@256Ki". The number after "@" is
// the segment size in bytes. An empty text changes nothing. If the text is invalid, Force returns
// fault.Misuse with a list of the allowed values, and does not change t. Call Force before the
// table is in use.
func (t *Table) Force(text string) error {
	if strings.TrimSpace(text) == "" {
		return nil
	}
	forced := t.forced
	var named [len(verbNames)]bool
	for item := range strings.SplitSeq(text, ",") {
		item = strings.TrimSpace(item)
		if item == "" {
			continue
		}
		p, err := parseSelection(item)
		if err != nil {
			return misuse("forced algorithms", "%q: %w", text, fault.Cause(err))
		}
		verb := p.algorithm.Verb()
		if named[verb] {
			return misuse("forced algorithms", "%q: got two algorithms for %v, want one", text, verb)
		}
		forced[verb], named[verb] = p, true
	}
	if named == [len(verbNames)]bool{} {
		return misuse("forced algorithms", "got %q, want a list such as allreduce:ring, or nothing to force none", text)
	}
	t.forced = forced
	return nil
}

// WithForced returns a copy of t after a call of Force on that copy.
func (t *Table) WithForced(text string) (*Table, error) {
	changed := *t // the rules never change, so both tables share them
	return &changed, changed.Force(text)
}

// parseSelection parses "allreduce:ring@256Ki". The segment size may be missing.
func parseSelection(text string) (selection, error) {
	name, size, cut := strings.Cut(text, "@")
	a, err := parseAlgorithm(name)
	if err != nil || !cut {
		return selection{algorithm: a}, err
	}
	segment, err := ParseSize(strings.TrimSpace(size))
	if err != nil {
		return selection{}, err
	}
	if segment == 0 {
		return selection{}, misuse("collective", "segment: got 0 bytes, want 1 or more; leave out @ and the number for the default size")
	}
	if segment > MaxSegment {
		segment = MaxSegment + 16 // Check refuses it below and names the bounds
	}
	u := TableRule{Algorithm: a, Segment: uint32(segment)}
	return selection{a, u.Segment}, u.Check()
}

// ParseSize parses a number of bytes: "64", "64Ki", "4Mi", "1Gi". For any other text it returns
// fault.Misuse.
func ParseSize(text string) (uint64, error) {
	number, shift := text, 0
	for i, suffix := range []string{"Ki", "Mi", "Gi"} {
		if n, ok := strings.CutSuffix(text, suffix); ok {
			number, shift = n, 10*(i+1)
			break
		}
	}
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil || n<<shift>>shift != n {
		return 0, misuse("collective.ParseSize", "size: got %q, want a number of bytes such as 64, 64Ki or 4Mi", text)
	}
	return n << shift, nil
}

// parseAlgorithm parses a text in the form that Algorithm.String returns.
func parseAlgorithm(text string) (Algorithm, error) {
	verbName, name, ok := strings.Cut(text, ":")
	if !ok {
		return Algorithm{}, misuse("collective", "got %q, want collective:algorithm, such as allreduce:ring", text)
	}
	verb, err := ParseVerb(strings.TrimSpace(verbName))
	if err != nil {
		return Algorithm{}, err
	}
	return Find(verb, strings.TrimSpace(name))
}
