package negotiate

import (
	"encoding/binary"
	"math"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/wire"
	"github.com/tutti-go/tutti/tensor"
)

// wireVersion is the first byte of every list. A rank that runs another version is refused.
const wireVersion = 4

// The flags of a request list. A decoder refuses flags that it does not know.
const (
	listJoins = 1 << iota
	listShutdown
	listLocation
	listFault
	listRefused
	listMore
)

// AppendRequestList appends m in its wire form, which the package comment describes.
func AppendRequestList(b []byte, m *RequestList) []byte {
	var marks byte
	for _, f := range [...]struct {
		on   bool
		mark byte
	}{{m.Join, listJoins}, {m.Shutdown, listShutdown}, {m.HasLocation, listLocation}, {m.Fault != nil, listFault}, {m.Refused != nil, listRefused}, {m.More, listMore}} {
		if f.on {
			marks |= f.mark
		}
	}
	b = append(b, wireVersion, marks)
	b = binary.AppendUvarint(b, uint64(m.Ack))
	b = appendBits(b, m.Cached)
	b = binary.AppendUvarint(b, uint64(len(m.Requests)))
	for i := range m.Requests {
		b = appendRequest(b, &m.Requests[i])
	}
	if m.HasLocation {
		b = appendText(b, m.Location)
	}
	if m.Fault != nil {
		b = appendFault(b, m.Fault)
	}
	if m.Refused != nil {
		b = appendFault(appendNames(b, m.Refused.Tensors), m.Refused.Err)
	}
	return b
}

// ParseRequestList decodes a list that AppendRequestList has encoded. For any other input it
// returns fault.Mismatch.
func ParseRequestList(b []byte) (*RequestList, error) {
	r := reader{Reader: wire.NewReader(b)}
	m := new(RequestList)
	r.version()
	marks := r.Uint8()
	m.Join, m.Shutdown, m.HasLocation = marks&listJoins != 0, marks&listShutdown != 0, marks&listLocation != 0
	m.More = marks&listMore != 0
	m.Ack = r.Uvarint32()
	m.Cached = r.bits()
	m.Requests = make([]TensorRequest, r.Count(minRequest))
	for i := range m.Requests {
		r.tensorRequest(&m.Requests[i])
	}
	if m.HasLocation {
		m.Location = r.text(MaxSite)
	}
	if marks&listFault != 0 {
		m.Fault = r.fault()
	}
	if marks&listRefused != 0 {
		m.Refused = &Refusal{r.names(), r.fault()}
	}
	if marks > listJoins|listShutdown|listLocation|listFault|listRefused|listMore {
		r.Fail()
	}
	return m, r.end("a request list")
}

// AppendResponseList appends m in its wire form, which the package comment describes.
func AppendResponseList(b []byte, m *ResponseList) []byte {
	b = append(b, wireVersion)
	b = binary.AppendUvarint(b, uint64(m.Seq))
	b = binary.AppendUvarint(b, uint64(len(m.Entries)))
	for i := range m.Entries {
		e := &m.Entries[i]
		b = binary.AppendUvarint(b, uint64(e.ID))
		b = append(b, flagByte(e.Transient))
		b = appendSpec(b, e.Spec)
		b = appendInts(b, e.Rows)
	}
	b = binary.AppendUvarint(b, uint64(len(m.Responses)))
	for i := range m.Responses {
		b = appendResponse(b, &m.Responses[i])
	}
	b = binary.AppendUvarint(b, uint64(len(m.Evicted)))
	for _, id := range m.Evicted {
		b = binary.AppendUvarint(b, uint64(id))
	}
	return b
}

// ParseResponseList decodes a list that AppendResponseList has encoded. For any other input it
// returns fault.Mismatch.
func ParseResponseList(b []byte) (*ResponseList, error) {
	r := reader{Reader: wire.NewReader(b)}
	m := new(ResponseList)
	r.version()
	m.Seq = r.Uvarint32()
	m.Entries = make([]CacheEntry, r.Count(minSpec+2))
	for i := range m.Entries {
		e := &m.Entries[i]
		e.ID, e.Transient, e.Spec = r.Uvarint32(), r.Bool(), new(Spec)
		r.spec(e.Spec)
		e.Rows = r.ints()
	}
	m.Responses = make([]Response, r.Count(1))
	r.responses = len(m.Responses)
	for i := range m.Responses {
		r.response(&m.Responses[i])
	}
	m.Evicted = make([]uint32, r.Count(1))
	for i := range m.Evicted {
		m.Evicted[i] = r.Uvarint32()
	}
	return m, r.end("a response list")
}

// The flags of a tune response.
const (
	tuneCache = 1 << iota
	tuneFinal
)

// appendResponse encodes the fields that a response of the given kind has. The method response
// decodes the same fields.
func appendResponse(b []byte, it *Response) []byte {
	b = append(b, byte(it.Kind))
	switch it.Kind {
	case ResponseRun:
		b = binary.AppendUvarint(b, uint64(len(it.IDs)))
		for _, s := range it.IDs {
			b = binary.AppendUvarint(b, uint64(s.First))
			b = binary.AppendUvarint(b, uint64(s.Count))
		}
		b = binary.AppendUvarint(b, uint64(it.Part))
		b = binary.AppendUvarint(b, uint64(it.Parts))
		b = appendInts(b, it.Ranks)
	case ResponseFail:
		b = appendFault(appendInts(appendNames(b, it.Failed), it.Ranks), it.Err)
	case ResponseJoined:
		b = binary.AppendUvarint(b, uint64(it.Rank))
	case ResponseAddSet, ResponseRemoveSet:
		b = binary.AppendUvarint(b, uint64(it.ID))
		b = appendText(b, it.Name)
		if it.Kind == ResponseAddSet {
			b = appendInts(b, it.Ranks)
		}
	case ResponseLocate:
		b = appendInts(b, it.Ranks)
	case ResponseAbort:
		b = appendFault(b, it.Err)
	case ResponseTune:
		b = binary.AppendUvarint(b, uint64(it.Tuning.Cycle))
		b = binary.AppendUvarint(b, uint64(it.Tuning.Fusion))
		b = append(b, flagByte(it.Tuning.Cache)*tuneCache|flagByte(it.Tuning.Final)*tuneFinal, it.Tuning.Class)
	}
	return b
}

// response decodes a response that appendResponse has encoded. An unknown kind makes the list
// invalid.
func (r *reader) response(it *Response) {
	it.Kind = ResponseKind(r.Uint8())
	switch it.Kind {
	case ResponseRun:
		it.IDs = r.idRanges(r.Count(2))
		for i := range it.IDs {
			it.IDs[i] = IDRange{r.Uvarint32(), r.Uvarint32()}
		}
		it.Part, it.Parts = int(r.Uvarint32()), int(r.Uvarint32())
		it.Ranks = r.ints()
	case ResponseFail:
		it.Failed, it.Ranks, it.Err = r.names(), r.ints(), r.fault()
	case ResponseJoined:
		it.Rank = int(r.Uvarint32())
	case ResponseAddSet, ResponseRemoveSet:
		it.ID, it.Name = r.Uvarint32(), r.text(MaxName)
		if it.Kind == ResponseAddSet {
			it.Ranks = r.ints()
		}
	case ResponseLocate:
		it.Ranks = r.ints()
	case ResponseAbort:
		it.Err = r.fault()
	case ResponseTune:
		it.Tuning.Cycle, it.Tuning.Fusion = Duration(r.Uvarint()), int(r.Uvarint())
		marks := r.Uint8()
		it.Tuning.Cache, it.Tuning.Final, it.Tuning.Class = marks&tuneCache != 0, marks&tuneFinal != 0, r.Uint8()
		if !it.Tuning.valid() || marks > tuneCache|tuneFinal {
			r.Fail()
		}
	case ResponseShutdown:
	default:
		r.Fail()
	}
}

// appendRequest encodes a request. The method tensorRequest decodes the same fields.
func appendRequest(b []byte, q *TensorRequest) []byte {
	b = appendSpec(b, &q.Spec)
	b = binary.AppendVarint(b, int64(q.Rows))
	b = appendInts(b, q.Splits)
	return appendText(b, q.Site)
}

// tensorRequest decodes a request that appendRequest has encoded.
func (r *reader) tensorRequest(q *TensorRequest) {
	r.spec(&q.Spec)
	q.Rows = r.Varint()
	q.Splits = r.ints()
	q.Site = r.text(MaxSite)
}

// appendSpec encodes a spec. For a tensor without a codec it encodes neither the codec nor Keep.
func appendSpec(b []byte, t *Spec) []byte {
	b = binary.AppendUvarint(b, uint64(t.Set))
	b = appendText(b, t.Name)
	b = append(b, byte(t.Operation), byte(t.DType), byte(t.Wire))
	b = appendInts(b, t.Shape)
	b = appendText(b, t.Op)
	b = binary.LittleEndian.AppendUint64(b, t.OpID)
	b = binary.AppendVarint(b, int64(t.Root))
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(t.Pre))
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(t.Post))
	b = binary.AppendVarint(b, int64(t.Priority))
	b = binary.LittleEndian.AppendUint64(b, t.Group)
	b = binary.AppendUvarint(b, uint64(t.GroupSize))
	marks := flagByte(t.NoIdentity)
	if t.Whole {
		marks |= specWhole
	}
	if t.Codec == Plain {
		return append(b, marks)
	}
	b = append(b, marks|specCodec, byte(t.Codec))
	return binary.AppendUvarint(b, uint64(t.Keep))
}

// The flags of a spec.
const (
	specNoIdentity = 1 << iota
	specWhole
	specCodec
)

// The smallest sizes of an encoded spec and request, in bytes. Before a decoder allocates memory
// for a list, it uses these sizes to check the list's length. So a short message cannot make it
// allocate much memory.
const (
	minSpec    = 42
	minRequest = minSpec + 3
)

// spec decodes a spec that appendSpec has encoded. A spec that no Worker could have sent makes the
// list invalid, so the state machines need not check specs again.
func (r *reader) spec(t *Spec) {
	t.Set, t.Name = r.Uvarint32(), r.text(MaxName)
	t.Operation, t.DType, t.Wire = Operation(r.Uint8()), tensor.DType(r.Uint8()), tensor.DType(r.Uint8())
	t.Shape = r.ints()
	t.Op, t.OpID = r.text(maxOp), r.Uint64()
	t.Root = r.Varint()
	t.Pre, t.Post = r.Float64(), r.Float64()
	t.Priority = r.Varint()
	t.Group, t.GroupSize = r.Uint64(), int(r.Uvarint32())
	marks := r.Uint8()
	t.NoIdentity, t.Whole = marks&specNoIdentity != 0, marks&specWhole != 0
	if marks&specCodec != 0 {
		t.Codec, t.Keep = Codec(r.Uint8()), int(r.Uvarint32())
		if t.Codec == Plain {
			r.Fail()
		}
	}
	if marks > specNoIdentity|specWhole|specCodec {
		r.Fail()
	}
	if r.OK() && !t.valid() {
		r.Fail()
	}
}

// flagByte returns 1 for true and 0 for false.
func flagByte(on bool) byte {
	if on {
		return 1
	}
	return 0
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendNames(b []byte, names []TensorName) []byte {
	b = binary.AppendUvarint(b, uint64(len(names)))
	for _, n := range names {
		b = binary.AppendUvarint(b, uint64(n.Set))
		b = appendText(b, n.Name)
	}
	return b
}

func appendInts(b []byte, list []int) []byte {
	b = binary.AppendUvarint(b, uint64(len(list)))
	for _, v := range list {
		b = binary.AppendVarint(b, int64(v))
	}
	return b
}

// appendFault writes an error in package fault's wire form, which bounds its length.
func appendFault(b []byte, e *fault.Error) []byte {
	var buf [fault.MaxWire]byte
	return appendText(b, string(e.AppendWire(buf[:0])))
}

// appendBits encodes a set as bytes, the lowest numbers first, without the zero bytes at the end.
// In steady state a rank's submissions of 500 tensors take 63 bytes.
func appendBits(b []byte, set Bitset) []byte {
	n := len(set) * 8
	at := func(i int) byte { return byte(set[i/8] >> (i % 8 * 8)) }
	for n > 0 && at(n-1) == 0 {
		n--
	}
	b = binary.AppendUvarint(b, uint64(n))
	for i := range n {
		b = append(b, at(i))
	}
	return b
}
