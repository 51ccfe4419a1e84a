package ps

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/callsite"
	"github.com/tutti-go/tutti/ps/internal/message"
	"github.com/tutti-go/tutti/ps/internal/snapshot"
)

// A Snapshot describes a snapshot that Client.Snapshot has made.
type Snapshot struct {
	Dir      string // its own directory, within the one that was given
	Bytes    int64  // of all files but the manifest
	Versions []TensorVersion
}

// A TensorVersion is the version of a tensor or table in a snapshot, in the order of the
// declarations. A version of a synchronous tensor has one push of each worker. In other modes each
// push makes a version of the parts that it changes, and Version is the highest one.
type TensorVersion struct {
	Name    string
	Version uint64
}

// A Restored describes what Client.Restore has done.
type Restored struct {
	Dir     string // of the snapshot
	Time    time.Time
	Tensors []RestoredTensor
	Skipped []string // why newer snapshots in the same directory were not restored
}

// A RestoredTensor is a tensor or table with its versions before and after Restore. If Before is
// higher, the versions between the two are lost. Before is 0 if the tensor was not declared.
type RestoredTensor struct {
	Name          string
	Before, After uint64
}

// Snapshot saves all tensors and tables, with the state of their optimizers, in a new directory
// within dir. All servers and this worker must share dir, for example on a network file system.
//
// Other workers push meanwhile. Of a synchronous tensor, the snapshot has the version of this
// worker's last push. So it waits for the other workers' pushes of that version, as a pull does. Of
// other tensors it has all pushes of this worker, and those of others that have arrived. It does not
// have what Compress and TopK keep on the workers for the next push, nor a tensor that a server cannot
// make, so that each declaration of it has failed.
//
// A snapshot counts only when it is complete. After an error, dir has the same snapshots as before. The
// whole write must end in time: give ctx a deadline if the communicator's Timeout is too short. Older
// snapshots stay, unless the option KeepNewest is given.
func (cl *Client) Snapshot(ctx context.Context, dir string, opts ...SnapshotOption) (*Snapshot, error) {
	op := "snapshot " + dir
	o := snapshotOptions{keep: math.MaxInt}
	for _, f := range opts {
		f(&o)
	}
	if o.keep < 1 {
		return nil, cl.n.errorf(fault.Misuse, op, "KeepNewest: got %d snapshots, want at least 1", o.keep)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, cl.n.diskError(op, err)
	}
	s, err := snapshot.Begin(dir)
	if err != nil {
		return nil, cl.n.diskError(op, err)
	}
	token := rand.Uint64() | 1
	complete, err := cl.saveAll(ctx, op, s, token)
	if err != nil {
		cl.drop(ctx, op, token)
		s.Abandon()
		return nil, cl.n.diskError(op, err)
	}
	if o.keep < math.MaxInt {
		if err := snapshot.Prune(dir, o.keep); err != nil {
			cl.n.opts.log.Warn("tutti: ps: " + op + ": an older snapshot is not removed: " + err.Error())
		}
	}
	return complete, nil
}

// A SnapshotOption changes what Client.Snapshot does.
type SnapshotOption func(*snapshotOptions)

type snapshotOptions struct{ keep int }

// KeepNewest makes Snapshot remove older snapshots in the same directory, once the new one is complete:
// all but the n newest complete ones. Those before them are removed even if they are not complete. The
// default is to keep all. A snapshot that cannot be removed is a warning in the log.
func KeepNewest(n int) SnapshotOption { return func(o *snapshotOptions) { o.keep = n } }

func (cl *Client) saveAll(ctx context.Context, op string, s *snapshot.Snapshot, token uint64) (*Snapshot, error) {
	answers, err := cl.askServers(ctx, op, message.Request{Kind: message.OpenSnapshot, Seq: token}, []byte(s.Dir))
	if err != nil {
		return nil, err
	}
	registry, ok := message.ParseRegistry(answers[cl.leader()], cl.n.c.Size())
	if !ok {
		return nil, cl.leader().protocolError("a list of tensors that cannot be read")
	}
	all, registry, err := cl.tensorsToSave(ctx, op, registry)
	if err != nil {
		return nil, err
	}
	if len(registry) == 0 {
		return nil, cl.n.errorf(fault.Misuse, op, "tensors: got none, want at least one; declare tensors before")
	}
	parts, err := cl.saveParts(ctx, op, all, token)
	if err != nil {
		return nil, err
	}
	if answers, err = cl.askServers(ctx, op, message.Request{Kind: message.CloseSnapshot, Seq: token}, nil); err != nil {
		return nil, err
	}
	complete := &Snapshot{Dir: s.Dir}
	versions := make(map[uint32]uint64)
	for l, answer := range answers {
		var f savedFile
		if err := json.Unmarshal(answer, &f); err != nil {
			return nil, l.protocolError("an answer about its file that cannot be read: %w", err)
		}
		s.Files = append(s.Files, f.File)
		complete.Bytes += f.File.Bytes
		parts -= len(f.Parts)
		for _, p := range f.Parts {
			versions[p.Tensor] = max(versions[p.Tensor], p.Version)
		}
	}
	if parts != 0 {
		return nil, cl.n.errorf(fault.Mismatch, op, "parts: %d are missing in the files of the servers", parts)
	}
	for i := range registry {
		complete.Versions = append(complete.Versions, TensorVersion{registry[i].Spec.Name, versions[registry[i].Parts.Tensor]})
	}
	slices.SortFunc(s.Files, func(a, b snapshot.File) int { return cmp.Compare(a.Name, b.Name) })
	s.Registry = registry.Append(nil)
	return complete, s.Commit()
}

// tensorsToSave returns the tensors of a registry that exist on all of their servers, and the registry
// without the others. A tensor whose declaration has failed may have parts on some servers, but no
// worker can use it.
func (cl *Client) tensorsToSave(ctx context.Context, op string, g message.Registry) (all []*declared, exist message.Registry, err error) {
	for i := range g {
		cl.mu.Lock()
		d := cl.tensors[g[i].Spec.Name]
		cl.mu.Unlock()
		if d == nil {
			// Other workers have declared it, but maybe its parts do not exist yet.
			d = &declared{cl: cl, spec: g[i].Spec, id: g[i].Parts.Tensor}
			err := cl.create(ctx, op, d, &g[i].Parts)
			if errors.Is(err, fault.Exhausted) || errors.Is(err, fault.Misuse) {
				continue // a server cannot make its parts
			}
			if err != nil {
				return nil, nil, err
			}
		}
		all, exist = append(all, d), append(exist, g[i])
	}
	return all, exist, nil
}

// saveParts lets the engines of all parts begin to save them. It returns the number of parts. No
// operation of this client comes between those of two parts.
func (cl *Client) saveParts(ctx context.Context, op string, all []*declared, token uint64) (parts int, err error) {
	for _, d := range all {
		parts += len(d.parts)
	}
	if err := cl.begin(op); err != nil {
		return 0, err
	}
	h := newHandle(cl, op, parts)
	for _, d := range all {
		d.mu.Lock()
	}
	for _, d := range all {
		for i := range d.parts {
			c := &call{q: message.Request{Kind: message.Save, DType: d.spec.DType, Tensor: d.id, Part: uint32(i), Seq: token}, done: h.partDone}
			c.priority = d.spec.Priority
			d.parts[i].submit(c)
		}
	}
	for _, d := range all {
		d.mu.Unlock()
	}
	return parts, h.Wait(ctx)
}

// askServers sends a request to all servers, and returns their answers.
func (cl *Client) askServers(ctx context.Context, op string, q message.Request, body []byte) (map[*link][]byte, error) {
	if err := cl.begin(op); err != nil {
		return nil, err
	}
	servers := cl.n.servers()
	h := newHandle(cl, op, len(servers))
	calls := make(map[*link]*call)
	for _, r := range servers {
		l := cl.links[r]
		c := &call{q: q, allocate: true, done: h.partDone}
		c.body = body
		calls[l] = c
		cl.submit(l, c)
	}
	if err := h.Wait(ctx); err != nil {
		return nil, err
	}
	answers := make(map[*link][]byte)
	for l, c := range calls {
		answers[l] = c.dst
	}
	return answers, nil
}

// dropLimit is how long a call that has failed waits for the servers to remove their files.
const dropLimit = 10 * time.Second

// drop gives up a snapshot or a restoration on all servers. It waits until they have removed their
// files.
func (cl *Client) drop(ctx context.Context, op string, token uint64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropLimit)
	defer cancel()
	cl.askServers(ctx, op, message.Request{Kind: message.Drop, Seq: token}, nil)
}

// Restore brings all tensors and tables of the newest complete snapshot in dir back, with the state
// of their optimizers. If dir is the directory of a snapshot, Restore takes that one. The job may have
// another number of servers than the one before.
//
// One worker calls it while no worker pushes or pulls. In a new job it comes before the other
// workers declare the tensors. They declare them as in the job before. Tensors that are not in the
// snapshot stay as they are.
//
// After an error no value has changed, unless a server is lost, or ctx ends while the servers install
// the values. Then some parts may have the values of the snapshot, and another Restore takes all parts
// back to it. Until the end, servers need memory for
// the present values and for those in the snapshot.
func (cl *Client) Restore(ctx context.Context, dir string) (*Restored, error) {
	op := "restore " + dir
	at := callsite.Here().String()
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, cl.n.diskError(op, err)
	}
	s, skipped, err := snapshot.Find(dir)
	if err != nil {
		return nil, cl.n.diskError(op, err)
	}
	token := rand.Uint64() | 1
	restored, err := cl.restore(ctx, op, at, s, token)
	if err != nil {
		cl.drop(ctx, op, token)
		return nil, cl.n.diskError(op, err)
	}
	for _, sk := range skipped {
		restored.Skipped = append(restored.Skipped, sk.Reason)
	}
	return restored, nil
}

func (cl *Client) restore(ctx context.Context, op, at string, s *snapshot.Snapshot, token uint64) (*Restored, error) {
	registry, ok := message.ParseRegistry(s.Registry, math.MaxInt)
	if !ok {
		return nil, fmt.Errorf("%s: the list of tensors in the manifest cannot be read; %s", s.Dir, restoreOther)
	}
	for i := range registry {
		if err := cl.declareAgain(ctx, op, at, &registry[i]); err != nil {
			return nil, err
		}
	}
	load := message.LoadRequest{Dir: s.Dir, Tensors: registry}
	if _, err := cl.askServers(ctx, op, message.Request{Kind: message.Load, Seq: token}, load.Append(nil)); err != nil {
		return nil, err
	}
	answers, err := cl.askServers(ctx, op, message.Request{Kind: message.Install, Seq: token}, nil)
	if err != nil {
		return nil, err
	}
	restored := &Restored{Dir: s.Dir, Time: s.Time}
	versions := make(map[string]RestoredTensor)
	for l, answer := range answers {
		var installed []installedPart
		if err := json.Unmarshal(answer, &installed); err != nil {
			return nil, l.protocolError("an answer about its parts that cannot be read: %w", err)
		}
		for _, p := range installed {
			t := versions[p.Name]
			versions[p.Name] = RestoredTensor{p.Name, max(t.Before, p.From), max(t.After, p.To)}
		}
	}
	for i := range registry {
		restored.Tensors = append(restored.Tensors, versions[registry[i].Spec.Name])
	}
	return restored, nil
}

// declareAgain declares a tensor of a snapshot, with its parts, and sets their servers.
func (cl *Client) declareAgain(ctx context.Context, op, at string, r *message.Registered) error {
	d := message.Declaration{Spec: r.Spec, At: at, Cut: r.Parts.Parts}
	answer, err := cl.roundTrip(ctx, op, cl.leader(), message.Request{Kind: message.Declare}, d.Append(nil))
	if err != nil {
		return err
	}
	placement, ok := message.ParsePartList(answer, cl.n.c.Size())
	if !ok {
		return cl.leader().protocolError("a placement that cannot be read")
	}
	if !slices.EqualFunc(placement.Parts, r.Parts.Parts, func(a, b message.PartSpec) bool { return a.First == b.First && a.Count == b.Count }) {
		return cl.n.errorf(fault.Mismatch, op, "parts of %s: got %d in the snapshot, want the %d of its declaration; restore before the first worker declares it",
			r.Spec.Name, len(r.Parts.Parts), len(placement.Parts))
	}
	r.Parts = placement
	return nil
}
