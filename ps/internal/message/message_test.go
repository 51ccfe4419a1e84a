package message

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/tutti-go/tutti/ps/internal/part"
	"github.com/tutti-go/tutti/tensor"
)

var request = Request{Kind: Replicate, DType: tensor.Float32, Entry: 2, Origin: 3, ID: 1 << 40, Tensor: 5, Part: 6, Seq: 7, Rows: 8, Size: 3}

var reply = ReplyHead{Kind: Refused, DType: tensor.BF16, ID: 2, Version: 3, Size: 3}

var spec = Spec{Name: "w", Table: true, DType: tensor.Float64, Size: 16, Rows: 1 << 40, Mode: part.Bounded, Staleness: 4, Mean: true, Priority: -5,
	Wire: tensor.F16, Initial: "uniform", Optimizer: "adam"}

var parts = PartList{Tensor: 9, Parts: []PartSpec{{First: 0, Count: 10, Servers: []int{2, 0}}, {First: 10, Count: 5, Servers: []int{1}}}}

var load = LoadRequest{Dir: "/snapshots/snapshot-00000042", Tensors: Registry{{spec, parts}, {spec, parts}}}

var head = PartHead{Name: "w", Part: 3, State: part.State{Index: 4, Version: 2, Clients: []part.ClientState{{ID: 7, Seq: 3, Clock: 2}}}}

func TestMessagesHaveTheSizesOfTheirHeads(t *testing.T) {
	if got := len(request.Append(nil)); got != RequestSize {
		t.Errorf("request: got %d bytes, want %d", got, RequestSize)
	}
	if got := len(reply.Append(nil)); got != ReplySize {
		t.Errorf("reply: got %d bytes, want %d", got, ReplySize)
	}
}

func TestParsedMessagesEqualTheOriginals(t *testing.T) {
	q, body, ok := ParseRequest(append(request.Append(nil), "abc"...))
	if !ok || q != request || string(body) != "abc" {
		t.Errorf("request: got %+v, %q, %v, want %+v", q, body, ok, request)
	}
	large := request
	large.Size = Inline + 1
	if q, body, ok = ParseRequest(large.Append(nil)); !ok || q != large || body != nil {
		t.Errorf("request with a body of its own: got %+v, %q, %v, want %+v", q, body, ok, large)
	}
	p, body, ok := ParseReply(append(reply.Append(nil), "abc"...))
	if !ok || p != reply || string(body) != "abc" {
		t.Errorf("reply: got %+v, %q, %v, want %+v", p, body, ok, reply)
	}
	d := Declaration{spec, "main.go:12", parts.Parts}
	if got, ok := ParseDeclaration(d.Append(nil)); !ok || !reflect.DeepEqual(got, d) {
		t.Errorf("declaration: got %+v, %v, want %+v", got, ok, d)
	}
	if got, ok := ParseRegistry(load.Tensors.Append(nil), 3); !ok || !reflect.DeepEqual(got, load.Tensors) {
		t.Errorf("registry: got %+v, %v, want %+v", got, ok, load.Tensors)
	}
	if got, ok := ParseLoad(load.Append(nil), 3); !ok || !reflect.DeepEqual(got, load) {
		t.Errorf("load: got %+v, %v, want %+v", got, ok, load)
	}
	if got, ok := ParsePartHead(head.Append(nil)); !ok || !reflect.DeepEqual(got, head) {
		t.Errorf("part: got %+v, %v, want %+v", got, ok, head)
	}
	s, list, ok := ParseCreate(AppendCreate(nil, &spec, &parts), 3)
	if !ok || s != spec || !reflect.DeepEqual(list, parts) {
		t.Errorf("creation: got %+v, %+v, %v, want %+v, %+v", s, list, ok, spec, parts)
	}
}

// A message that is cut, or has a byte more, is refused, and so are fields out of bounds.
func TestWrongMessagesAreRefused(t *testing.T) {
	whole := map[string][]byte{
		"request":     append(request.Append(nil), "abc"...),
		"reply":       append(reply.Append(nil), "abc"...),
		"declaration": (&Declaration{spec, "main.go:12", parts.Parts}).Append(nil),
		"parts":       parts.Append(nil),
		"creation":    AppendCreate(nil, &spec, &parts),
		"registry":    load.Tensors.Append(nil),
		"load":        load.Append(nil),
		"part":        head.Append(nil),
	}
	parse := map[string]func(b []byte) bool{
		"request":     func(b []byte) bool { _, _, ok := ParseRequest(b); return ok },
		"reply":       func(b []byte) bool { _, _, ok := ParseReply(b); return ok },
		"declaration": func(b []byte) bool { _, ok := ParseDeclaration(b); return ok },
		"parts":       func(b []byte) bool { _, ok := ParsePartList(b, 3); return ok },
		"creation":    func(b []byte) bool { _, _, ok := ParseCreate(b, 3); return ok },
		"registry":    func(b []byte) bool { _, ok := ParseRegistry(b, 3); return ok },
		"load":        func(b []byte) bool { _, ok := ParseLoad(b, 3); return ok },
		"part":        func(b []byte) bool { _, ok := ParsePartHead(b); return ok },
	}
	for name, b := range whole {
		if !parse[name](b) {
			t.Errorf("%s: got a refusal, want none", name)
		}
		for n := range b {
			if parse[name](b[:n]) {
				t.Errorf("%s: %d of %d bytes: got no refusal", name, n, len(b))
			}
		}
		if parse[name](append(bytes.Clone(b), 0)) {
			t.Errorf("%s with a byte more: got no refusal", name)
		}
	}
	if _, ok := ParsePartList(parts.Append(nil), 2); ok {
		t.Error("a part on rank 2 of 2: got no refusal")
	}
	for name, change := range map[string]func(q *Request){
		"kind 0":     func(q *Request) { q.Kind = 0 },
		"a new kind": func(q *Request) { q.Kind = last },
		"large":      func(q *Request) { q.Size = MaxBody + 1 },
		"rows":       func(q *Request) { q.Rows, q.Size = 1<<31, Inline+1 },
	} {
		q := request
		change(&q)
		if _, _, ok := ParseRequest(q.Append(nil)); ok {
			t.Errorf("request, %s: got no refusal", name)
		}
	}
	for name, change := range map[string]func(s *Spec){
		"no name":       func(s *Spec) { s.Name = "" },
		"element type":  func(s *Spec) { s.DType = 99 },
		"no elements":   func(s *Spec) { s.Size = 0 },
		"mode":          func(s *Spec) { s.Mode = part.Bounded + 1 },
		"staleness":     func(s *Spec) { s.Staleness = -1 },
		"negative rows": func(s *Spec) { s.Rows = -1 },
		"compression":   func(s *Spec) { s.Wire = tensor.Float32 },
		"top-k of rows": func(s *Spec) { s.Wire, s.TopK = tensor.Invalid, 0.5 },
		"top-k":         func(s *Spec) { s.Wire, s.Table, s.TopK = tensor.Invalid, false, 1.5 },
		"both":          func(s *Spec) { s.Table, s.TopK = false, 0.5 },
	} {
		d := Declaration{Spec: spec}
		change(&d.Spec)
		if _, ok := ParseDeclaration(d.Append(nil)); ok {
			t.Errorf("declaration, %s: got no refusal", name)
		}
	}
}

// Whatever arrives, a parser neither panics nor accepts a message that it would not write.
func FuzzParse(f *testing.F) {
	f.Add(append(request.Append(nil), "abc"...))
	f.Add(append(reply.Append(nil), "abc"...))
	f.Add((&Declaration{spec, "main.go:12", parts.Parts}).Append(nil))
	f.Add(load.Append(nil))
	f.Add(head.Append(nil))
	f.Add(AppendCreate(nil, &spec, &parts))
	f.Fuzz(func(t *testing.T, b []byte) {
		if q, body, ok := ParseRequest(b); ok && !bytes.Equal(append(q.Append(nil), body...), b) {
			t.Errorf("request: got %+v of %x", q, b)
		}
		if p, body, ok := ParseReply(b); ok && !bytes.Equal(append(p.Append(nil), body...), b) {
			t.Errorf("reply: got %+v of %x", p, b)
		}
		if d, ok := ParseDeclaration(b); ok {
			if again, ok := ParseDeclaration(d.Append(nil)); !ok || !reflect.DeepEqual(again, d) {
				t.Errorf("declaration: got %+v, want %+v", again, d)
			}
		}
		if l, ok := ParseLoad(b, 8); ok {
			if again, ok := ParseLoad(l.Append(nil), 8); !ok || !reflect.DeepEqual(again, l) {
				t.Errorf("load: got %+v, want %+v", again, l)
			}
		}
		if h, ok := ParsePartHead(b); ok {
			if again, ok := ParsePartHead(h.Append(nil)); !ok || !reflect.DeepEqual(again, h) {
				t.Errorf("part: got %+v, want %+v", again, h)
			}
		}
		if s, list, ok := ParseCreate(b, 8); ok {
			s2, list2, ok := ParseCreate(AppendCreate(nil, &s, &list), 8)
			if !ok || s2 != s || !reflect.DeepEqual(list2, list) {
				t.Errorf("creation: got %+v, %+v, want %+v, %+v", s2, list2, s, list)
			}
		}
	})
}
