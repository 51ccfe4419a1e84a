package collective

import (
	"encoding/binary"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/wire"
)

// Rank 0 sends its table to the other ranks in this encoding. Integers are little-endian. An
// algorithm is encoded by name, not by number, because numbers may differ between builds.
//
//	offset size
//	     0    1  version: 2
//	     1    2  number of rules
//	     3    2  number of measured rules, which come first
//	     5    1  number of forced algorithms
//	     6       the rules, then the forced algorithms; each has
//	          8  MaxBytes           (rules only)
//	          4  MinRanks           (rules only)
//	          4  MaxRanks           (rules only)
//	          4  the segment in bytes; 0: the communicator's default
//	          1  length of the wire's name (rules only)
//	             the wire's name    (rules only)
//	          1  length of the algorithm's name
//	             the algorithm's name, such as "allreduce:ring"
const (
	tableVersion     = 2
	tableHeaderSize  = 6
	ruleHeaderSize   = 16
	maxAlgorithmName = 48 // bytes of an algorithm's name
)

// MaxEncodedTable is the maximum size of an encoded table in bytes.
const MaxEncodedTable = tableHeaderSize + MaxRules*(ruleHeaderSize+4+1+MaxWireName+1+maxAlgorithmName) + len(verbNames)*(4+1+maxAlgorithmName)

// AppendEncoded appends the encoding of t, at most MaxEncodedTable bytes, to b and returns the
// extended slice. It does not encode algorithms by number, because numbers differ between builds.
func (t *Table) AppendEncoded(b []byte) []byte {
	forced := 0
	for _, p := range t.forced {
		if p != (selection{}) {
			forced++
		}
	}
	b = append(b, tableVersion)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(t.rules)))
	b = binary.LittleEndian.AppendUint16(b, uint16(t.tuned))
	b = append(b, byte(forced))
	for _, u := range t.rules {
		b = binary.LittleEndian.AppendUint64(b, u.MaxBytes)
		b = binary.LittleEndian.AppendUint32(b, u.MinRanks)
		b = binary.LittleEndian.AppendUint32(b, u.MaxRanks)
		b = binary.LittleEndian.AppendUint32(b, u.Segment)
		b = appendText(b, u.Wire)
		b = appendText(b, u.Algorithm.String())
	}
	for _, p := range t.forced {
		if p != (selection{}) {
			b = binary.LittleEndian.AppendUint32(b, p.segment)
			b = appendText(b, p.algorithm.String())
		}
	}
	return b
}

// appendText appends a text of at most 255 bytes with its length.
func appendText(b []byte, text string) []byte {
	return append(append(b, byte(len(text))), text...)
}

// ParseTable parses b, which must be exactly one table as AppendEncoded encodes it. It keeps no
// reference to b. For an encoding of another version, or with an algorithm that this build does not
// have, it returns fault.Mismatch.
func ParseTable(b []byte) (*Table, error) {
	if len(b) < tableHeaderSize || len(b) > MaxEncodedTable {
		return nil, malformed("table: got %d bytes, want %d to %d", len(b), tableHeaderSize, MaxEncodedTable)
	}
	if b[0] != tableVersion {
		return nil, malformed("table version: got %d, want %d; start all ranks from one build", b[0], tableVersion)
	}
	rules, tuned, forced := int(binary.LittleEndian.Uint16(b[1:])), int(binary.LittleEndian.Uint16(b[3:])), int(b[5])
	if rules > MaxRules || tuned > rules {
		return nil, malformed("rules: got %d in all and %d measured, want at most %d in all, and no more measured than in all", rules, tuned, MaxRules)
	}
	t := &Table{tuned: tuned}
	d := &tableDecoder{Reader: wire.NewReader(b[tableHeaderSize:])}
	for range rules {
		u := TableRule{MaxBytes: d.Uint64(), MinRanks: d.Uint32(), MaxRanks: d.Uint32(), Segment: d.Uint32(), Wire: d.text(), Algorithm: d.algorithm()}
		d.check(u)
		t.rules = append(t.rules, u)
	}
	for range forced {
		p := selection{segment: d.Uint32(), algorithm: d.algorithm()}
		d.check(TableRule{Algorithm: p.algorithm, Segment: p.segment})
		t.forced[p.algorithm.Verb()] = p
	}
	switch {
	case d.err != nil:
		return nil, d.err
	case !d.OK():
		return nil, malformed("table: got %d bytes, want more, because the rules in its header do not fit; start all ranks from one build", len(b))
	case d.Len() > 0:
		return nil, malformed("table: got %d bytes after its last rule, want none", d.Len())
	}
	return t, nil
}

// A tableDecoder reads the encoding of a table. The field err is the error for the first invalid
// value. After that value, or after the end of the input, all methods return zero values.
type tableDecoder struct {
	wire.Reader
	err error
}

// text reads a text with its length.
func (d *tableDecoder) text() string { return d.String(int(d.Uint8()), 255) }

// algorithm reads the name of an algorithm that this build has.
func (d *tableDecoder) algorithm() Algorithm {
	name := d.text()
	if d.err != nil || !d.OK() {
		return Algorithm{}
	}
	a, err := parseAlgorithm(name)
	if err != nil {
		d.err = malformed("%w; start all ranks from one build", err)
	}
	return a
}

// check records an error if NewTable would refuse the rule. Such a rule may come from another
// build.
func (d *tableDecoder) check(u TableRule) {
	if d.err != nil || !d.OK() {
		return
	}
	if err := u.Check(); err != nil {
		d.err = malformed("%w", err)
	}
}

// malformed returns the error for bytes that are not a valid encoding.
func malformed(format string, args ...any) error {
	return fault.New(fault.Mismatch, "collective.ParseTable", -1, format, args...)
}
