package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/fault"
)

// A board is the key-value store of a fake launcher, which the fakeStores of all ranks share.
type board struct {
	value chan string // holds rank 0's value once rank 0 has published it
	alter func(string) string
}

func newBoard() *board {
	return &board{value: make(chan string, 1), alter: func(s string) string { return s }}
}

// A fakeStore is one rank's connection to a board.
type fakeStore struct {
	*board
	rank, size, localRank, localSize int
	exchanged, closed                bool
}

func (s *fakeStore) Layout() (rank, size, localRank, localSize int) {
	return s.rank, s.size, s.localRank, s.localSize
}

func (s *fakeStore) Exchange(ctx context.Context, value string) (string, error) {
	s.exchanged = true
	if s.rank == 0 {
		s.value <- s.alter(value)
	}
	select {
	case v := <-s.value:
		s.value <- v
		return v, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func (s *fakeStore) Close() error {
	s.closed = true
	return nil
}

// joinBy joins the job of a store in an environment. It closes the listener at the end of the test.
func joinBy(t *testing.T, s *fakeStore, private bool, o Options, env ...string) (*Job, error) {
	t.Helper()
	f := finderOf(env...)
	j, err := f.meetBy("fake", "a fake launcher", private, func(context.Context) (launcherStore, error) { return s, nil })
	if err == nil {
		err = f.settings(j)
	}
	if err != nil {
		t.Fatal(err)
	}
	j.Host = f.host()
	j.meeting.options = o
	next, err := j.Join(t.Context())
	if s.closed != (err != nil) {
		t.Errorf("rank %d: closed the connection to the launcher: got %v with error %v", s.rank, s.closed, err)
	}
	if err == nil {
		t.Cleanup(next.Close)
	}
	return next, err
}

// joinAll joins both ranks of a job.
func joinAll(t *testing.T, b *board, localSize int, private bool, env [2][]string) (jobs [2]*Job, errs [2]error) {
	t.Helper()
	var wg sync.WaitGroup
	for r := range jobs {
		wg.Go(func() {
			s := &fakeStore{board: b, rank: r, size: 2, localRank: r % localSize, localSize: localSize}
			jobs[r], errs[r] = joinBy(t, s, private, Options{}, env[r]...)
		})
	}
	wg.Wait()
	return jobs, errs
}

func TestRanksMeetInThePrivateStoreOfALauncher(t *testing.T) {
	jobs, errs := joinAll(t, newBoard(), 2, true, [2][]string{})
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	a, b := jobs[0], jobs[1]
	if a.Rank != 0 || b.Rank != 1 || a.Size != 2 || b.LocalRank != 1 || b.LocalSize != 2 {
		t.Errorf("got %+v and %+v", a, b)
	}
	if a.Name != b.Name || !plainName(a.Name) || !strings.HasPrefix(a.Name, "fake.") {
		t.Errorf("names: got %q and %q, want the same", a.Name, b.Name)
	}
	if len(a.Secret) != 32 || !bytes.Equal(a.Secret, b.Secret) {
		t.Errorf("secrets: got %d and %d bytes, want the same 32", len(a.Secret), len(b.Secret))
	}
	l, err := a.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a.Root != l.Addr().String() || b.Root != a.Root || !isLoopback(a.Root) || !b.Loopback {
		t.Errorf("root: got %s and %s, want the listener's address %v, on loopback", a.Root, b.Root, l.Addr())
	}
	again, errs := joinAll(t, newBoard(), 2, true, [2][]string{})
	if err := errors.Join(errs[:]...); err != nil || again[0].Name == a.Name || bytes.Equal(again[0].Secret, a.Secret) {
		t.Errorf("a second job: got the name and the secret of the first, or %v", err)
	}
}

// On one host, too, a launcher may hand the secret to another user. A job of one rank has no use
// for its secret.
func TestRankZeroWarnsThatOthersMayLearnTheSecret(t *testing.T) {
	warnings := func(j *Job) int { return strings.Count(strings.Join(j.Warnings, "\n"), "TUTTI_SECRET_FILE") }
	const listen = "TUTTI_LISTEN=127.0.0.1"
	for _, localSize := range []int{1, 2} {
		jobs, errs := joinAll(t, newBoard(), localSize, true, [2][]string{{listen}, {listen}})
		if err := errors.Join(errs[:]...); err != nil {
			t.Fatal(err)
		}
		if warnings(jobs[0]) != 1 || warnings(jobs[1]) != 0 {
			t.Errorf("%d on a host: got %q and %q, want one warning of rank 0", localSize, jobs[0].Warnings, jobs[1].Warnings)
		}
	}
	if j, err := joinBy(t, &fakeStore{board: newBoard(), size: 1, localSize: 1}, true, Options{}); err != nil || warnings(j) != 0 {
		t.Errorf("one rank: got %+v, %v, want no warning", j, err)
	}
}

func TestASecretOfTheRanksIsNotPublished(t *testing.T) {
	const secret = "TUTTI_SECRET=" + testSecret
	b := newBoard()
	jobs, errs := joinAll(t, b, 2, true, [2][]string{{secret}, {secret}})
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	value := <-b.value
	if len(jobs[0].Secret) != 16 || !bytes.Equal(jobs[0].Secret, jobs[1].Secret) {
		t.Errorf("got secrets of %d and %d bytes, want the variable's 16", len(jobs[0].Secret), len(jobs[1].Secret))
	}
	if in, err := parseInvitation(value); err != nil || in.secret != nil || !in.guarded {
		t.Errorf("published %q, %v, want no secret", value, err)
	}
	_, errs = joinAll(t, newBoard(), 2, true, [2][]string{{secret}, nil})
	if errs[0] != nil || !errors.Is(errs[1], fault.Refused) || !strings.Contains(errs[1].Error(), "this rank has none") {
		t.Errorf("rank 0 alone has a secret: got %v", errs)
	}
	_, errs = joinAll(t, newBoard(), 2, true, [2][]string{nil, {secret}})
	if errs[0] != nil || !errors.Is(errs[1], fault.Refused) || !strings.Contains(errs[1].Error(), "rank 0 has none") {
		t.Errorf("rank 1 alone has a secret: got %v", errs)
	}
}

func TestAStoreThatIsNotPrivateCarriesNoSecret(t *testing.T) {
	b := newBoard()
	jobs, errs := joinAll(t, b, 2, false, [2][]string{})
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	if in, err := parseInvitation(<-b.value); err != nil || in.secret != nil || in.guarded || jobs[1].Secret != nil {
		t.Errorf("on one host: got %+v, %v, want no secret", in, err)
	}
	// Where this process may use only one core, there is a warning about that, too.
	noSecret := func(j *Job) int { return strings.Count(strings.Join(j.Warnings, "\n"), "no secret:") }
	if !jobs[0].Loopback || noSecret(jobs[0]) != 1 {
		t.Errorf("on one host: got %+v, want a warning, on loopback", jobs[0])
	}
	for _, localSize := range []int{1, -1} {
		s := &fakeStore{board: newBoard(), rank: 1, size: 2, localSize: localSize}
		_, err := joinBy(t, s, false, Options{})
		if !errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), "(umask 077; openssl rand -hex 16 > FILE)") {
			t.Errorf("on several hosts: got %v, want Refused with the command that makes a secret", err)
		}
		if strings.Contains(err.Error(), "\n") || s.exchanged {
			t.Errorf("on several hosts: got %q, want one line, before any exchange", err)
		}
	}
	s := &fakeStore{board: newBoard(), size: 2, localSize: 1}
	if j, err := joinBy(t, s, false, Options{Insecure: true}, "TUTTI_LISTEN=127.0.0.1"); err != nil || j.Secret != nil || noSecret(j) != 1 {
		t.Errorf("insecure: got %+v, %v, want a warning", j, err)
	}
}

// The name of the host must not decide: a host may be called localhost, and Find says localhost if
// the host has no name.
func TestWithoutASecretOnlyTheLayoutKeepsAMeetingOnLoopback(t *testing.T) {
	for _, hostname := range []func() (string, error){
		func() (string, error) { return "localhost", nil },
		func() (string, error) { return "127.0.0.1", nil },
		func() (string, error) { return "", errors.New("no name") },
	} {
		for _, c := range []struct {
			size, localSize int
			refused         bool
		}{{2, 1, true}, {2, -1, true}, {1, 1, false}, {1, -1, false}} {
			s := &fakeStore{board: newBoard(), size: c.size, localSize: c.localSize}
			f := finderOf()
			f.hostname = hostname
			j, err := f.meetBy("fake", "a fake launcher", false, func(context.Context) (launcherStore, error) { return s, nil })
			if err != nil {
				t.Fatal(err)
			}
			j.Host = f.host()
			next, err := j.Join(t.Context())
			switch {
			case c.refused && (!errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), "another host") || s.exchanged):
				t.Errorf("host %s, %+v: got %v, %v, want Refused before any exchange", j.Host, c, next, err)
			case !c.refused && err != nil:
				t.Errorf("host %s, %+v: %v", j.Host, c, err)
			}
			if err == nil {
				if a := next.listener.Addr().String(); !isLoopback(a) {
					t.Errorf("host %s, %+v: listens on %s without a secret, want loopback", j.Host, c, a)
				}
				next.Close()
			}
		}
	}
}

func TestJoinRefusesWhatTheStoreHasChanged(t *testing.T) {
	b := newBoard()
	b.alter = func(s string) string { return s[:len(s)-1] }
	_, errs := joinAll(t, b, 2, true, [2][]string{})
	if !errors.Is(errs[0], fault.Refused) || !strings.Contains(errs[0].Error(), "changes values") {
		t.Errorf("rank 0: got %v, want Refused", errs[0])
	}
	b = newBoard()
	b.value <- "1,x,,80,h"
	if _, err := joinBy(t, &fakeStore{board: b, rank: 1, size: 2, localSize: 2}, true, Options{}); !errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), "malformed") {
		t.Errorf("rank 1: got %v, want Refused", err)
	}
}

func TestJoinGivesUpWhenOtherRanksNeverCallInit(t *testing.T) {
	for env, want := range map[string]time.Duration{"": meetingLimit, "TUTTI_TIMEOUT=7s": 7 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			begin := time.Now()
			_, err := joinBy(t, &fakeStore{board: newBoard(), rank: 1, size: 2, localSize: 2}, true, Options{}, env)
			if !errors.Is(err, fault.Timeout) || !strings.Contains(err.Error(), "not all ranks have called Init") || time.Since(begin) != want {
				t.Errorf("%q: got %v after %v, want Timeout after %v", env, err, time.Since(begin), want)
			}
		})
	}
}

// A timeout of 0 means none, as for every other call.
func TestJoinWaitsForEverIfTheUserWantsThat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := finderOf("TUTTI_TIMEOUT=0")
		s := &fakeStore{board: newBoard(), rank: 1, size: 2, localSize: 2}
		j, err := f.meetBy("fake", "a fake launcher", true, func(context.Context) (launcherStore, error) { return s, nil })
		if err == nil {
			err = f.settings(j)
		}
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(24*time.Hour, cancel)
		if _, err := j.Join(ctx); !errors.Is(err, fault.Canceled) {
			t.Errorf("got %v, want Canceled after a day", err)
		}
	})
}

// A lateContext ends some time after its deadline, as any context does on a busy machine.
type lateContext struct {
	context.Context
	deadline time.Time
}

func (c lateContext) Deadline() (time.Time, bool) { return c.deadline, true }

func TestADeadlineThatEndsTheDialEndsJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j, err := finderOf().meetBy("fake", "a fake launcher", true, func(context.Context) (launcherStore, error) {
			return nil, &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}
		})
		if err != nil {
			t.Fatal(err)
		}
		j.meeting.otherwise = func() *Job { t.Error("asked another source"); return nil }
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := j.Join(lateContext{ctx, time.Now()}); !errors.Is(err, fault.Timeout) {
			t.Errorf("got %v, want Timeout", err)
		}
	})
}

// Four processes that were started by hand under a launcher of one rank have inherited its
// variables.
func TestAMeetingOfOneRankIsRefusedIfAnotherLauncherStartedSeveral(t *testing.T) {
	for env, refused := range map[string]bool{
		"RANK=0 WORLD_SIZE=4 MASTER_ADDR=n0":                                 true,
		"SLURM_STEP_ID=1 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=4":              true,
		"SLURM_STEP_ID=1 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 WORLD_SIZE=1": false,
		"RANK=0 WORLD_SIZE=4 TUTTI_BOOTSTRAP=fake":                           false,
	} {
		s := &fakeStore{board: newBoard(), size: 1, localSize: 1}
		j, err := joinBy(t, s, true, Options{}, strings.Fields(env)...)
		if refused && (!errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), "=4 of ") || !strings.Contains(err.Error(), "by a fake launcher") || s.exchanged) {
			t.Errorf("%s: got %v, %v, want Refused before any exchange", env, j, err)
		}
		if !refused && err != nil {
			t.Errorf("%s: got %v, want a job of one rank", env, err)
		}
	}
}

func TestTheLaunchersErrorNamesTheSource(t *testing.T) {
	j, err := finderOf().meetBy("fake", "a fake launcher", true, func(context.Context) (launcherStore, error) { return nil, errors.New("no answer") })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.Join(t.Context()); !errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), "a fake launcher: no answer") {
		t.Errorf("got %v, want Refused", err)
	}
}

// A connection to a launcher can be used once, and a program may start a second job after the
// first.
func TestASecondJobOfAProcessUsesWhatTheFirstHasLearned(t *testing.T) {
	t.Cleanup(func() { inherited.met, inherited.metBy, inherited.store = nil, "", nil })
	dials := 0
	store := &fakeStore{board: newBoard(), size: 1, localSize: 1}
	find := func() (*Job, error) {
		f := finderOf()
		f.own = true
		return f.meetBy("fake", "a fake launcher", true, func(context.Context) (launcherStore, error) {
			dials++
			return store, nil
		})
	}
	var jobs [2]*Job
	for i := range jobs {
		j, err := find()
		if err != nil {
			t.Fatal(err)
		}
		if jobs[i], err = j.Join(t.Context()); err != nil {
			t.Fatal(err)
		}
		l, err := jobs[i].Listen(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if l.Addr().String() != jobs[i].Root {
			t.Errorf("job %d listens on %v, want %s", i, l.Addr(), jobs[i].Root)
		}
		l.Close()
	}
	if dials != 1 || jobs[0].Root != jobs[1].Root || jobs[0].Name != jobs[1].Name || !bytes.Equal(jobs[0].Secret, jobs[1].Secret) {
		t.Errorf("got %d connections and the jobs %+v, %+v, want one connection and the same job", dials, jobs[0], jobs[1])
	}
	// An Init that fails after Join can be repeated. So the launcher must not be told before that
	// this process no longer needs it.
	if store.closed {
		t.Error("Join has closed the connection to the launcher, want that of Finalize")
	}
	if jobs[1].Finalize(); !store.closed {
		t.Error("Finalize has not closed the connection to the launcher")
	}
	inherited.met = nil
	if j, err := find(); !errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), "start the job again") {
		t.Errorf("after a meeting that failed: got %v, %v, want Refused", j, err)
	}
	if j, err := finderOf().metBefore("fake"); j != nil || err != nil {
		t.Errorf("with a Lookup: got %v, %v, want nil", j, err)
	}
}

// Other ranks keep the address of rank 0 that they reach, so rank 0 must listen on all of them in
// each job.
func TestRankZeroOfSeveralHostsListensOnAllItsAddressesAgain(t *testing.T) {
	t.Cleanup(func() { inherited.met, inherited.metBy, inherited.store = nil, "", nil })
	store := &fakeStore{board: newBoard(), size: 2, localSize: 1}
	f := finderOf()
	f.own = true
	for i := range 2 {
		j, err := f.meetBy("fake", "a fake launcher", true, func(context.Context) (launcherStore, error) { return store, nil })
		if err != nil {
			t.Fatal(err)
		}
		if j, err = j.Join(t.Context()); err != nil {
			t.Fatal(err)
		}
		l, err := j.Listen(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if a := l.Addr().(*net.TCPAddr); !a.IP.IsUnspecified() || port(j.Root) != port(a.String()) {
			t.Errorf("job %d listens on %v, want port %s of all addresses", i, a, port(j.Root))
		}
		l.Close()
		// This machine does not have the address 10.0.0.1, so the next job uses loopback.
		inherited.met.Root = net.JoinHostPort("127.0.0.1", port(j.Root))
	}
	// A job that must stay on loopback does so in spite of an earlier job.
	j := *inherited.met
	j.Loopback = true
	l, err := j.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if !isLoopback(l.Addr().String()) {
		t.Errorf("got %v, want loopback", l.Addr())
	}
}

// If a failed Join closed the connection, the launcher would end this process before the process
// could print its error.
func TestAFailedJoinKeepsTheConnectionOpen(t *testing.T) {
	t.Cleanup(func() { inherited.metBy, inherited.store = "", nil })
	s := &fakeStore{board: newBoard(), rank: 1, size: 2, localSize: 1}
	f := finderOf()
	f.own = true
	j, err := f.meetBy("fake", "a fake launcher", false, func(context.Context) (launcherStore, error) { return s, nil })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.Join(t.Context()); !errors.Is(err, fault.Refused) || s.closed || inherited.store != s {
		t.Errorf("got %v, closed %v, want Refused and an open connection", err, s.closed)
	}
}

func TestFirstThatAcceptsSkipsAddressesThatRefuse(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refusing := free.Addr().String()
	free.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if got := firstThatAccepts(t.Context(), []string{refusing, l.Addr().String()}); got != l.Addr().String() {
		t.Errorf("got %s, want %v", got, l.Addr())
	}
	if got := firstThatAccepts(t.Context(), []string{refusing}); got != refusing {
		t.Errorf("got %s, want %s", got, refusing)
	}
}

func TestReachableHostsAreNotLoopback(t *testing.T) {
	if got := strings.Join(finderOf().reachableHosts(t.Context()), " "); got != "10.0.0.1 n1.lab" {
		t.Errorf("got %s, want 10.0.0.1 n1.lab", got)
	}
}

func TestAnInvitationFitsIntoAStore(t *testing.T) {
	in := invitation{token: strings.Repeat("a", tokenDigits), secret: make([]byte, 32), port: "65535"}
	for range maxHosts - 1 {
		in.hosts = append(in.hosts, strings.Repeat("ffff:", 7)+"ffff")
	}
	in.hosts = append(in.hosts, strings.Repeat("h", 64))
	text := in.String()
	if len(text) > maxInvitation || strings.ContainsAny(text, " ;\n=") {
		t.Errorf("got %d bytes, %q", len(text), text)
	}
	got, err := parseInvitation(text)
	if err != nil || len(got.hosts) != maxHosts || !bytes.Equal(got.secret, in.secret) || got.addrs()[0] != "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535" {
		t.Errorf("got %+v, %v", got, err)
	}
	in.hosts = slices.Repeat(in.hosts[maxHosts-1:], maxHosts)
	if text := in.String(); len(text) > maxInvitation || strings.Count(text, "h,") < 4 {
		t.Errorf("long names: got %d bytes, %q", len(text), text)
	}
}

func FuzzParseInvitation(f *testing.F) {
	f.Add("1,00112233445566778899aabbccddeeff,,4000,n1")
	f.Add("1,00112233445566778899aabbccddeeff,-,4000,::1,10.0.0.1,n1.lab")
	f.Add("1,00112233445566778899aabbccddeeff,00112233445566778899aabbccddeeff,1,a,b,c,d,e,f,g,h,i")
	f.Fuzz(func(t *testing.T, text string) {
		in, err := parseInvitation(text)
		if err != nil {
			return
		}
		for _, a := range in.addrs() {
			if err := checkAddr(a); err != nil {
				t.Errorf("accepted %q: %v", a, err)
			}
		}
		if !plainName("pmi1." + in.token) {
			t.Errorf("the token %q is no part of a name", in.token)
		}
		again, err := parseInvitation(in.String())
		if err != nil || again.String() != in.String() {
			t.Errorf("%q becomes %q, %v", text, again, err)
		}
	})
}

func TestARankOnOneCoreOfSeveralIsBound(t *testing.T) {
	for _, c := range []struct {
		usable int
		online string
		want   bool
	}{
		{1, "0-3\n", true},
		{1, "0,2\n", true},
		{1, "0\n", false},
		{2, "0-3\n", false},
	} {
		if got := boundToOneCore(c.usable, c.online); got != c.want {
			t.Errorf("%d usable of %q: got %v, want %v", c.usable, c.online, got, c.want)
		}
	}
}
