package coordinator

import (
	"context"
	"slices"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator/negotiate"
	"github.com/tutti-go/tutti/fault"
)

// A ProcessSet is a subset of a coordinator's ranks. The option In submits a tensor to a set. A
// ProcessSet is immutable.
type ProcessSet struct {
	id    uint32
	name  string
	ranks []int
}

func newProcessSet(id uint32, name string, ranks []int) *ProcessSet {
	return &ProcessSet{id, name, ranks}
}

// ranks returns the numbers 0 to n-1.
func ranks(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// AddProcessSet makes a process set while the coordinator is running. All ranks of the coordinator,
// members or not, must call it with the same name and ranks. It returns when all ranks have called
// it. In operations on the set, roots and parts are indexes into members.
func (co *Coordinator) AddProcessSet(ctx context.Context, name string, members ...int) (*ProcessSet, error) {
	h, err := co.changeSets(ctx, negotiate.AddSet, name, members)
	if err != nil {
		return nil, err
	}
	return h.set, nil
}

// RemoveProcessSet removes a process set. All ranks of the coordinator call it. Tensors of the set
// that some of its members have not submitted fail with fault.Misuse.
func (co *Coordinator) RemoveProcessSet(ctx context.Context, s *ProcessSet) error {
	_, err := co.changeSets(ctx, negotiate.RemoveSet, s.name, []int{int(s.id)})
	return err
}

// changeSets submits a request to add or remove a process set, and waits until all ranks have
// submitted the request.
func (co *Coordinator) changeSets(ctx context.Context, kind negotiate.Operation, name string, list []int) (*Handle, error) {
	q := negotiate.TensorRequest{Site: co.site()}
	q.Set, q.Operation, q.Name, q.Shape, q.Root, q.Pre, q.Post = negotiate.SetRegistry, kind, name, slices.Clone(list), -1, 1, 1
	h := &Handle{co: co, state: inFlight, requests: [1]negotiate.TensorRequest{q}}
	co.submitTogether([]*Handle{h})
	return h, h.Wait(ctx)
}

// changeSet creates or closes the communicator of a set. All ranks call it at the same point in the
// order of jobs, so all ranks take part in the collective Split.
func (x *executor) changeSet(ctx context.Context, s *negotiate.SetChanged) error {
	if s.Ranks == nil {
		if m := x.sets[s.ID]; m != nil && m.c != nil {
			m.c.Close(ctx)
		}
		delete(x.sets, s.ID)
		x.co.complete(s.Submission, nil)
		return nil
	}
	color, key := comm.Undefined, slices.Index(s.Ranks, x.co.rank)
	if key >= 0 {
		color = 0
	}
	c, err := x.co.data.Split(ctx, color, key)
	if err != nil {
		return err
	}
	x.sets[s.ID] = newSetComm(c, s.Ranks)
	x.setClass(x.class)
	if !x.registerComm(c) {
		return fault.New(fault.Closed, "addset "+s.Name, x.co.rank, "the coordinator has ended")
	}
	if h := x.co.lookup(s.Submission); h != nil {
		h.set = newProcessSet(s.ID, s.Name, s.Ranks)
	}
	x.co.complete(s.Submission, nil)
	return nil
}

// registerComm registers a communicator for closeSets. If the executor has been abandoned,
// registerComm closes the communicator and returns false.
func (x *executor) registerComm(c *comm.Comm) bool {
	if c == nil {
		return true
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.comms = append(x.comms, c)
	if x.abandoned {
		c.Close(context.Background())
	}
	return !x.abandoned
}

// closeSets closes the communicators of all process sets. Any goroutine may call it, more than
// once.
func (x *executor) closeSets() {
	x.mu.Lock()
	cs := x.comms
	x.comms = nil
	x.mu.Unlock()
	for _, c := range cs {
		c.Close(context.Background())
	}
}

// Join says that this rank has no more data. Until all ranks have joined, this rank takes part in
// the operations of the other ranks without contributing:
//
//   - To a reduction it gives the identity. A mean is divided by the number of ranks that
//     contribute.
//   - To a gather it gives no rows.
//   - A broadcast from this rank, a reduction by an operator of the program (which has no
//     identity) and a change of process sets fail with fault.Misuse on the ranks that submit them.
//
// Submissions that this rank made before Join are executed normally. The rank must not submit
// anything until Join returns.
//
// Join returns the job's number of the rank that joined last. All ranks get the same result.
func (co *Coordinator) Join(ctx context.Context) (last int, err error) {
	h := &Handle{co: co, state: inFlight, call: "join"}
	co.mu.Lock()
	if co.closed {
		defer co.mu.Unlock()
		return 0, co.closedError("join")
	}
	submission := co.handles.add(h)
	co.mu.Unlock()
	co.stepInline(negotiate.Join{Submission: submission})
	if err := h.Wait(ctx); err != nil {
		return 0, err
	}
	return h.last, nil
}
