package ps

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/callsite"
	"github.com/tutti-go/tutti/ps/internal/message"
	"github.com/tutti-go/tutti/ps/optimizer"
	"github.com/tutti-go/tutti/tensor"
)

// declared is a tensor or a table, as one client knows it.
type declared struct {
	cl        *Client
	spec      message.Spec
	at        string // where the program has declared it
	id        uint32
	rejectNaN bool
	optimizer optimizer.Optimizer
	pushing   atomic.Int64 // operations in flight that change it

	mu    sync.Mutex // orders the operations, so that Seq numbers reach each server in their order
	parts []clientPart
	// residual is what the compression of dense pushes has left out. The next push adds it. Without the
	// option Residual, it is nil before the first push.
	residual []byte
}

// A clientPart is a part as its client sees it.
type clientPart struct {
	first, count int
	link         *link  // to the primary
	gate         *gate  // nil without replicas
	seq          uint64 // of the client's last push to it
}

// server returns the rank of the primary.
func (p *clientPart) server() int {
	if p.gate != nil {
		routes := &p.gate.d.cl.routes
		routes.RLock()
		defer routes.RUnlock()
	}
	return p.link.rank
}

// submit sends a call about the part, or holds it until it may be sent.
func (p *clientPart) submit(c *call) {
	if p.gate != nil {
		p.gate.submit(c)
		return
	}
	p.link.submit(c)
}

// A Tensor is a dense tensor on the servers. Any number of goroutines may use it. Operations on one
// tensor take effect in the order in which they begin.
type Tensor[T comm.Element] struct{ d *declared }

// A Table is a table of rows on the servers. Any number of goroutines may use it. Operations on one
// table take effect in the order in which they begin.
type Table[T comm.Element] struct{ d *declared }

// Declare declares a dense tensor of n elements, or returns the one that this client has declared
// by that name. All workers that use it declare it with the same arguments; if they differ, the
// error is fault.Mismatch, which names both places. Not all workers need to declare it, but a
// synchronous tensor waits for the pushes of all workers.
func Declare[T comm.Element](ctx context.Context, cl *Client, name string, n int, opts ...TensorOption) (*Tensor[T], error) {
	d, err := cl.declare(ctx, message.Spec{Name: name, DType: tensor.TypeOf[T](), Size: n}, opts)
	if err != nil {
		return nil, err
	}
	return &Tensor[T]{d}, nil
}

// DeclareTable declares a table of rows of width elements; see Declare.
func DeclareTable[T comm.Element](ctx context.Context, cl *Client, name string, width int, opts ...TensorOption) (*Table[T], error) {
	d, err := cl.declare(ctx, message.Spec{Name: name, Table: true, DType: tensor.TypeOf[T](), Size: width}, opts)
	if err != nil {
		return nil, err
	}
	return &Table[T]{d}, nil
}

// declare declares a tensor or a table at the lead, and creates its parts on their servers.
func (cl *Client) declare(ctx context.Context, spec message.Spec, opts []TensorOption) (*declared, error) {
	op := "declare " + spec.Name
	at := callsite.Here().String()
	rank := cl.n.worldRank(cl.n.c.Rank())
	p := properties{spec: spec, op: comm.Mean}
	for _, f := range opts {
		f(&p)
	}
	if err := p.finish(); err != "" {
		return nil, fault.New(fault.Misuse, op, rank, "%s", err)
	}
	if err := cl.lockDeclarations(ctx, op); err != nil {
		return nil, err
	}
	defer func() { <-cl.declaring }()
	cl.mu.Lock()
	d := cl.tensors[spec.Name]
	cl.mu.Unlock()
	if d != nil {
		if d.spec != p.spec || d.rejectNaN != p.rejectNaN {
			return nil, fault.New(fault.Misuse, op, rank, "declaration at %s: got %v, want %v as at %s", at, describe(&p.spec), describe(&d.spec), d.at)
		}
		return d, nil
	}
	for {
		epoch := cl.n.present()
		d, err := cl.declareOnce(ctx, op, epoch, &p, at)
		if d != nil || err != nil && (!isLoss(err) || cl.n.present() == epoch) {
			return d, err
		}
	}
}

// declareOnce declares a tensor, and creates its parts. It returns nil, or the error of a loss, if the
// epoch ends meanwhile, because the parts may be on other servers then.
func (cl *Client) declareOnce(ctx context.Context, op string, epoch *epoch, p *properties, at string) (*declared, error) {
	lead := cl.leader()
	body := (&message.Declaration{Spec: p.spec, At: at}).Append(nil)
	answer, err := cl.roundTrip(ctx, op, lead, message.Request{Kind: message.Declare}, body)
	if err != nil {
		return nil, err
	}
	placement, ok := message.ParsePartList(answer, cl.n.c.Size())
	if !ok {
		return nil, cl.n.withOp(op, lead.protocolError("a placement that cannot be read"))
	}
	d := &declared{cl: cl, spec: p.spec, at: at, id: placement.Tensor, rejectNaN: p.rejectNaN, optimizer: p.optimizer, residual: p.residual}
	if err := cl.create(ctx, op, d, &placement); err != nil {
		return nil, err
	}
	cl.routes.RLock()
	defer cl.routes.RUnlock()
	if cl.paused || cl.n.present() != epoch {
		return nil, nil
	}
	cl.mu.Lock()
	cl.tensors[p.spec.Name] = d
	cl.mu.Unlock()
	return d, nil
}

// lockDeclarations waits until no other declaration is in progress, or ctx ends.
func (cl *Client) lockDeclarations(ctx context.Context, op string) error {
	select {
	case cl.declaring <- struct{}{}:
		return nil
	default:
	}
	ctx, cancel := cl.n.waitContext(ctx)
	defer cancel()
	select {
	case cl.declaring <- struct{}{}:
		return nil
	case <-ctx.Done():
		return cl.n.waitError(op, ctx)
	}
}

// create makes the parts of a tensor on all servers that hold one, where they do not exist yet. With
// replicas it asks all servers, because each of them keeps the list of tensors.
func (cl *Client) create(ctx context.Context, op string, d *declared, p *message.PartList) error {
	body := message.AppendCreate(nil, &d.spec, p)
	asked := make(map[*link]bool)
	ask := func(l *link) error {
		if asked[l] {
			return nil
		}
		asked[l] = true
		_, err := cl.roundTrip(ctx, op, l, message.Request{Kind: message.Create, Tensor: p.Tensor}, body)
		return err
	}
	d.parts = make([]clientPart, len(p.Parts))
	for i, part := range p.Parts {
		l := cl.links[part.Servers[0]]
		if l == nil {
			return cl.n.withOp(op, cl.leader().protocolError("a placement on rank %d, which does not serve", part.Servers[0]))
		}
		d.parts[i] = clientPart{first: part.First, count: part.Count, link: l}
		if cl.n.replicated() {
			d.parts[i].gate = &gate{d: d, p: &d.parts[i]}
		} else if err := ask(l); err != nil {
			return err
		}
	}
	if cl.n.replicated() {
		for _, r := range cl.n.servers() {
			if err := ask(cl.links[r]); err != nil {
				return err
			}
		}
	}
	return nil
}

// finish checks the properties and completes the Spec. It returns what is wrong, or "".
func (p *properties) finish() string {
	s := &p.spec
	float, wide := isFloat(s.DType), s.DType == tensor.Float32 || s.DType == tensor.Float64
	if p.op.ID() != comm.Mean.ID() && p.op.ID() != comm.Sum.ID() {
		return fmt.Sprintf("Reduce: got %s, want comm.Sum or comm.Mean", p.op.Name())
	}
	if _, err := p.op.Kernel(s.DType); err != nil {
		return fmt.Sprintf("Reduce: got %s for elements of %v, want comm.Sum for integers; bool and loc cannot be pushed", p.op.Name(), s.DType)
	}
	s.Mean = p.op.ID() == comm.Mean.ID()
	s.Initial = p.initial.String()
	if p.optimizer != nil {
		if err := optimizer.Check(p.optimizer, s.DType); err != nil {
			return fault.Cause(err).Error()
		}
		s.Optimizer = p.optimizer.String()
	}
	switch {
	case s.Name == "" || len(s.Name) > message.MaxName:
		return fmt.Sprintf("name: got %d bytes, want 1 to %d", len(s.Name), message.MaxName)
	case s.Size < 1 && s.Table:
		return fmt.Sprintf("width of a row: got %d, want at least 1", s.Size)
	case s.Size < 1:
		return fmt.Sprintf("elements: got %d, want at least 1", s.Size)
	case sizeError(s) != "":
		return sizeError(s)
	case s.Priority < -maxPriority || s.Priority > maxPriority:
		return fmt.Sprintf("Priority: got %d, want %d to %d", s.Priority, -maxPriority, maxPriority)
	case s.Staleness < 0:
		return fmt.Sprintf("Bounded: got %d, want 0 or more", s.Staleness)
	case s.Rows < 0 || s.Rows > 0 && !s.Table:
		return fmt.Sprintf("Rows: got %d, want a positive number, for a table only", s.Rows)
	case s.Wire != tensor.Invalid && (!wide || s.Wire != tensor.F16 && s.Wire != tensor.BF16):
		return fmt.Sprintf("Compress: got elements of %v as %v, want float32 or float64 as float16 or bfloat16", s.DType, s.Wire)
	case s.TopK != 0 && (!wide || s.Table || s.Wire != tensor.Invalid || !(s.TopK > 0 && s.TopK <= 1)):
		return fmt.Sprintf("TopK: got a share of %v of %v, want 0 to 1 of a dense tensor of float32 or float64 without Compress", s.TopK, s.DType)
	case p.residual != nil && (s.Table || p.residualType != s.DType || len(p.residual) != s.Size*s.DType.Size() || s.Wire == tensor.Invalid && s.TopK == 0):
		return fmt.Sprintf("Residual: got %d bytes of %v, want %d of %v, for a dense tensor with Compress or TopK", len(p.residual), p.residualType, s.Size*s.DType.Size(), s.DType)
	case p.rejectNaN && !float:
		return fmt.Sprintf("RejectNaN: got elements of %v, want floating-point elements", s.DType)
	}
	return ""
}

const (
	maxElements = 1 << 48
	maxWidth    = 1 << 20
	maxPriority = 1 << 30
)

// sizeError returns what is wrong with the size of a tensor or of a row, or "".
func sizeError(s *message.Spec) string {
	if s.Size > maxElements || s.Table && s.Size > maxWidth {
		return fmt.Sprintf("size: got %d elements, want at most %d, and %d in a row", s.Size, maxElements, maxWidth)
	}
	return ""
}

func isFloat(d tensor.DType) bool {
	return d == tensor.Float32 || d == tensor.Float64 || d == tensor.F16 || d == tensor.BF16
}

// describe returns the text of a declaration in errors: "float32 [10] synchronous mean".
func describe(s *message.Spec) string {
	text := fmt.Sprintf("%v [%d]", s.DType, s.Size)
	if s.Table {
		text = fmt.Sprintf("table of %v rows [%d]", s.DType, s.Size)
		if s.Rows > 0 {
			text += fmt.Sprintf(" of %d", s.Rows)
		}
	}
	text += " " + modeName(s.Mode, s.Staleness)
	if s.Mean {
		text += " mean"
	} else {
		text += " sum"
	}
	if s.Priority != 0 {
		text += fmt.Sprintf(" priority %d", s.Priority)
	}
	if s.Optimizer != "" {
		text += " " + s.Optimizer
	}
	if s.Wire != tensor.Invalid {
		text += fmt.Sprintf(" as %v", s.Wire)
	}
	if s.TopK != 0 {
		text += fmt.Sprintf(" top %v", s.TopK)
	}
	return text + " " + s.Initial
}
