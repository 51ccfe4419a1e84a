package collective

import (
	"encoding/binary"

	"github.com/tutti-go/tutti/fault"
)

// The wire form of a table, in which rank 0 tells it to the others. Integers are
// little-endian. Algorithms go by name, so that ranks that do not know the same
// ones find out before they run different ones.
//
//	offset size
//	     0    1  version: 1
//	     1    1  number of rules
//	     2    1  number of forced algorithms
//	     3       the rules, then the forced algorithms; of each
//	          8  MaxBytes           (rules only)
//	          4  MaxRanks           (rules only)
//	          1  length of the name
//	             the name: "allreduce:ring"
const (
	tableVersion = 1
	tableHead    = 3
	ruleHead     = 12
	maxName      = 48 // bytes of a name
)

// MaxWire is the most bytes that a table's wire form has.
const MaxWire = tableHead + MaxRules*(ruleHead+1+maxName) + len(verbNames)*(1+maxName)

// AppendWire appends t's wire form, at most MaxWire bytes, and returns the longer
// slice.
func (t *Table) AppendWire(b []byte) []byte {
	forced := 0
	for _, a := range t.forced {
		if a != (Algorithm{}) {
			forced++
		}
	}
	b = append(b, tableVersion, byte(len(t.rules)), byte(forced))
	for _, u := range t.rules {
		b = binary.LittleEndian.AppendUint64(b, u.MaxBytes)
		b = binary.LittleEndian.AppendUint32(b, u.MaxRanks)
		b = appendName(b, u.Algorithm)
	}
	for _, a := range t.forced {
		if a != (Algorithm{}) {
			b = appendName(b, a)
		}
	}
	return b
}

func appendName(b []byte, a Algorithm) []byte {
	name := a.String()
	b = append(b, byte(len(name)))
	return append(b, name...)
}

// ParseTable reads what AppendWire wrote, and takes all of b. It keeps no part of
// b. Bytes that are no wire form of this version, or name an algorithm that this
// rank does not have, get fault.Mismatch.
func ParseTable(b []byte) (*Table, error) {
	if len(b) < tableHead || len(b) > MaxWire {
		return nil, malformed("%d bytes, of %d to %d", len(b), tableHead, MaxWire)
	}
	if b[0] != tableVersion {
		return nil, malformed("version %d, want %d", b[0], tableVersion)
	}
	rules, forced := int(b[1]), int(b[2])
	if rules > MaxRules {
		return nil, malformed("%d rules, of at most %d", rules, MaxRules)
	}
	t := &Table{}
	rest := b[tableHead:]
	var err error
	for range rules {
		var u Rule
		if len(rest) < ruleHead {
			return nil, malformed("cut short")
		}
		u.MaxBytes = binary.LittleEndian.Uint64(rest)
		u.MaxRanks = binary.LittleEndian.Uint32(rest[8:])
		if u.Algorithm, rest, err = takeName(rest[ruleHead:]); err != nil {
			return nil, err
		}
		t.rules = append(t.rules, u)
	}
	for range forced {
		var a Algorithm
		if a, rest, err = takeName(rest); err != nil {
			return nil, err
		}
		t.forced[a.Verb()] = a
	}
	if len(rest) > 0 {
		return nil, malformed("%d bytes too many", len(rest))
	}
	return t, nil
}

func takeName(b []byte) (Algorithm, []byte, error) {
	if len(b) == 0 || int(b[0]) > len(b)-1 {
		return Algorithm{}, nil, malformed("cut short")
	}
	name, rest := string(b[1:1+b[0]]), b[1+b[0]:]
	a, err := parseAlgorithm(name)
	if err != nil {
		return Algorithm{}, nil, malformed("an algorithm that this rank does not have: %w", err)
	}
	return a, rest, nil
}

func malformed(format string, args ...any) error {
	return fault.New(fault.Mismatch, "collective.ParseTable", -1, format, args...)
}
