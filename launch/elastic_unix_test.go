//go:build unix

package launch

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tutti-go/tutti/internal/cpu"
	"github.com/tutti-go/tutti/internal/jobca"
	"github.com/tutti-go/tutti/internal/store"
	"github.com/tutti-go/tutti/launch/internal/placement"
	"github.com/tutti-go/tutti/launch/internal/remote"
)

// credentialsOf returns the credentials that the record holds for a process.
func credentialsOf(t *testing.T, k *rank) *jobca.Bundle {
	t.Helper()
	e, err := k.link.own.Get(t.Context(), store.CredentialsKey)
	if err != nil {
		t.Fatal(err)
	}
	b, err := jobca.ParseBundle(e.Value)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// connects reports whether two ranks accept each other under TLS.
func connects(t *testing.T, client, server *jobca.Credentials) bool {
	t.Helper()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	served := make(chan error, 1)
	go func() { served <- tls.Server(b, server.Config()).HandshakeContext(t.Context()) }()
	err := tls.Client(a, client.Config()).HandshakeContext(t.Context())
	a.Close()
	return err == nil && <-served == nil
}

// A process that is no member of an epoch must not have the epoch's secret. The process and the
// epoch's ranks must refuse each other's certificates.
func TestAnEvictedProcessIsRefusedByTheNextEpoch(t *testing.T) {
	ca, err := jobca.New("job-x")
	if err != nil {
		t.Fatal(err)
	}
	r := &run{job: &Job{}, ca: ca, epochs: &epochs{membership: newMembership(&Elastic{Min: 1, Max: 3}), record: store.NewMemory()}}
	r.epochs.begin([]int{0, 1, 0})
	for id := range 3 {
		r.ranks = append(r.ranks, &rank{slot: id, process: id, link: &link{own: store.NewMemory()}})
	}
	r.epochs.epoch = 0
	if err := r.begin([]*member{{id: 0, addr: "host:1"}, {id: 1, slot: 1, addr: "host:2"}}); err != nil {
		t.Fatal(err)
	}
	evicted, before := credentialsOf(t, r.ranks[0]), credentialsOf(t, r.ranks[1])
	if !connects(t, evicted.Credentials, before.Credentials) || !bytes.Equal(evicted.Secret, before.Secret) {
		t.Fatal("the ranks of the first epoch do not accept each other")
	}
	r.epochs.epoch = 1
	if err := r.begin([]*member{{id: 1, slot: 1, addr: "host:2"}, {id: 2, slot: 2, addr: "host:3"}}); err != nil {
		t.Fatal(err)
	}
	survivor, newcomer := credentialsOf(t, r.ranks[1]), credentialsOf(t, r.ranks[2])
	if !connects(t, survivor.Credentials, newcomer.Credentials) || !bytes.Equal(survivor.Secret, newcomer.Secret) {
		t.Error("the ranks of the second epoch do not accept each other")
	}
	for name, old := range map[string]*jobca.Bundle{"evicted process": evicted, "survivor's old certificate": before} {
		if connects(t, old.Credentials, newcomer.Credentials) || connects(t, newcomer.Credentials, old.Credentials) {
			t.Errorf("%s: got accepted, want refused", name)
		}
		if bytes.Equal(old.Secret, newcomer.Secret) {
			t.Errorf("%s: got the secret of the next epoch", name)
		}
	}
	if p, err := r.epochs.record.Get(t.Context(), store.AddressesKey); err != nil || string(p.Value) != "host:2\nhost:3\n" {
		t.Errorf("addresses: got %q, %v", p.Value, err)
	}
	var e store.Epoch
	entry, err := r.epochs.record.Get(t.Context(), store.EpochKey)
	if err != nil || json.Unmarshal(entry.Value, &e) != nil || entry.Version != 2 {
		t.Fatalf("record: got version %d, %q, %v", entry.Version, entry.Value, err)
	}
	if e.Number != 1 || e.Root != "host:2" || !slices.Equal(e.Members, []int{1, 2}) || !slices.Equal(e.Hosts, []int{1, 0}) {
		t.Errorf("record: got %+v, want epoch 1 of processes 1 and 2, on hosts 1 and 0", e)
	}
}

// If a member cannot get its certificate, no member learns of the epoch, and the job ends.
func TestAnEpochThatCannotBeWrittenEndsTheJob(t *testing.T) {
	ca, err := jobca.New("job-x")
	if err != nil {
		t.Fatal(err)
	}
	full := store.NewMemory()
	for i := range store.MaxKeys {
		if ok, err := full.CompareAndSwap(t.Context(), fmt.Sprint(i), 0, nil); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	r := &run{
		job: &Job{Quiet: true}, ca: ca, policy: newPolicy(1, 0, 0), startedAt: time.Now(),
		epochs: &epochs{membership: newMembership(&Elastic{Min: 1, Max: 1}), record: store.NewMemory()},
		ranks:  []*rank{{link: &link{own: full}}},
	}
	r.epochs.begin([]int{0})
	r.epochs.started(0, 0, 0)
	r.epochs.ready(0, "host:1", 0)
	r.advance()
	if w := r.epochs.written; w.Members != nil || !strings.Contains(w.Failed, "certificate") || r.policy.phase != failing || r.failed == "" {
		t.Errorf("got %+v in phase %v, want no members, and a failure", w, r.policy.phase)
	}
}

func TestDiscoveryAddsUpTheSlotsOfEachHost(t *testing.T) {
	for text, want := range map[string]string{
		"localhost:3\n": "[{localhost 3 0 []}]", "localhost\n\nfar:2\n127.0.0.1:2": "[{localhost 3 0 []} {far 2 0 []}]",
		"": "[]", " far:1 \r\n": "[{far 1 0 []}]",
	} {
		if got, err := parseSlots(text); fmt.Sprint(got) != want || err != nil {
			t.Errorf("%q: got %v, %v, want %s", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"localhost:0": "want a number", "far:*": `host "far": got no number of slots`, "localhost:x": "want a number", "-oProxyCommand=x": "host name",
	} {
		if _, err := parseSlots(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

// A broken discovery script often prints nothing and exits with 0. This must not count as 0 slots.
func TestDiscoveryOfTooFewSlotsIsAnError(t *testing.T) {
	for script, want := range map[string]string{
		"echo localhost:2": "", "true": "got 0, want at least 2 (--min-np)", "echo localhost": "got 1, want at least 2 (--min-np)",
	} {
		r := &run{job: &Job{Elastic: &Elastic{Min: 2, Discovery: script}}, base: []string{"PATH=/bin:/usr/bin"}}
		got := ""
		if _, err := r.discover(t.Context()); err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%q: got %q, want %q", script, got, want)
		}
	}
}

// A helper that a script leaves running keeps the script's output open. discover must return
// without waiting for the helper, and must not kill the helper.
func TestDiscoveryDoesNotWaitForHelpers(t *testing.T) {
	t.Parallel()
	helper := filepath.Join(t.TempDir(), "helper")
	r := &run{job: &Job{Elastic: &Elastic{Discovery: "sleep 1000 & echo $! >" + helper + "; echo localhost:2"}}, base: os.Environ()}
	hosts, err := r.discover(t.Context())
	if slotsOf(hosts) != 2 || err != nil {
		t.Errorf("got %v, %v, want 2 slots", hosts, err)
	}
	text, err := os.ReadFile(helper)
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 0 {
		t.Fatalf("process of the helper: got %q, %v", text, err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Errorf("helper: got %v, want a process that runs", err)
	}
}

func TestDiscoveryOfTooMuchIsAnError(t *testing.T) {
	r := &run{job: &Job{Elastic: &Elastic{Discovery: "yes localhost"}}, base: os.Environ()}
	if hosts, err := r.discover(t.Context()); err == nil {
		t.Errorf("got %d hosts, want an error", len(hosts))
	}
}

// Hosts without a number of slots have one slot per core, so their processors decide how many slots
// each host has and how many ranks begin.
func TestHostsWithoutSlotsHaveOnePerCore(t *testing.T) {
	two := []cpu.Thread{{ID: 0, Core: 0}, {ID: 1, Core: 1}}
	hosts := []placement.Host{{Name: "far", CPUs: two}, {Name: "farther", CPUs: two}, {Name: "third", Slots: 1}}
	far, farther, third := &remoteHost{hostName: "far"}, &remoteHost{hostName: "farther"}, &remoteHost{hostName: "third"}
	place := func(e Elastic) (*run, error) {
		r := &run{job: &Job{}, hosts: []host{new(localHost), far, farther, third}, epochs: &epochs{membership: newMembership(&e)}}
		r.others.byIndex = map[int]host{0: far, 1: farther, 2: third}
		r.info.places = []placement.Assignment{{Host: 0}, {Host: 0}, {Host: 2}, {Host: 2}}
		return r, r.placeSlots(hosts)
	}
	for _, c := range []struct {
		Elastic
		min, first int
	}{
		{Elastic{Restarts: 1}, 4, 0},
		{Elastic{Min: 1, First: MaxRanks}, 1, 4},
		{Elastic{Min: 2}, 2, 0},
	} {
		r, err := place(c.Elastic)
		if err != nil {
			t.Fatal(err)
		}
		if s := r.epochs; s.min != c.min || s.max != 4 || s.first != c.first {
			t.Errorf("%+v: got from %d to %d ranks, at first %d, want from %d to 4, and %d", c.Elastic, s.min, s.max, s.first, c.min, c.first)
		}
		var slots []int
		for _, h := range r.epochs.found {
			slots = append(slots, h.Slots)
		}
		if want := []int{2, 2, 2}; !slices.Equal(slots, want) {
			t.Errorf("got slots %v, want %v", slots, want)
		}
	}
	if _, err := place(Elastic{Min: 5}); err == nil || err.Error() != "with --min-np: got 5, want at most 4, the ranks of the job" {
		t.Errorf("more than all ranks: got %v", err)
	}
}

// A host may be lost after it has answered, while other hosts have not answered. The job still
// waits for the other hosts.
func TestAHostThatHasAnsweredIsCountedOnce(t *testing.T) {
	a, b := &remoteHost{hostName: "a"}, &remoteHost{hostName: "b"}
	r := &run{
		job: &Job{Quiet: true}, hosts: []host{new(localHost), a, b}, ranks: []*rank{{host: a}, {host: b}},
		epochs: &epochs{membership: newMembership(&Elastic{Min: 1, Max: 2})},
	}
	r.epochs.begin([]int{1, 2})
	r.others.hosts, r.others.pending = []*remoteHost{a, b}, 2
	r.prepared(a, new(remote.Prepared))
	r.lost(a, errors.New("a: the connection has ended"))
	if r.others.pending != 1 || r.startErr != nil {
		t.Errorf("got %d hosts that have not answered, and %v, want 1", r.others.pending, r.startErr)
	}
}

func TestElasticOptions(t *testing.T) {
	for line, want := range map[string]Elastic{
		// The number of ranks is not known yet.
		"-H far:2 -np 2 --bind-to core --enable-recovery p": {Min: 1, First: MaxRanks},
		"-H far:2 -np 2 --bind-to core --restart-ranks 5 p": {Restarts: 5},
		"-H far:2 -np 2 --bind-to core --min-np 1 p":        {Min: 1},

		"-np 3 --enable-recovery p":                               {Min: 1, Max: 3, First: 3},
		"-np 3 --restart-ranks 5 p":                               {Min: 3, Max: 3, Restarts: 5},
		"-np 3 --min-np 2 p":                                      {Min: 2, Max: 3},
		"-np 3 --host-discovery-script x p":                       {Min: 3, Max: MaxRanks, Discovery: "x"},
		"-np 3 --min-np 1 --max-np 4 --host-discovery-script x p": {Min: 1, Max: 4, Discovery: "x"},
		"-np 3 --default-hostfile f --host-discovery-script x p":  {Min: 3, Max: MaxRanks, Discovery: "x"},
	} {
		req, err := parse(strings.Fields(line), nil)
		if err != nil {
			t.Errorf("%q: %v", line, err)
			continue
		}
		got := req.job.Elastic
		if got == nil || got.Min != want.Min || got.Max != want.Max || got.First != want.First || got.Restarts != want.Restarts || got.Discovery != want.Discovery || !req.job.Recovery {
			t.Errorf("%q: got %+v, want %+v", line, got, want)
		}
	}
	if req, err := parse(strings.Fields("-np 3 p"), nil); err != nil || req.job.Elastic != nil {
		t.Errorf("without options: got %+v, %v, want a job whose ranks do not change", req.job.Elastic, err)
	}
	for line, want := range map[string]string{
		"-np 3 --max-np 4 p":                           "--host-discovery-script",
		"-np 3 --elastic-timeout 0 p":                  "want more than 0",
		"-np 3 --min-np 4 p":                           "--min-np: got 4, want at most 3",
		"-np 3 --restart-ranks -1 p":                   "want a number from 0",
		"-np 3 --restart-ranks 1 --timeline f p":       "--timeline",
		"--host-discovery-script x -np 1 p : -np 1 q":  "got 2 programs, want one",
		"-np 1 --blacklist-cooldown-range 5 1 p":       "the smaller time first",
		"-H a:1 --host-discovery-script x p":           "let the script print these hosts",
		"--hostfile f --host-discovery-script x p":     "let the script print these hosts",
		"-np 3 --max-np 2 --host-discovery-script x p": "--min-np: got 3, want at most 2 (--max-np)",
	} {
		if _, err := parse(strings.Fields(line), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", line, err, want)
		}
	}
}
