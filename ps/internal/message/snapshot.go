package message

import (
	"encoding/binary"

	"github.com/tutti-go/tutti/internal/wire"
	"github.com/tutti-go/tutti/ps/internal/part"
)

// A Registry has the declared tensors. It is the lead's answer to an OpenSnapshot, and stands in the
// manifest of a snapshot.
type Registry []Registered

// A Registered is a declared tensor.
type Registered struct {
	Spec  Spec
	Parts PartList
}

// minRegistered is less than the size of the shortest Registered.
const minRegistered = 16

// Append appends the Registry to b.
func (g Registry) Append(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(g)))
	for i := range g {
		b = AppendCreate(b, &g[i].Spec, &g[i].Parts)
	}
	return b
}

// readRegistry reads what Append wrote, for a job of the given number of ranks.
func readRegistry(r *wire.Reader, ranks int) Registry {
	g := make(Registry, r.Count(minRegistered))
	for i := range g {
		g[i] = Registered{readSpec(r), readPartList(r, ranks)}
	}
	return g
}

// ParseRegistry parses a Registry. It returns false if b is none.
func ParseRegistry(b []byte, ranks int) (Registry, bool) {
	r := wire.NewReader(b)
	g := readRegistry(&r, ranks)
	return g, r.Done()
}

// A LoadRequest is the body of a Load.
type LoadRequest struct {
	Dir     string   // of the snapshot
	Tensors Registry // with the servers on which the parts are to be
}

// MaxDir bounds the name of a directory in bytes.
const MaxDir = 32 << 10

// Append appends the LoadRequest to b.
func (l *LoadRequest) Append(b []byte) []byte { return l.Tensors.Append(appendText(b, l.Dir)) }

// ParseLoad parses a LoadRequest. It returns false if b is none.
func ParseLoad(b []byte, ranks int) (l LoadRequest, ok bool) {
	r := wire.NewReader(b)
	l.Dir = readText(&r, MaxDir)
	l.Tensors = readRegistry(&r, ranks)
	return l, r.Done()
}

// A PartHead stands before the values of a part in a snapshot.
type PartHead struct {
	Name  string // of the tensor
	Part  uint32
	State part.State
}

// Append appends the PartHead to b.
func (h *PartHead) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(appendText(b, h.Name), h.Part)
	return h.State.Append(b)
}

// ParsePartHead parses a PartHead. It returns false if b is none.
func ParsePartHead(b []byte) (h PartHead, ok bool) {
	r := wire.NewReader(b)
	h.Name, h.Part = readText(&r, MaxName), r.Uint32()
	h.State, ok = part.ParseState(r.Bytes(r.Len()))
	return h, ok && r.Done()
}
