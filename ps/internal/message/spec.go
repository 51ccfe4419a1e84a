package message

import (
	"encoding/binary"
	"math"

	"github.com/tutti-go/tutti/internal/wire"
	"github.com/tutti-go/tutti/ps/internal/part"
	"github.com/tutti-go/tutti/tensor"
)

// Bounds of a Spec's texts in bytes.
const (
	MaxName = 512
	maxText = 1024
)

// A Spec is a declaration of a tensor. Two declarations of a name agree if their Specs are equal.
type Spec struct {
	Name      string
	Table     bool
	DType     tensor.DType
	Size      int   // elements of a dense tensor, or of a row
	Rows      int64 // the bound of a table's indices; 0: none
	Mode      part.Mode
	Staleness int
	Mean      bool
	Priority  int
	Wire      tensor.DType // of values in messages, if they are compressed; else Invalid
	TopK      float64      // the share of the elements that a push sends; 0: all
	Initial   string       // the text of the initializer
	Optimizer string       // the text of the optimizer; "": none
}

// Append appends the Spec to b.
func (s *Spec) Append(b []byte) []byte {
	b = appendText(b, s.Name)
	b = append(b, flag(s.Table), byte(s.DType))
	b = binary.AppendVarint(b, int64(s.Size))
	b = binary.AppendVarint(b, s.Rows)
	b = append(b, byte(s.Mode))
	b = binary.AppendVarint(b, int64(s.Staleness))
	b = append(b, flag(s.Mean))
	b = binary.AppendVarint(b, int64(s.Priority))
	b = append(b, byte(s.Wire))
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(s.TopK))
	b = appendText(b, s.Initial)
	return appendText(b, s.Optimizer)
}

// readSpec reads what Append wrote.
func readSpec(r *wire.Reader) (s Spec) {
	s.Name = readText(r, MaxName)
	s.Table, s.DType = r.Bool(), tensor.DType(r.Uint8())
	s.Size, s.Rows = r.Varint(), int64(r.Varint())
	s.Mode, s.Staleness = part.Mode(r.Uint8()), r.Varint()
	s.Mean, s.Priority = r.Bool(), r.Varint()
	s.Wire, s.TopK = tensor.DType(r.Uint8()), r.Float64()
	s.Initial, s.Optimizer = readText(r, maxText), readText(r, maxText)
	if s.Name == "" || !s.DType.Valid() || s.Size < 1 || s.Size > math.MaxInt/16 || s.Rows < 0 || s.Mode > part.Bounded || s.Staleness < 0 || !s.codec() {
		r.Fail()
	}
	return s
}

// codec reports whether the fields about compression are valid. Only floats can be compressed, and
// rows only to 16 bits.
func (s *Spec) codec() bool {
	float := s.DType == tensor.Float32 || s.DType == tensor.Float64
	switch {
	case s.Wire == tensor.Invalid && s.TopK == 0:
		return true
	case s.TopK == 0:
		return float && (s.Wire == tensor.F16 || s.Wire == tensor.BF16)
	}
	return float && s.Wire == tensor.Invalid && !s.Table && s.TopK > 0 && s.TopK <= 1
}

// A Declaration is the body of a Declare.
type Declaration struct {
	Spec Spec
	At   string // the place in the program
	// Cut, if it is not empty, has the parts of a snapshot. The lead keeps them, and
	// chooses their servers itself.
	Cut []PartSpec
}

// Append appends the Declaration to b.
func (d *Declaration) Append(b []byte) []byte {
	b = appendText(d.Spec.Append(b), d.At[:min(len(d.At), maxText)])
	return appendParts(b, d.Cut)
}

// ParseDeclaration parses what Append wrote. It returns false if b is no Declaration.
func ParseDeclaration(b []byte) (d Declaration, ok bool) {
	r := wire.NewReader(b)
	d.Spec = readSpec(&r)
	d.At = readText(&r, maxText)
	d.Cut = readParts(&r, math.MaxInt)
	return d, r.Done()
}

// A PartList says which servers hold the parts of a tensor. It is the answer to a Declare, and,
// after a Spec, the body of a Create.
type PartList struct {
	Tensor uint32
	Parts  []PartSpec
}

// A PartSpec is a range of a dense tensor's elements, or a share of a table's rows.
type PartSpec struct {
	First, Count int
	Servers      []int // ranks: the primary, and then the replicas
}

// Append appends the PartList to b.
func (p *PartList) Append(b []byte) []byte {
	return appendParts(binary.LittleEndian.AppendUint32(b, p.Tensor), p.Parts)
}

func appendParts(b []byte, parts []PartSpec) []byte {
	b = binary.AppendUvarint(b, uint64(len(parts)))
	for _, one := range parts {
		b = binary.AppendVarint(b, int64(one.First))
		b = binary.AppendVarint(b, int64(one.Count))
		b = binary.AppendUvarint(b, uint64(len(one.Servers)))
		for _, s := range one.Servers {
			b = binary.AppendUvarint(b, uint64(s))
		}
	}
	return b
}

// readPartList reads what Append wrote, for a job of the given number of ranks.
func readPartList(r *wire.Reader, ranks int) (p PartList) {
	p.Tensor = r.Uint32()
	p.Parts = readParts(r, ranks)
	return p
}

// readParts reads what appendParts wrote.
func readParts(r *wire.Reader, ranks int) []PartSpec {
	parts := make([]PartSpec, r.Count(3))
	for i := range parts {
		one := &parts[i]
		one.First, one.Count = r.Varint(), r.Varint()
		one.Servers = make([]int, r.Count(1))
		for k := range one.Servers {
			one.Servers[k] = int(r.Uvarint32())
			if one.Servers[k] >= ranks {
				r.Fail()
			}
		}
		if one.First < 0 || one.Count < 0 || len(one.Servers) == 0 {
			r.Fail()
		}
	}
	return parts
}

// ParsePartList parses a PartList. It returns false if b is none.
func ParsePartList(b []byte, ranks int) (p PartList, ok bool) {
	r := wire.NewReader(b)
	p = readPartList(&r, ranks)
	return p, r.Done()
}

// AppendCreate appends the body of a Create to b.
func AppendCreate(b []byte, s *Spec, p *PartList) []byte { return p.Append(s.Append(b)) }

// ParseCreate parses the body of a Create. It returns false if b is none.
func ParseCreate(b []byte, ranks int) (s Spec, p PartList, ok bool) {
	r := wire.NewReader(b)
	s = readSpec(&r)
	p = readPartList(&r, ranks)
	return s, p, r.Done()
}

func flag(v bool) byte {
	if v {
		return 1
	}
	return 0
}

func appendText(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint16(b, uint16(len(s))), s...)
}

func readText(r *wire.Reader, limit int) string { return r.String(int(r.Uint16()), limit) }
