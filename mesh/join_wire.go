package mesh

import (
	"encoding/binary"

	"github.com/tutti-go/tutti/transport"
)

// A record is how a rank can be reached, and where it runs.
type record struct {
	addr string
	host string
}

// Bounds of a record's texts. Both together, with their lengths, stay within
// transport.MaxAddr.
const (
	maxHost   = 64
	maxRecord = transport.MaxAddr
)

func (r record) append(b []byte) []byte {
	host := truncate(r.host, maxHost)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(r.addr)))
	b = append(b, r.addr...)
	b = append(b, byte(len(host)))
	return append(b, host...)
}

// size is how many bytes append adds.
func (r record) size() int { return 3 + len(r.addr) + len(truncate(r.host, maxHost)) }

// parseRecordPrefix reads a record off b.
func parseRecordPrefix(b []byte) (r record, rest []byte, err error) {
	if len(b) < 3 {
		return r, nil, errMalformed
	}
	n := int(binary.LittleEndian.Uint16(b))
	if n > maxRecord || len(b) < 3+n {
		return r, nil, errMalformed
	}
	r.addr, b = string(b[2:2+n]), b[2+n:]
	m := int(b[0])
	if m > maxHost || len(b) < 1+m || 3+n+m > maxRecord {
		return r, nil, errMalformed
	}
	r.host = sanitize(b[1 : 1+m])
	return r, b[1+m:], nil
}

// appendRecordHead announces this rank's record.
func appendRecordHead(b []byte) []byte {
	start := len(b)
	return sealHead(beginHead(b, kindRecord), start)
}

func parseRecord(head, body []byte) (record, error) {
	if err := checkHead(head, kindRecord, recordSize); err != nil {
		return record{}, err
	}
	r, rest, err := parseRecordPrefix(body)
	if err != nil || len(rest) != 0 {
		return record{}, errMalformed
	}
	return r, nil
}

// maxNamedRanks is how many missing ranks a wait names.
const maxNamedRanks = 64

// appendWait says who has not come yet: how many, and the first of them.
func appendWait(b []byte, missing []int) (head, body []byte) {
	start := len(b)
	b = beginHead(b, kindWait)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(missing)))
	return sealHead(b, start), appendRanks(nil, missing)
}

func appendRanks(b []byte, ranks []int) []byte {
	for _, r := range ranks[:min(len(ranks), maxNamedRanks)] {
		b = binary.LittleEndian.AppendUint32(b, uint32(r))
	}
	return b
}

// parseWait returns the ranks that a wait names.
func parseWait(head, body []byte, size int) ([]int, error) {
	if err := checkHead(head, kindWait, waitSize); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(head[8:])
	if uint64(n) > uint64(size) || len(body) != 4*int(min(n, maxNamedRanks)) {
		return nil, errMalformed
	}
	return parseRanks(body, size)
}

func parseRanks(body []byte, size int) (ranks []int, err error) {
	for ; len(body) >= 4; body = body[4:] {
		r := binary.LittleEndian.Uint32(body)
		if uint64(r) >= uint64(size) {
			return nil, errMalformed
		}
		ranks = append(ranks, int(r))
	}
	if len(body) != 0 {
		return nil, errMalformed
	}
	return ranks, nil
}

// appendTable writes as many of the records from first on as fit one body, and
// returns how many.
func appendTable(b []byte, records []record, first int) (head, body []byte, n int) {
	for first+n < len(records) && len(body)+records[first+n].size() <= maxBody {
		body = records[first+n].append(body)
		n++
	}
	start := len(b)
	b = beginHead(b, kindTable)
	for _, x := range []int{first, n, len(records)} {
		b = binary.LittleEndian.AppendUint32(b, uint32(x))
	}
	return sealHead(b, start), body, n
}

// parseTable reads the records of one frame of the table; they must begin at
// first and belong to size ranks.
func parseTable(head, body []byte, first, size int) ([]record, error) {
	if err := checkHead(head, kindTable, tableSize); err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	n := le.Uint32(head[12:])
	if uint64(le.Uint32(head[8:])) != uint64(first) || uint64(le.Uint32(head[16:])) != uint64(size) ||
		n == 0 || uint64(n) > uint64(size-first) {
		return nil, errMalformed
	}
	var records []record
	for range n {
		r, rest, err := parseRecordPrefix(body)
		if err != nil {
			return nil, err
		}
		records, body = append(records, r), rest
	}
	if len(body) != 0 {
		return nil, errMalformed
	}
	return records, nil
}
