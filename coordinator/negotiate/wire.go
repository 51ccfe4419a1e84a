package negotiate

import (
	"encoding/binary"
	"math"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/tensor"
)

const wireVersion = 1

const (
	upJoin = 1 << iota
	upLeave
	upHere
	upFault
)

// AppendUp appends m in its wire form.
func AppendUp(b []byte, m *Up) []byte {
	var marks byte
	for _, f := range [...]struct {
		on   bool
		mark byte
	}{{m.Join, upJoin}, {m.Leave, upLeave}, {m.IsHere, upHere}, {m.Fault != nil, upFault}} {
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
	if m.IsHere {
		b = appendText(b, m.Here)
	}
	if m.Fault != nil {
		b = appendFault(b, m.Fault)
	}
	return b
}

// ParseUp reads what AppendUp wrote. Anything else gets fault.Mismatch.
func ParseUp(b []byte) (*Up, error) {
	r := reader{b: b}
	m := new(Up)
	r.version()
	marks := r.byte()
	m.Join, m.Leave, m.IsHere = marks&upJoin != 0, marks&upLeave != 0, marks&upHere != 0
	m.Ack = r.u32()
	m.Cached = r.bits()
	m.Requests = make([]Request, r.count(minRequest))
	for i := range m.Requests {
		r.request(&m.Requests[i])
	}
	if m.IsHere {
		m.Here = r.text(MaxSite)
	}
	if marks&upFault != 0 {
		m.Fault = r.fault()
	}
	if marks > upJoin|upLeave|upHere|upFault {
		r.bad = true
	}
	return m, r.end("a member's message")
}

// AppendDown appends m in its wire form.
func AppendDown(b []byte, m *Down) []byte {
	b = append(b, wireVersion)
	b = binary.AppendUvarint(b, uint64(m.Seq))
	b = binary.AppendUvarint(b, uint64(len(m.Meanings)))
	for i := range m.Meanings {
		e := &m.Meanings[i]
		b = binary.AppendUvarint(b, uint64(e.ID))
		b = append(b, mark(e.Once))
		b = appendTensor(b, e.Tensor)
		b = appendInts(b, e.Rows)
	}
	b = binary.AppendUvarint(b, uint64(len(m.Items)))
	for i := range m.Items {
		b = appendItem(b, &m.Items[i])
	}
	b = binary.AppendUvarint(b, uint64(len(m.Over)))
	for _, id := range m.Over {
		b = binary.AppendUvarint(b, uint64(id))
	}
	return b
}

// ParseDown reads what AppendDown wrote. Anything else gets fault.Mismatch.
func ParseDown(b []byte) (*Down, error) {
	r := reader{b: b}
	m := new(Down)
	r.version()
	m.Seq = r.u32()
	m.Meanings = make([]Meaning, r.count(minTensor+2))
	for i := range m.Meanings {
		e := &m.Meanings[i]
		e.ID, e.Once, e.Tensor = r.u32(), r.flag(), new(Tensor)
		r.tensor(e.Tensor)
		e.Rows = r.ints()
	}
	m.Items = make([]Item, r.count(1))
	r.items = len(m.Items)
	for i := range m.Items {
		r.item(&m.Items[i])
	}
	m.Over = make([]uint32, r.count(1))
	for i := range m.Over {
		m.Over[i] = r.u32()
	}
	return m, r.end("the leader's message")
}

func appendItem(b []byte, it *Item) []byte {
	b = append(b, byte(it.Kind))
	switch it.Kind {
	case ItemRun:
		b = binary.AppendUvarint(b, uint64(len(it.Runs)))
		for _, s := range it.Runs {
			b = binary.AppendUvarint(b, uint64(s.First))
			b = binary.AppendUvarint(b, uint64(s.Count))
		}
		b = binary.AppendUvarint(b, uint64(it.Part))
		b = binary.AppendUvarint(b, uint64(it.Parts))
		b = appendInts(b, it.Ranks)
	case ItemFail:
		b = binary.AppendUvarint(b, uint64(len(it.Failed)))
		for _, n := range it.Failed {
			b = binary.AppendUvarint(b, uint64(n.Set))
			b = appendText(b, n.Name)
		}
		b = appendFault(b, it.Err)
	case ItemJoined:
		b = binary.AppendUvarint(b, uint64(it.Rank))
	case ItemSet, ItemUnset:
		b = binary.AppendUvarint(b, uint64(it.ID))
		b = appendText(b, it.Name)
		if it.Kind == ItemSet {
			b = appendInts(b, it.Ranks)
		}
	case ItemWhere:
		b = appendInts(b, it.Ranks)
	case ItemAbort:
		b = appendFault(b, it.Err)
	case ItemTune:
		b = binary.AppendUvarint(b, uint64(it.Tuning.Cycle))
		b = binary.AppendUvarint(b, uint64(it.Tuning.Fusion))
		b = append(b, mark(it.Tuning.Cache), it.Tuning.Class)
	}
	return b
}

func (r *reader) item(it *Item) {
	it.Kind = ItemKind(r.byte())
	switch it.Kind {
	case ItemRun:
		it.Runs = r.runs(r.count(2))
		for i := range it.Runs {
			it.Runs[i] = Span32{r.u32(), r.u32()}
		}
		it.Part, it.Parts = int(r.u32()), int(r.u32())
		it.Ranks = r.ints()
	case ItemFail:
		it.Failed = make([]Named, r.count(2))
		for i := range it.Failed {
			it.Failed[i] = Named{r.u32(), r.text(MaxName)}
		}
		it.Err = r.fault()
	case ItemJoined:
		it.Rank = int(r.u32())
	case ItemSet, ItemUnset:
		it.ID, it.Name = r.u32(), r.text(MaxName)
		if it.Kind == ItemSet {
			it.Ranks = r.ints()
		}
	case ItemWhere:
		it.Ranks = r.ints()
	case ItemAbort:
		it.Err = r.fault()
	case ItemTune:
		it.Tuning.Cycle, it.Tuning.Fusion = Span(r.uvarint()), int(r.uvarint())
		it.Tuning.Cache, it.Tuning.Class = r.flag(), r.byte()
		r.bad = r.bad || !it.Tuning.valid()
	case ItemBye:
	default:
		r.bad = true
	}
}

func appendRequest(b []byte, q *Request) []byte {
	b = appendTensor(b, &q.Tensor)
	b = binary.AppendVarint(b, int64(q.Rows))
	b = appendInts(b, q.Splits)
	return appendText(b, q.Site)
}

func (r *reader) request(q *Request) {
	r.tensor(&q.Tensor)
	q.Rows = r.int()
	q.Splits = r.ints()
	q.Site = r.text(MaxSite)
}

func appendTensor(b []byte, t *Tensor) []byte {
	b = binary.AppendUvarint(b, uint64(t.Set))
	b = appendText(b, t.Name)
	b = append(b, byte(t.Kind), byte(t.DType), byte(t.Wire))
	b = appendInts(b, t.Shape)
	b = appendText(b, t.Op)
	b = binary.LittleEndian.AppendUint64(b, t.OpID)
	b = binary.AppendVarint(b, int64(t.Root))
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(t.Pre))
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(t.Post))
	b = binary.AppendVarint(b, int64(t.Priority))
	b = binary.LittleEndian.AppendUint64(b, t.Group)
	b = binary.AppendUvarint(b, uint64(t.GroupSize))
	marks := mark(t.NoIdentity)
	if t.Whole {
		marks |= tensorWhole
	}
	if t.Codec == Plain {
		return append(b, marks)
	}
	b = append(b, marks|tensorCoded, byte(t.Codec))
	return binary.AppendUvarint(b, uint64(t.Keep))
}

// Marks of a tensor.
const (
	tensorNoIdentity = 1 << iota
	tensorWhole
	tensorCoded
)

// The fewest bytes of a tensor and of a request: what a list's length is checked
// against before memory is taken for it.
const (
	minTensor  = 42
	minRequest = minTensor + 3
)

func (r *reader) tensor(t *Tensor) {
	t.Set, t.Name = r.u32(), r.text(MaxName)
	t.Kind, t.DType, t.Wire = Kind(r.byte()), tensor.DType(r.byte()), tensor.DType(r.byte())
	t.Shape = r.ints()
	t.Op, t.OpID = r.text(maxOp), r.u64()
	t.Root = r.int()
	t.Pre, t.Post = math.Float64frombits(r.u64()), math.Float64frombits(r.u64())
	t.Priority = r.int()
	t.Group, t.GroupSize = r.u64(), int(r.u32())
	marks := r.byte()
	t.NoIdentity, t.Whole = marks&tensorNoIdentity != 0, marks&tensorWhole != 0
	if marks&tensorCoded != 0 {
		t.Codec, t.Keep = Codec(r.byte()), int(r.u32())
		r.bad = r.bad || t.Codec == Plain
	}
	r.bad = r.bad || marks > tensorNoIdentity|tensorWhole|tensorCoded
	if !r.bad && !t.valid() {
		r.bad = true
	}
}

func mark(on bool) byte {
	if on {
		return 1
	}
	return 0
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendInts(b []byte, list []int) []byte {
	b = binary.AppendUvarint(b, uint64(len(list)))
	for _, v := range list {
		b = binary.AppendVarint(b, int64(v))
	}
	return b
}

func appendFault(b []byte, e *fault.Error) []byte {
	var buf [fault.MaxWire]byte
	return appendText(b, string(e.AppendWire(buf[:0])))
}

func appendBits(b []byte, set Bits) []byte {
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
