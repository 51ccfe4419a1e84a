//go:build unix

package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/ps"
	"github.com/tutti-go/tutti/ps/optimizer"
)

// psWorkers is the number of ranks that work. The others serve.
const psWorkers = 2

// pushThroughLosses pushes to parameter servers with Left copies of each part until gate 0 opens. Each
// worker keeps a log of the pushes that were acknowledged. At the end they compare it with the values.
func pushThroughLosses(ctx context.Context, a *rankProcess, c *comm.Comm) error {
	opts := []ps.Option{ps.WithReplicas(a.Left), ps.WithPart(4000), ps.WithLogger(slog.New(&changes{Handler: slog.DiscardHandler, a: a}))}
	if a.rank >= psWorkers {
		at, err := callHere(), ps.Serve(ctx, c, opts...)
		return a.report("served", at, err)
	}
	cl, err := ps.Connect(ctx, c, opts...)
	if err != nil {
		return err
	}
	at, err := callHere(), push(ctx, a, cl)
	if err == nil {
		err = cl.Close(ctx)
	}
	return a.report("checked", at, err)
}

// changes reports the new epochs that a rank logs.
type changes struct {
	slog.Handler
	a *rankProcess
}

// Enabled implements slog.Handler.
func (*changes) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (h *changes) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(attr slog.Attr) bool {
		if attr.Key == "left" {
			h.a.log(fmt.Sprint("left ", attr.Value), r.Message)
		}
		return true
	})
	return nil
}

// push pushes to a synchronous tensor with Adam, whose values it compares with a serial program, and to
// an asynchronous table.
func push(ctx context.Context, a *rankProcess, cl *ps.Client) error {
	const n, width = 2500, 4
	adam := optimizer.Adam{Rate: 0.01}
	w, err := ps.Declare[float32](ctx, cl, "w", n, ps.Optimizer(adam))
	if err != nil {
		return err
	}
	rows, err := ps.DeclareTable[float32](ctx, cl, "rows", width, ps.Asynchronous())
	if err != nil {
		return err
	}
	want, got := make([]float32, n), make([]float32, n)
	slots := [][]float32{make([]float32, n), make([]float32, n)}
	random := rand.New(rand.NewPCG(uint64(a.rank), 1))
	counts := make([]float32, 200)
	end := a.contextUntilGate(ctx, 0, 0)
	for step := 1; ; step++ {
		done := []float32{0}
		if end.Err() != nil {
			done[0] = 1
		}
		if err := comm.AllReduce(ctx, cl.Workers(), done, comm.Max); err != nil {
			return err
		}
		if done[0] == 1 {
			break
		}
		gradient, mean := make([]float32, n), make([]float32, n)
		for i := range n {
			for r := range psWorkers {
				mean[i] += float32((step*31+i*7)%13-6+r) / psWorkers
			}
			gradient[i] = float32((step*31+i*7)%13 - 6 + a.rank)
		}
		var indices []int64
		for range 1 + random.IntN(50) {
			indices = append(indices, random.Int64N(int64(len(counts))))
		}
		ones := slices.Repeat([]float32{1}, width*len(indices))
		hs := []*ps.Handle{rows.IPush(indices, ones), w.IPushPull(gradient, got)}
		for i, h := range hs {
			if err := h.Wait(ctx); err != nil {
				return fmt.Errorf("step %d, operation %d: %w", step, i, err)
			}
		}
		for _, i := range indices {
			counts[i]++
		}
		optimizer.Update[float32](adam)(want, mean, slots, int64(step))
		if !slices.Equal(got, want) {
			return fmt.Errorf("step %d: the values differ from those of a serial program", step)
		}
		if step == 5 {
			a.log("pushing", "")
		}
	}
	if err := comm.AllReduce(ctx, cl.Workers(), counts, comm.Sum); err != nil {
		return err
	}
	indices := make([]int64, len(counts))
	for i := range indices {
		indices[i] = int64(i)
	}
	values := make([]float32, width*len(counts))
	if err := rows.Pull(ctx, indices, values); err != nil {
		return err
	}
	for i, v := range values {
		if v != counts[i/width] {
			return fmt.Errorf("row %d: got %v, want the %v pushes that were acknowledged", i/width, v, counts[i/width])
		}
	}
	return nil
}

// TestReplicatedServersSurviveKills kills servers at random moments: one at a time with two copies of each
// part, and two at a time with three copies. No call of a worker fails, and no acknowledged push is lost
// or applied twice.
func TestReplicatedServersSurviveKills(t *testing.T) {
	const servers = 6
	kills, seed := 10, uint64(time.Now().UnixNano())
	if soaking() {
		kills = 200
	}
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 2))
	for round := 0; round < kills/(servers-1); round++ {
		wire := wires()[round%len(wires())]
		copies := 2 + round/len(wires())%2
		if !soaking() {
			copies = 2 + round%2
		}
		t.Run(fmt.Sprintf("%d/%s/%d copies", round, wire, copies), func(t *testing.T) {
			killServers(t, random, wire, servers, copies)
		})
	}
}

func killServers(t *testing.T, random *rand.Rand, wire string, servers, copies int) {
	j := run(t, psWorkers+servers, wire, instruction{Program: "push", Left: copies}, "--enable-recovery")
	pids := j.pids(psWorkers + servers)
	j.events("pushing", psWorkers)
	order := random.Perm(servers)
	left := psWorkers + servers
	for victims := range slices.Chunk(order[1:], copies-1) {
		for _, victim := range victims {
			// Reason: the pause chooses the moment of the kill.
			time.Sleep(time.Duration(random.IntN(50_000/len(victims)/len(victims))) * time.Microsecond)
			t.Logf("kill of rank %d", psWorkers+victim)
			j.signal(pids[psWorkers+victim], syscall.SIGKILL)
			left--
		}
		j.events(fmt.Sprint("left ", left), left)
	}
	j.open(0)
	for _, e := range j.events("checked", psWorkers) {
		if e.Failed {
			t.Errorf("rank %d: %s", e.Rank, e.Text)
		}
	}
	for _, e := range j.events("served", 1) {
		if e.Failed {
			t.Errorf("rank %d: %s", e.Rank, e.Text)
		}
	}
	j.wantExit(0)
}

// TestAStoppedServerAcknowledgesNothing stops the first server for 20 s. The others go on without it.
// When it is woken, it learns so, and its call ends with the reason.
func TestAStoppedServerAcknowledgesNothing(t *testing.T) {
	t.Parallel()
	const servers = 3
	j := run(t, psWorkers+servers, "tcp", instruction{Program: "push", Left: 2}, "--enable-recovery")
	pids := j.pids(psWorkers + servers)
	j.events("pushing", psWorkers)
	j.signal(pids[psWorkers], syscall.SIGSTOP)
	stopped := time.Now()
	left := psWorkers + servers - 1
	j.events(fmt.Sprint("left ", left), left)
	// Reason: the server must sleep for 20 s.
	time.Sleep(time.Until(stopped.Add(20 * time.Second)))
	j.signal(pids[psWorkers], syscall.SIGCONT)
	e := j.events("served", 1)[0]
	if e.Rank != psWorkers || !e.is(fault.NoQuorum) && !e.is(fault.PeerLost) && !e.is(fault.LinkLost) {
		t.Errorf("rank %d: got %q, want that rank %d was given up", e.Rank, e.Text, psWorkers)
	}
	t.Logf("the stopped server: %s", e.Text)
	j.open(0)
	for _, e := range j.events("checked", psWorkers) {
		if e.Failed {
			t.Errorf("rank %d: %s", e.Rank, e.Text)
		}
	}
}
