package ps

import (
	"cmp"
	"context"
	"encoding/binary"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/tutti-go/tutti/internal/timeline"
	"github.com/tutti-go/tutti/ps/internal/message"
)

// A recorder keeps the times of requests for a timeline. A node has one if the environment asks for a
// timeline. Otherwise there is none, and the clock is not read.
type recorder struct {
	file             string
	started          time.Time
	offset, maxError int64 // of rank 0's clock, which counts from 1970, from the time since started
	requests         timeline.Ring[requestTimes]
}

// newRecorder returns the recorder of a rank, or nil if the environment asks for no timeline.
func newRecorder(rank int) (*recorder, error) {
	file := timeline.FromEnvironment()
	if file == "" {
		return nil, nil
	}
	part := timeline.PSPartName(file, rank)
	f, err := timeline.CreateExclusive(part) // reports an error now and not an hour later
	if err != nil {
		return nil, err
	}
	return &recorder{file: part, started: time.Now()}, f.Close()
}

// now returns the time since the start of the recorder in nanoseconds. It is never 0.
func (r *recorder) now() int64 { return max(1, int64(time.Since(r.started))) }

// requestTimes are the times of a request about a part, as its client or its server sees it, in
// nanoseconds. A time that was not recorded is 0, and the phase before it goes on to the next one.
//
//	on the client               on the server
//	submitted  ├─ queue         arrived   ├─ receive
//	started    ├─ send          received  ├─ queue
//	sent       ├─ server        dequeued  ├─ work
//	answered   ├─ receive       worked    ├─ wait
//	done                        replied   ├─ queue
//	                            started   ├─ send
//	                            done
//
// The wait is for the pushes of other workers. The client's "server" has all that happens between its
// last byte sent and the head of the reply.
type requestTimes struct {
	rec    *recorder
	tensor string
	kind   message.RequestKind
	part   uint32
	peer   int // rank in the job
	bytes  int // of the bodies of request and reply
	server bool
	at     [7]int64
}

// Indices in requestTimes.at.
const (
	submitted = iota
	clientStarted
	clientSent
	answered
	clientDone

	arrived       = 0
	received      = 1
	dequeued      = 2
	worked        = 3
	replied       = 4
	serverStarted = 5
	serverDone    = 6
)

var (
	clientPhases = []string{"queue", "send", "server", "receive"}
	serverPhases = []string{"receive", "queue", "work", "wait", "queue", "send"}
)

// clientTimes begins the times of a request of this rank's client. It returns nil without a timeline.
func (n *node) clientTimes(tensor string, q *message.Request, server int) *requestTimes {
	if n.rec == nil {
		return nil
	}
	t := &requestTimes{rec: n.rec, tensor: tensor, kind: q.Kind, part: q.Part, peer: n.worldRank(server)}
	t.mark(submitted)
	return t
}

// serverTimes begins the times of a request in this rank's server. It returns nil without a timeline.
func (n *node) serverTimes(q *message.Request, client int) *requestTimes {
	if n.rec == nil || !q.Kind.Pushes() && q.Kind != message.Pull {
		return nil
	}
	t := &requestTimes{rec: n.rec, kind: q.Kind, part: q.Part, peer: n.worldRank(client), bytes: q.Size, server: true}
	t.mark(arrived)
	return t
}

// mark records a time. Without a timeline it does nothing.
func (t *requestTimes) mark(i int) {
	if t != nil {
		t.at[i] = t.rec.now()
	}
}

// end records the last time, and keeps the times. Nothing may use t afterwards.
func (t *requestTimes) end() {
	if t == nil {
		return
	}
	last := clientDone
	if t.server {
		last = serverDone
	}
	t.mark(last)
	t.rec.requests.Add(*t)
}

// phases returns the times and the names of the phases between them. No time is before another one.
func (t *requestTimes) phases() (at []int64, names []string) {
	at, names = t.at[:clientDone+1], clientPhases
	if t.server {
		at, names = t.at[:serverDone+1], serverPhases
	}
	for i := len(at) - 2; i >= 0; i-- {
		if at[i] == 0 || at[i] > at[i+1] {
			at[i] = at[i+1]
		}
	}
	return at, names
}

// write writes the timeline of this rank. A tensor has one thread for its requests on the client and
// one on the server, and more where requests are in flight at the same time, because spans of a thread
// must not overlap.
func (r *recorder) write(rank int) error {
	records, dropped := r.requests.All()
	slices.SortStableFunc(records, func(a, b requestTimes) int { return cmp.Compare(a.at[0], b.at[0]) })
	host, _ := os.Hostname() // without it the timeline has no name for the host
	about := timeline.Info{Rank: rank, Host: host, Offset: r.offset - r.started.UnixNano(), Error: r.maxError, Dropped: dropped}
	return timeline.WritePart(r.file, about, timeline.FirstPSThread, func(w *timeline.Writer) {
		ends := make(map[string][]int64) // the last end on each of a tensor's threads
		for i := range records {
			t := &records[i]
			at, names := t.phases()
			on, peer := "push and pull "+t.tensor, "server"
			if t.server {
				on, peer = "serve "+t.tensor, "client"
			}
			begin, end := at[0], at[len(at)-1]
			thread := slices.IndexFunc(ends[on], func(end int64) bool { return end <= begin })
			if thread < 0 {
				thread = len(ends[on])
				ends[on] = append(ends[on], 0)
			}
			ends[on][thread] = end
			if thread > 0 {
				on += " #" + strconv.Itoa(thread+1)
			}
			w.Span(on, kindNames[t.kind], begin+r.offset, end+r.offset,
				timeline.Arg{Name: "part", Value: int(t.part)}, timeline.Arg{Name: peer, Value: t.peer}, timeline.Arg{Name: "bytes", Value: t.bytes})
			for i, name := range names {
				if at[i] < at[i+1] {
					w.Span(on, name, at[i]+r.offset, at[i+1]+r.offset)
				}
			}
		}
	})
}

// kindNames are the names of requests in a timeline.
var kindNames = map[message.RequestKind]string{message.Push: "push", message.Pull: "pull", message.PushPull: "pushpull", message.Set: "set",
	message.SetState: "set state", message.PullState: "pull state"}

// pings is how often a rank asks rank 0 for its time. The answer of the fastest round trip counts.
const pings = 16

// compareClocks sets the offsets of the recorders. Rank 0 answers the ranks that record, one after the
// other. If both directions of a round trip take equally long, rank 0 reads its clock halfway, and the
// error is at most half the round trip. The clocks' drift after that is not corrected.
func (n *node) compareClocks(ctx context.Context, recording []int) error {
	ctx, cancel := n.waitContext(ctx)
	defer cancel()
	var b [8]byte
	me := n.c.Rank()
	if me == 0 {
		if n.rec != nil {
			n.rec.offset = n.rec.started.UnixNano()
		}
		begin := time.Now() // with a monotonic reading, unlike what UnixNano returns
		for _, r := range recording {
			for range pings {
				if r == 0 {
					break
				}
				if _, err := n.epoch.wires.Recv(ctx, r, tagClock, b[:]); err != nil {
					return err
				}
				binary.LittleEndian.PutUint64(b[:], uint64(begin.UnixNano()+int64(time.Since(begin))))
				if err := n.epoch.wires.Send(ctx, r, tagClock, b[:]); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if n.rec == nil {
		return nil
	}
	for i := range pings {
		sent := n.rec.now()
		if err := n.epoch.wires.Send(ctx, 0, tagClock, b[:]); err != nil {
			return err
		}
		if _, err := n.epoch.wires.Recv(ctx, 0, tagClock, b[:]); err != nil {
			return err
		}
		half := (n.rec.now() - sent) / 2
		if i == 0 || half < n.rec.maxError {
			n.rec.offset, n.rec.maxError = int64(binary.LittleEndian.Uint64(b[:]))-sent-half, half
		}
	}
	return nil
}
