package topology

import (
	"fmt"
	"strings"
)

// Ranks exchange Places in this encoding of RecordSize bytes:
//
//	offset size
//	     0    1  length of the host's name, 0 to 64
//	     1   64  the host's name, then zeroes
//	    65    1  length of the rack's name, 0 to 64
//	    66   64  the rack's name, then zeroes
const (
	RecordSize = 2 * fieldSize
	fieldSize  = 1 + MaxName
)

// AppendRecord appends the encoding of p. It shortens longer names.
func AppendRecord(b []byte, p Place) []byte {
	for _, name := range [...]string{p.Host, p.Rack} {
		var field [fieldSize]byte
		field[0] = byte(copy(field[1:], name))
		b = append(b, field[:]...)
	}
	return b
}

// ParseRecords parses all of b, the encodings of one rank after the other. The result keeps no
// reference to b. Bytes of names that are not printable become "?".
func ParseRecords(b []byte) ([]Place, error) {
	if len(b)%RecordSize != 0 {
		return nil, fmt.Errorf("records: got %d bytes, want a multiple of %d", len(b), RecordSize)
	}
	places := make([]Place, len(b)/RecordSize)
	for i := range places {
		record := b[i*RecordSize:][:RecordSize]
		for j, name := range [...]*string{&places[i].Host, &places[i].Rack} {
			field := record[j*fieldSize:][:fieldSize]
			n := int(field[0])
			if n > MaxName {
				return nil, fmt.Errorf("record %d: got a name of %d bytes, want at most %d", i, n, MaxName)
			}
			*name = strings.Map(printable, string(field[1:1+n]))
		}
	}
	return places, nil
}

// printable replaces a blank, and a character that is not printable ASCII, by "?". This is needed
// because names from other ranks appear in logs and errors.
func printable(r rune) rune {
	if r <= ' ' || r >= 0x7f {
		return '?'
	}
	return r
}
