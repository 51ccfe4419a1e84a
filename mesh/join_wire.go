package mesh

import (
	"encoding/binary"

	"github.com/tutti-go/tutti/internal/wire"
	"github.com/tutti-go/tutti/transport"
)

// A record says how a rank can be reached, on which host it runs, and which process is the rank.
type record struct {
	addr     string
	host     string
	instance uint64
}

// The bounds of a record, in bytes. maxHost bounds the host's name. maxRecord bounds the whole
// record, so a long address is too long if its host's name is long, too.
const (
	maxHost     = 64
	maxRecord   = transport.MaxAddr
	recordFixed = 8 + 2 + 1 // the instance and the two lengths
)

// append appends the record. It truncates a long host name.
func (r record) append(b []byte) []byte {
	host := truncate(r.host, maxHost)
	b = binary.LittleEndian.AppendUint64(b, r.instance)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(r.addr)))
	b = append(b, r.addr...)
	b = append(b, byte(len(host)))
	return append(b, host...)
}

// size returns the number of bytes that append adds.
func (r record) size() int { return recordFixed + len(r.addr) + len(truncate(r.host, maxHost)) }

// readRecord reads a record. The sender has passed the handshake, but in a job without a secret
// this proves little. So readRecord bounds the lengths, and replaces control characters in the
// host's name, which is written to logs.
func readRecord(b *wire.Reader) record {
	instance := b.Uint64()
	addr := b.String(int(b.Uint16()), maxRecord)
	host := b.String(int(b.Uint8()), maxHost)
	if recordFixed+len(addr)+len(host) > maxRecord {
		b.Fail()
	}
	return record{addr: addr, host: sanitize([]byte(host)), instance: instance}
}

// appendRecordHead appends the head of a RECORD frame, whose body is this rank's record.
func appendRecordHead(b []byte) []byte {
	start := len(b)
	return sealHead(beginHead(b, kindRecord), start)
}

// parseRecord reads a RECORD frame.
func parseRecord(head, body []byte) (record, error) {
	h, err := openHead(head, kindRecord)
	if err != nil {
		return record{}, err
	}
	b := wire.NewReader(body)
	r := readRecord(&b)
	if !h.Done() || !b.Done() {
		return record{}, errMalformed
	}
	return r, nil
}

// maxNamedRanks is the maximum number of missing ranks that a WAIT frame names.
const maxNamedRanks = 64

// appendWait builds a WAIT frame, which holds the number of missing ranks and the first of these
// ranks.
func appendWait(b []byte, missing []int) (head, body []byte) {
	start := len(b)
	b = beginHead(b, kindWait)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(missing)))
	return sealHead(b, start), appendRanks(nil, missing)
}

// appendRanks appends at most maxNamedRanks ranks.
func appendRanks(b []byte, ranks []int) []byte {
	for _, r := range ranks[:min(len(ranks), maxNamedRanks)] {
		b = binary.LittleEndian.AppendUint32(b, uint32(r))
	}
	return b
}

// parseWait returns the ranks that a WAIT frame names, for a job of size ranks.
func parseWait(head, body []byte, size int) ([]int, error) {
	h, err := openHead(head, kindWait)
	if err != nil {
		return nil, err
	}
	n := h.Uint32()
	if !h.Done() || uint64(n) > uint64(size) {
		return nil, errMalformed
	}
	b := wire.NewReader(body)
	var ranks []int
	for range min(n, maxNamedRanks) {
		r := b.Uint32()
		if !b.OK() || uint64(r) >= uint64(size) {
			return nil, errMalformed
		}
		ranks = append(ranks, int(r))
	}
	return ranks, finish(&b)
}

// appendTable builds a TABLE frame. The argument first is the rank of the frame's first record. The
// frame has as many records as fit in one body. The result n is the number of records in the frame.
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

// parseTable reads the records of one TABLE frame. The argument first is the rank that the first
// record must belong to. The frames arrive in order, so a gap or a repetition is an error.
func parseTable(head, body []byte, first, size int) ([]record, error) {
	h, err := openHead(head, kindTable)
	if err != nil {
		return nil, err
	}
	from, n, of := h.Uint32(), h.Uint32(), h.Uint32()
	if !h.Done() || uint64(from) != uint64(first) || uint64(of) != uint64(size) || n == 0 || uint64(n) > uint64(size-first) {
		return nil, errMalformed
	}
	b := wire.NewReader(body)
	var records []record
	for range n {
		records = append(records, readRecord(&b))
		if !b.OK() {
			return nil, errMalformed
		}
	}
	return records, finish(&b)
}
