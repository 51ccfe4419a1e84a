package coordinator

import (
	"cmp"
	"context"
	"os"
	"strconv"
	"sync"

	"github.com/tutti-go/tutti/coordinator/negotiate"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/timeline"
)

// A tensorTimes has the times at which the phases of a tensor, or of a part of it, began and ended.
// They are in nanoseconds on this rank's clock. A time that was not recorded is 0.
//
//	submitted    ├─ negotiate
//	negotiated   ├─ queue
//	started      ├─ fuse
//	packed       ├─ wire
//	transferred  ├─ copy-out
//	done
type tensorTimes struct {
	tensor       *negotiate.Spec
	bytes        int
	part, parts  int
	fusedTensors int // number of tensors in the Bucket

	submitted, negotiated, started, packed, transferred, done int64
}

// A recorder stores times while a timeline is recorded. Otherwise there is no recorder, and the
// clock is not read.
type recorder struct {
	file string

	times timeline.Ring[tensorTimes]

	mu      sync.Mutex    // guards samples
	samples []clockSample // taken at the start and at the end
}

// StartTimeline makes this rank record how long each of its tensors was negotiated, queued, packed,
// in transfer and unpacked. StopTimeline, or the end of the coordinator, writes the record to the
// file PartName(file, rank), as Chrome's trace events in rank 0's time. The comparison of the
// clocks takes several round trips to rank 0, and at most a second. Each rank starts and stops
// independently. The last 65,536 tensors are kept. A second start without a stop is fault.Misuse.
//
// `tuttirun --timeline` starts a timeline on all ranks and merges the parts. `tuttirun
// --merge-timeline` merges the parts of a job that tuttirun did not start.
func (co *Coordinator) StartTimeline(ctx context.Context, file string) error {
	bad := func(format string, args ...any) error {
		return fault.New(fault.Misuse, "start timeline", co.worldRank(co.rank), format, args...)
	}
	if co.rec.Load() != nil {
		return bad("a timeline is being recorded already; call StopTimeline first")
	}
	part := timeline.PartName(file, co.worldRank(co.rank))
	f, err := timeline.CreateExclusive(part) // reports an error now and not an hour later
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return bad("%w", err)
	}
	r := &recorder{file: part}
	co.sampleClock(ctx, r)
	if !co.rec.CompareAndSwap(nil, r) {
		return bad("a timeline is being recorded already; call StopTimeline first")
	}
	return nil
}

// StopTimeline ends the recording that StartTimeline began, and writes this rank's part. Without a
// recording it does nothing.
func (co *Coordinator) StopTimeline(ctx context.Context) error {
	r := co.rec.Swap(nil)
	if r == nil {
		return nil
	}
	co.sampleClock(ctx, r)
	return co.writeTimeline(r)
}

// endTimeline writes the timeline that is being recorded when the coordinator ends.
func (co *Coordinator) endTimeline() {
	r := co.rec.Swap(nil)
	if r == nil {
		return
	}
	if err := co.writeTimeline(r); err != nil {
		co.log.warn("tutti: coordinator: the timeline is not written: " + err.Error())
	}
}

// timestamp returns the time, or 0 when no timeline is recorded. While a timeline is recorded, it
// never returns 0. A fake clock may show time 0; the result is then 1.
func (co *Coordinator) timestamp() int64 {
	if co.rec.Load() == nil {
		return 0
	}
	return max(int64(co.now()), 1)
}

// bucketTimes are the times of the executor's phases for a Bucket.
type bucketTimes struct{ negotiated, started, packed, transferred int64 }

// record stores the times of a Bucket that has been executed.
func (x *executor) record(b *negotiate.Bucket, items []item, times bucketTimes) {
	r := x.co.rec.Load()
	if r == nil || times.started == 0 {
		return
	}
	done := int64(x.co.now())
	for i := range items {
		l := tensorTimes{
			tensor: items[i].Spec, bytes: negotiate.Size(items[i].Spec, items[i].Rows, b.Part, b.Parts),
			part: b.Part, parts: b.Parts, fusedTensors: len(items),
			negotiated: times.negotiated, started: times.started, packed: times.packed, transferred: times.transferred, done: done,
		}
		if items[i].h != nil {
			l.submitted = items[i].h.submittedAt
		}
		r.times.Add(l)
	}
}

// writeTimeline writes the part.
func (co *Coordinator) writeTimeline(r *recorder) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.samples) == 0 { // rank 0 does not answer
		r.samples = append(r.samples, clockSample{offset: co.started.UnixNano()})
	}
	clock := newClock(r.samples)
	host, _ := os.Hostname() // without it the timeline has no name for the host
	times, dropped := r.times.All()
	about := timeline.Info{
		Rank: co.worldRank(co.rank), Host: host, Offset: clock.offset[0] - co.started.UnixNano(), Error: clock.maxError, Dropped: dropped,
	}
	return timeline.WritePart(r.file, about, timeline.FirstThread, func(w *timeline.Writer) {
		ends := make(map[string]int64) // the end of the last span of each tensor
		for i := range times {
			times[i].write(w, clock, ends)
		}
	})
}

// write writes one span for the tensor and one for each of its phases, as drawn at type
// tensorTimes. A phase without a recorded end is left out. A part of a tensor is assumed to begin
// when the previous part has ended.
func (l *tensorTimes) write(w *timeline.Writer, clock clock, ends map[string]int64) {
	t := l.tensor
	on := t.Name
	if t.Set != negotiate.World {
		on += " of set " + strconv.Itoa(int(t.Set))
	}
	begin := max(cmp.Or(l.submitted, l.negotiated, l.started), ends[on])
	ends[on] = l.done
	negotiated := max(begin, l.negotiated)
	begun := max(negotiated, l.started)
	packed := max(begun, l.packed)
	wired := l.done
	if l.transferred != 0 {
		wired = max(packed, l.transferred)
	}
	args := []timeline.Arg{{Name: "bytes", Value: l.bytes}, {Name: "type", Text: t.DType.String()}, {Name: "tensors together", Value: l.fusedTensors}}
	if l.parts > 1 {
		args = append(args, timeline.Arg{Name: "part", Value: l.part}, timeline.Arg{Name: "parts", Value: l.parts})
	}
	w.Span(on, t.Operation.String(), clock.toRoot(begin), clock.toRoot(l.done), args...)
	for _, p := range [...]struct {
		name     string
		from, to int64
	}{{"negotiate", begin, negotiated}, {"queue", negotiated, begun}, {"fuse", begun, packed}, {"wire", packed, wired}, {"copy-out", wired, l.done}} {
		if p.from < p.to {
			w.Span(on, p.name, clock.toRoot(p.from), clock.toRoot(p.to))
		}
	}
}
