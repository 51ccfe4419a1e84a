package ps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/ps/internal/message"
	"github.com/tutti-go/tutti/ps/internal/part"
	"github.com/tutti-go/tutti/ps/internal/snapshot"
	"github.com/tutti-go/tutti/ps/internal/storage"
)

// An archive writes and reads the parts of a server in snapshots. One goroutine carries out its
// tasks in their order, so that engines and sessions never wait for a disk.
//
//	OpenSnapshot              CloseSnapshot
//	(idle) ----> (writing) ----------------> (idle)
//	(idle) ----> (loaded)  ----------------> (idle)
//	Load                      Install
//
// A Drop, the loss of the client and the end of the server lead to (idle) from each state.
type archive struct {
	s *Server

	mu    sync.Mutex
	tasks []func(ended error)
	wake  chan struct{} // has room for one
	ended error         // why no task is carried out any more

	dropped     atomic.Uint64 // the token of the last Drop, which ends a write or a read that is going on
	writing     atomic.Uint64 // the token of the snapshot that is written; 0: none
	interrupted atomic.Bool   // the epoch ends, which ends a write or a read, too

	// The fields below belong to the goroutine.
	token  uint64               // of the snapshot; 0: none
	rank   int                  // of its client
	file   *snapshot.FileWriter // nil unless the state is (writing)
	saved  []savedPart
	err    error              // the first error of a write
	loaded map[partKey]*shard // nil unless the state is (loaded)
}

// A savedPart is a part that a server has written.
type savedPart struct {
	Tensor, Part uint32
	Version      uint64
}

// A savedFile is the answer to a CloseSnapshot, as JSON.
type savedFile struct {
	File  snapshot.File
	Parts []savedPart
}

// An installedPart is a part that Install has replaced or made. The answer to an Install has a list
// of them, as JSON.
type installedPart struct {
	Name     string
	From, To uint64 // versions
}

func newArchive(s *Server) *archive { return &archive{s: s, wake: make(chan struct{}, 1)} }

// add adds a task. After the end of the server the task runs at once, with the reason.
func (a *archive) add(task func(ended error)) {
	a.mu.Lock()
	ended := a.ended
	if ended == nil {
		a.tasks = append(a.tasks, task)
	}
	a.mu.Unlock()
	if ended != nil {
		task(ended)
		return
	}
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// run carries out tasks until the node ends.
func (a *archive) run() {
	for {
		a.mu.Lock()
		if err := a.s.n.ctx.Err(); err != nil && a.ended == nil {
			a.ended = a.s.errorf(fault.Closed, "snapshot: the server has ended")
		}
		ended, tasks := a.ended, a.tasks
		a.tasks = nil
		a.mu.Unlock()
		for _, task := range tasks {
			task(ended)
		}
		if ended != nil {
			a.drop()
			return
		}
		select {
		case <-a.wake:
		case <-a.s.n.ctx.Done():
		}
	}
}

// submit handles a request about a snapshot.
func (a *archive) submit(j *job) {
	if j.q.Kind == message.Drop {
		a.dropped.Store(j.q.Seq)
	}
	a.add(func(ended error) {
		var body []byte
		err := ended
		switch {
		case ended != nil:
		case j.q.Kind == message.OpenSnapshot:
			body, err = a.open(j)
		case j.q.Kind == message.CloseSnapshot:
			body, err = a.close(j)
		case j.q.Kind == message.Load:
			err = a.load(j)
		case j.q.Kind == message.Install:
			a.install(j) // answers later
			return
		case j.q.Seq == a.token:
			a.drop()
		}
		j.finish(body, a.s.n.diskError("ps", err))
	})
}

// detach gives up the snapshot of a client that sends nothing more.
func (a *archive) detach(rank int) {
	a.add(func(ended error) {
		if ended == nil && a.token != 0 && a.rank == rank {
			a.drop()
		}
	})
}

// interrupt gives up what is going on, because the epoch ends. When it returns, no part is being saved.
func (a *archive) interrupt() {
	a.interrupted.Store(true)
	done := make(chan struct{})
	a.add(func(ended error) {
		if ended == nil {
			a.drop()
		}
		close(done)
	})
	<-done
	a.interrupted.Store(false)
}

// begin begins a snapshot or a restoration, unless another one is going on.
func (a *archive) begin(j *job) error {
	if a.token != 0 {
		return a.s.errorf(fault.Misuse, "snapshot: got another one while that of rank %d is not complete; let one worker take and restore snapshots, one at a time", a.s.n.worldRank(a.rank))
	}
	if a.dropped.Load() == j.q.Seq {
		return a.s.errorf(fault.Canceled, "snapshot: the worker has given it up")
	}
	a.token, a.rank = j.q.Seq, j.rank
	return nil
}

// drop gives up what was begun. It does nothing if the state is (idle).
func (a *archive) drop() {
	if a.file != nil {
		a.file.Abort()
	}
	for _, p := range a.loaded {
		p.free()
	}
	a.writing.Store(0)
	a.token, a.file, a.saved, a.err, a.loaded = 0, nil, nil, nil, nil
}

// open begins to write a file. The lead answers with the registry.
func (a *archive) open(j *job) (registry []byte, err error) {
	if err := a.begin(j); err != nil {
		return nil, err
	}
	if a.file, err = snapshot.Create(string(j.body), a.s.n.c.Rank()); err != nil {
		a.drop()
		return nil, err
	}
	a.writing.Store(a.token)
	s := a.s
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sortedRegistry().Append(nil), nil
}

// save writes a part. The engine of the part has made the Save, and goes on meanwhile.
func (a *archive) save(token uint64, p *shard, state *part.State, values storage.Save) {
	head := message.PartHead{Name: p.spec.Name, Part: p.key.part, State: *state}
	a.add(func(ended error) {
		defer values.Close()
		if ended != nil || token != a.token || a.file == nil || a.err != nil {
			return
		}
		if a.err = a.file.Part(head.Append(nil)); a.err == nil {
			_, a.err = values.WriteTo(&unlessDropped{a, a.file.Write})
		}
		a.saved = append(a.saved, savedPart{p.key.tensor, p.key.part, state.Version})
	})
}

// close completes the file, and answers with a savedFile.
func (a *archive) close(j *job) ([]byte, error) {
	if j.q.Seq != a.token || a.file == nil {
		return nil, a.s.errorf(fault.Misuse, "snapshot: this server writes none, or another one")
	}
	defer a.drop()
	if a.err != nil {
		return nil, a.err
	}
	f, err := a.file.Close()
	if err != nil {
		return nil, err
	}
	return json.Marshal(savedFile{f, a.saved})
}

// load reads the parts of this server from all files of a snapshot. They have no effect yet.
func (a *archive) load(j *job) error {
	l, ok := message.ParseLoad(j.body, a.s.n.c.Size())
	if !ok {
		return a.s.errorf(fault.Mismatch, "restore: got a request that cannot be read; run the same version of the program on all ranks")
	}
	if err := a.begin(j); err != nil {
		return err
	}
	a.loaded = make(map[partKey]*shard)
	err := a.loadAll(&l)
	if err != nil {
		a.drop()
	}
	return err
}

func (a *archive) loadAll(l *message.LoadRequest) error {
	tensors := make(map[string]*message.Registered)
	for i := range l.Tensors {
		tensors[l.Tensors[i].Spec.Name] = &l.Tensors[i]
	}
	s, _, err := snapshot.Find(l.Dir)
	if err != nil {
		return err
	}
	for i := range s.Files {
		if err := a.loadFile(s, i, tensors); err != nil {
			return err
		}
	}
	for j := range l.Tensors {
		t := &l.Tensors[j]
		for i, mp := range t.Parts.Parts {
			if slices.Contains(mp.Servers, a.s.n.c.Rank()) && a.loaded[partKey{t.Parts.Tensor, uint32(i)}] == nil {
				return fmt.Errorf("%s: part %d of %s: no file has it; %s", l.Dir, i, t.Spec.Name, restoreOther)
			}
		}
	}
	return nil
}

// restoreOther is the remedy for a snapshot that cannot be used.
const restoreOther = "restore another snapshot by the name of its own directory"

// loadFile reads the parts of this server from one file.
func (a *archive) loadFile(s *snapshot.Snapshot, file int, tensors map[string]*message.Registered) error {
	path := filepath.Join(s.Dir, s.Files[file].Name)
	r, err := s.Open(file)
	if err != nil {
		return err
	}
	defer r.Close()
	for {
		b, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		head, ok := message.ParsePartHead(b)
		t := tensors[head.Name]
		if !ok || t == nil || int(head.Part) >= len(t.Parts.Parts) {
			return fmt.Errorf("%s: got part %d of %q, want parts of the tensors in the manifest; %s", path, head.Part, head.Name, restoreOther)
		}
		mp := t.Parts.Parts[head.Part]
		if !slices.Contains(mp.Servers, a.s.n.c.Rank()) {
			continue
		}
		if err := a.loadPart(t, partKey{t.Parts.Tensor, head.Part}, mp, head.State, &unlessDropped{a, r.Read}); err != nil {
			kind := fault.Misuse
			if f := (*fault.Error)(nil); errors.As(err, &f) {
				kind = f.Kind
			}
			return a.s.errorf(kind, "%s: part %d: %w", path, head.Part, fault.Cause(err))
		}
		if _, err := io.CopyN(io.Discard, r, 1); err != io.EOF {
			return fmt.Errorf("%s: part %d of %s: got more than its values; %s", path, head.Part, head.Name, restoreOther)
		}
	}
}

// loadPart reads one part.
func (a *archive) loadPart(t *message.Registered, key partKey, mp message.PartSpec, state part.State, r io.Reader) error {
	if a.loaded[key] != nil {
		return fmt.Errorf("got %s twice; %s", t.Spec.Name, restoreOther)
	}
	a.s.mu.Lock()
	p, err := a.s.newShard(&t.Spec, key, mp)
	a.s.mu.Unlock()
	if err != nil {
		return err
	}
	a.loaded[key] = p
	p.restored = state.EqualClocks()
	if p.table != nil {
		return p.table.Load(r)
	}
	return p.dense.Load(r)
}

// install gives the parts that were loaded to their engines, and makes those that do not exist.
func (a *archive) install(j *job) {
	if j.q.Seq != a.token || a.loaded == nil {
		j.finish(nil, a.s.errorf(fault.Misuse, "restore: this server has loaded no snapshot, or another one"))
		return
	}
	in := &installation{job: j}
	in.left.Store(1)
	s := a.s
	s.mu.Lock()
	for key, p := range a.loaded {
		if old := s.parts[key]; old != nil {
			in.left.Add(1)
			old.engine.add(&job{part: old, priority: old.priority, install: in, loaded: p})
			continue
		}
		p.machine = part.New(p.config(), p.restored)
		p.begin(s.membersLocked())
		p.count64()
		s.parts[key] = p
		in.add(installedPart{p.spec.Name, 0, p.restored.Version})
	}
	s.mu.Unlock()
	a.loaded = nil
	a.drop()
	in.end()
}

// An installation waits for the engines that install parts.
type installation struct {
	job  *job // the request
	left atomic.Int32

	mu    sync.Mutex
	parts []installedPart
	err   error // why parts could not be installed
}

// add adds a part to the answer.
func (in *installation) add(p installedPart) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.parts = append(in.parts, p)
}

// end is called by each engine that has installed a part, and by install. The last call answers.
func (in *installation) end() {
	if in.left.Add(-1) > 0 {
		return
	}
	if in.err != nil {
		in.job.finish(nil, in.err)
		return
	}
	in.job.finish(json.Marshal(in.parts))
}

// fail is called instead of add and end by an engine that has ended.
func (in *installation) fail(err error) {
	in.mu.Lock()
	in.err = err
	in.mu.Unlock()
	in.end()
}

// restore replaces the part by one that was loaded. Requests that wait go on with the new values.
// The pushes of a version that is not complete are gone, as are those that made later versions.
func (p *shard) restore(in *installation, from *shard) {
	version := p.machine.Version()
	p.carryOut(p.machine.Seal())
	for name, j := range p.jobs {
		if j.q.Kind != message.Pull && j.q.Kind != message.Save && !slices.Contains(p.sealed, name) {
			p.bodyUsed(j)
		}
	}
	clear(p.folded)
	p.folded = p.folded[:0]
	p.failure = nil
	p.free()
	p.dense, p.table = from.dense, from.table
	p.machine = part.New(p.config(), from.restored)
	p.begin(p.s.beginMembers())
	p.count64()
	in.add(installedPart{p.spec.Name, version, from.restored.Version})
	in.end()
	p.resume()
}

// save begins to save the part, with the State that goes with the present values.
func (p *shard) save(j *job, o *part.Output) {
	var values storage.Save
	var err error
	switch {
	case p.s.archive.writing.Load() != j.q.Seq || p.s.archive.dropped.Load() == j.q.Seq:
		// A Save may have waited for a version while its snapshot, and others, were given up.
		err = p.s.errorf(fault.Canceled, "snapshot: the worker has given it up")
	case p.table != nil:
		values, err = p.table.Save()
	default:
		values = p.dense.Save()
	}
	if err == nil {
		p.s.archive.save(j.q.Seq, p, o.State, values)
	}
	p.finish(j, o.Version, nil, nil, err)
}

// unlessDropped reads or writes, until the snapshot is given up or the server ends.
type unlessDropped struct {
	a    *archive
	move func([]byte) (int, error) // a Read or a Write
}

func (u *unlessDropped) Read(b []byte) (int, error) {
	if u.a.dropped.Load() == u.a.token || u.a.interrupted.Load() {
		return 0, context.Canceled
	}
	if err := u.a.s.n.ctx.Err(); err != nil {
		return 0, err
	}
	return u.move(b)
}

func (u *unlessDropped) Write(b []byte) (int, error) { return u.Read(b) }

// diskError returns err as the error of a call that reads or writes files. A full disk is
// fault.Exhausted.
func (n *node) diskError(op string, err error) error {
	var f *fault.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &f):
		return n.withOp(op, err)
	}
	kind := fault.Misuse
	if errors.Is(err, syscall.ENOSPC) {
		kind = fault.Exhausted
	}
	return n.errorf(kind, op, "%w", err)
}

// errorf returns an error that this rank has found.
func (n *node) errorf(k fault.Kind, op, format string, args ...any) error {
	return fault.New(k, op, n.worldRank(n.c.Rank()), format, args...)
}
