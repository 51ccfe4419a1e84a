//go:build unix

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/mesh"
)

// wires returns the transports that can connect processes on one host.
func wires() []string {
	if runtime.GOOS == "linux" {
		return append(streams(), "shm")
	}
	return streams()
}

// streams returns the transports that other hosts and unauthenticated clients can reach.
func streams() []string { return []string{"tcp", "grpc"} }

// heartbeatDelay is how long a rank works until the other ranks know its call from its heartbeats.
const heartbeatDelay = 3 * mesh.DefaultHeartbeat

// sumForever sums until a sum fails.
func sumForever(ctx context.Context, a *rankProcess, c *comm.Comm) error {
	buf := make([]float32, a.Bytes/4)
	began, reported := time.Now(), false
	for {
		at, err := callHere(), comm.AllReduce(ctx, c, buf, comm.Sum)
		if err != nil {
			return a.report("ended", at, err)
		}
		if !reported && (a.ReadyAtOnce || time.Since(began) > heartbeatDelay) {
			a.log("summing", "")
			reported = true
		}
	}
}

func TestAKilledRankIsNamedByAllOthersWithinASecond(t *testing.T) {
	for _, wire := range wires() {
		for _, size := range []struct {
			name  string
			bytes int
			ranks int
		}{{"4B", 4, 4}, {"64MiB", 64 << 20, 3}} {
			for _, victim := range []int{0, size.ranks - 2} {
				t.Run(fmt.Sprintf("%s/%s/rank%d", wire, size.name, victim), func(t *testing.T) {
					killOne(t, size.ranks, wire, instruction{Bytes: size.bytes, Victim: victim}, 0)
				})
			}
		}
	}
}

// killOne kills a rank while all ranks run allreduces, a given pause after all ranks have begun.
// The other ranks must get fault.PeerLost that names the victim, within a second.
func killOne(t *testing.T, ranks int, wire string, o instruction, pause time.Duration) {
	t.Helper()
	o.Program = "sum"
	victim, lastCall := o.Victim, "allreduce #"
	if o.ReadyAtOnce {
		lastCall = ""
	}
	j := run(t, ranks, wire, o)
	pids := j.pids(ranks)
	j.events("summing", ranks)
	// Reason: the pause chooses the moment of the kill. The ranks are inside a call nearly all the
	// time.
	time.Sleep(pause)
	killed := j.signal(pids[victim], syscall.SIGKILL)
	j.wantLost(ranks-1, victim, lastCall, killed)
	j.wantExit(128+int(syscall.SIGKILL),
		fmt.Sprintf("tuttirun: rank %d (", victim), fmt.Sprintf("process %d) was killed by signal 9 (SIGKILL)", pids[victim]))
	j.wantQuoted(fmt.Sprintf("%v [rank %d on ", fault.PeerLost, victim))
}

// wantLost checks that the given number of ranks end with PeerLost within a second, and name the
// victim and its last call.
func (j *job) wantLost(ranks, victim int, lastCall string, since moment) {
	j.t.Helper()
	for _, e := range j.events("ended", ranks) {
		if e.Kind != fault.PeerLost.Error() {
			j.t.Errorf("rank %d got kind %q, want %q: %s", e.Rank, e.Kind, fault.PeerLost, e.Text)
		}
		j.wantBlamed(e, victim, lastCall)
		j.wantWithin(e, since, time.Second)
	}
}

// wantBlamed checks which rank an error names, and the last call of that rank.
func (j *job) wantBlamed(e event, victim int, lastCall string) {
	j.t.Helper()
	if len(e.Peers) != 1 || e.Peers[0].Rank != victim {
		j.t.Errorf("rank %d names %v, want rank %d: %s", e.Rank, e.Peers, victim, e.Text)
		return
	}
	if p := e.Peers[0]; p.Host == "" || !strings.Contains(p.Call, lastCall) {
		j.t.Errorf("rank %d says of rank %d host %q and last call %q, want some host and %q", e.Rank, victim, p.Host, p.Call, lastCall)
	}
}

// wantQuoted checks that a line of tuttirun quotes the given part of a survivor's error.
func (j *job) wantQuoted(part string) {
	j.t.Helper()
	if n := j.err.count("tuttirun: rank", part); n == 0 {
		j.t.Errorf("tuttirun does not quote %q:\n%v", part, j.err)
	}
}

// The victim dies at a random moment. See killOne for what the other ranks must report.
func TestSoakRanksKilledAtRandomMoments(t *testing.T) {
	if !soaking() {
		// Reason: hundreds of jobs take too long for every change. `make soak` runs them.
		t.Skip("hundreds of jobs: make soak")
	}
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	for i := range 400 {
		ranks := 2 + rng.IntN(3)
		bytes := 4 << rng.IntN(23)
		wire, victim := wires()[rng.IntN(len(wires()))], rng.IntN(ranks)
		pause := time.Duration(rng.IntN(50_000)) * time.Microsecond
		t.Run(fmt.Sprintf("%d/%s/%dranks/%dB/rank%d/%v", i, wire, ranks, bytes, victim, pause), func(t *testing.T) {
			killOne(t, ranks, wire, instruction{Bytes: bytes, Victim: victim, ReadyAtOnce: true}, pause)
		})
	}
}
