package etcd

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/tutti-go/tutti/bootstrap"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/internal/test/tlstest"
)

// A server is an etcd on loopback.
type server struct {
	addr    string
	dir     string // its data
	process *os.Process
	ended   chan struct{} // closed when the process has ended
	admin   *clientv3.Client
}

// serve starts an etcd, with more options, until the end of the test. The test's own client uses
// the configuration c. If there is no program etcd, serve skips the test.
func serve(t *testing.T, c Config, options ...string) *server {
	t.Helper()
	leak.Check(t)
	return serveFrom(t, t.TempDir(), c, options...)
}

// serveFrom is like serve, for an etcd that keeps its data in the given directory.
func serveFrom(t *testing.T, dir string, c Config, options ...string) *server {
	t.Helper()
	program, err := exec.LookPath("etcd")
	if err != nil {
		// Reason: nothing else can take the place of the server; CI installs Debian's etcd-server.
		t.Skip("no program etcd here: install Debian's package etcd-server")
	}
	scheme := "http://"
	if c.TLS != nil {
		scheme = "https://"
	}
	for range 5 { // another process may take the ports before etcd does
		s := &server{addr: freeAddr(t), dir: dir, ended: make(chan struct{})}
		peer := "http://" + freeAddr(t)
		command := exec.Command(program, append([]string{
			"--data-dir", dir, "--listen-client-urls", scheme + s.addr, "--advertise-client-urls", scheme + s.addr,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default=" + peer,
		}, options...)...)
		var log strings.Builder
		command.Stderr = &log
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		s.process = command.Process
		go func() {
			command.Wait()
			close(s.ended)
		}()
		t.Cleanup(func() {
			s.process.Kill()
			<-s.ended
		})
		c.Endpoints, c.Logger = []string{s.addr}, zap.NewNop()
		if s.admin, err = clientv3.New(c); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.admin.Close() })
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-s.ended
			cancel()
		}()
		if _, err = s.admin.Get(ctx, "x"); err == nil { // the client waits for the server
			return s
		}
		<-s.ended
		t.Logf("etcd has ended: %s", log.String())
	}
	t.Fatal("etcd: it does not start")
	return nil
}

// freeAddr returns an address of loopback where nobody listens.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// keys returns all keys.
func (s *server) keys(t *testing.T) (keys []string) {
	t.Helper()
	got, err := s.admin.Get(t.Context(), "/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range got.Kvs {
		keys = append(keys, string(kv.Key))
	}
	return keys
}

// secret is the secret of the jobs, in hexadecimal digits.
const secret = "00112233445566778899aabbccddeeff"

// join joins a job as a rank, by the variables that a user sets.
func (s *server) join(ctx context.Context, st *store, env ...string) (*bootstrap.Job, error) {
	env = append(env, "TUTTI_STORE=etcd://"+s.addr+"/the/prefix", "TUTTI_LISTEN=127.0.0.1", "TUTTI_SECRET="+secret)
	j, err := bootstrap.Find(bootstrap.Options{Stores: []bootstrap.Store{st}, Lookup: func(name string) (string, bool) {
		for _, e := range env {
			if v, ok := strings.CutPrefix(e, name+"="); ok {
				return v, true
			}
		}
		return "", false
	}})
	if err != nil {
		return nil, err
	}
	return j.Join(ctx)
}

// entries opens the entries of the job "job.0" in the prefix /the/prefix, until the end of the test.
func (s *server) entries(t *testing.T, st *store, rank, size int) bootstrap.Entries {
	t.Helper()
	e, err := st.Open(t.Context(), "etcd://"+s.addr+"/the/prefix/", "job.0", rank, size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

func TestRanksOfTwoJobsMeetAtOnce(t *testing.T) {
	s := serve(t, Config{})
	var jobs [2][3]*bootstrap.Job
	var wg sync.WaitGroup
	for k, name := range []string{"a", "b"} {
		for r, rank := range []string{"TUTTI_RANK=0 TUTTI_SIZE=3", "RANK=1 WORLD_SIZE=3", "TUTTI_RANK=2 TUTTI_SIZE=3"} {
			wg.Go(func() {
				var err error
				if jobs[k][r], err = s.join(t.Context(), newStore(Config{}), append(strings.Fields(rank), "TUTTI_JOB="+name)...); err != nil {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	for _, job := range jobs {
		t.Cleanup(job[0].Close)
		for r, j := range job {
			if j.Rank != r || j.Size != 3 || j.Root != job[0].Root {
				t.Errorf("rank %d: got %+v, want rank 0's address %s", r, j, job[0].Root)
			}
		}
	}
	if jobs[0][0].Root == jobs[1][0].Root {
		t.Errorf("two jobs: got one address %s", jobs[0][0].Root)
	}
	if left := s.keys(t); len(left) > 0 {
		t.Errorf("left behind: got %v, want no keys", left)
	}
}

// Readers of the cluster must not learn the secret of a job.
func TestNoKeyHoldsTheSecret(t *testing.T) {
	s := serve(t, Config{})
	limited, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := s.join(limited, newStore(Config{}), "TUTTI_RANK=0", "TUTTI_SIZE=2", "TUTTI_SECRET="); !errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), "TUTTI_SECRET_FILE") {
		t.Errorf("no secret: got %v, want Refused, and how to make a secret", err)
	}
	watch := s.admin.Watch(t.Context(), "/", clientv3.WithPrefix())
	var wg sync.WaitGroup
	for _, rank := range []string{"TUTTI_RANK=0", "TUTTI_RANK=1"} {
		wg.Go(func() {
			j, err := s.join(t.Context(), newStore(Config{}), rank, "TUTTI_SIZE=2")
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(j.Close)
			if want, _ := hex.DecodeString(secret); !bytes.Equal(j.Secret, want) {
				t.Errorf("%s: got the secret %x, want %x", rank, j.Secret, want)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	for removed, texts := 0, 0; removed < 2; {
		for _, event := range (<-watch).Events {
			text := string(event.Kv.Value)
			switch {
			case event.Type == clientv3.EventTypeDelete:
				removed++
			case strings.HasSuffix(string(event.Kv.Key), "/0"):
				texts++
			}
			if strings.Contains(text, secret) || removed == 2 && texts == 0 {
				t.Errorf("%s: got %q after %d texts of rank 0, want its address, and no secret", event.Kv.Key, text, texts)
			}
		}
	}
}

func TestARankThatGivesUpRemovesItsKey(t *testing.T) {
	s := serve(t, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	watch := s.admin.Watch(t.Context(), "/the/prefix/", clientv3.WithPrefix())
	go func() {
		<-watch // the rank's key
		cancel()
	}()
	if _, err := s.join(ctx, newStore(Config{}), "TUTTI_RANK=1", "TUTTI_SIZE=2"); !errors.Is(err, fault.Canceled) || !strings.Contains(err.Error(), "rank 0 or another rank has not come") {
		t.Errorf("got %v, want Canceled, and for whom it waits", err)
	}
	if left := s.keys(t); len(left) > 0 {
		t.Errorf("left behind: got %v, want no keys", left)
	}
}

// The entries of a killed rank end with its lease. Close without Remove looks the same to etcd.
func TestTheKeyOfAKilledRankGoesAway(t *testing.T) {
	s := serve(t, Config{})
	st := newStore(Config{})
	st.lease = 6 * time.Second // longer than this process may wait for a processor
	e := s.entries(t, st, 1, 2)
	if err := e.Write(t.Context(), "1 NONCE -"); err != nil {
		t.Fatal(err)
	}
	if got := s.keys(t); !slices.Equal(got, []string{"/the/prefix/job.0/1"}) {
		t.Errorf("got %v, want the key of rank 1", got)
	}
	watch := s.admin.Watch(t.Context(), "/the/prefix/", clientv3.WithPrefix())
	e.Close()
	if got := <-watch; len(got.Events) != 1 || got.Events[0].Type != clientv3.EventTypeDelete {
		t.Errorf("got %v, want the end of the key", got)
	}
}

func TestARankSeesTheKeysThatConcernIt(t *testing.T) {
	s := serve(t, Config{})
	put := func(key, text string) {
		t.Helper()
		if _, err := s.admin.Put(t.Context(), key, text); err != nil {
			t.Fatal(err)
		}
	}
	next := func(e bootstrap.Entries, want string) {
		t.Helper()
		for { // news of several keys may come one by one
			got, err := e.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if text := strings.Join(got, "|"); text == want {
				return
			} else if len(text) > len(want) {
				t.Fatalf("got %q, want %q", text, want)
			}
		}
	}
	put("/the/prefix/job.0/2", "old")
	put("/the/prefix/job.0/02", "no rank")
	put("/the/prefix/job.0/3", "no rank of this job")
	put("/the/prefix/job.00/1", "another job")
	zero, one := s.entries(t, newStore(Config{}), 0, 3), s.entries(t, newStore(Config{}), 1, 3)
	next(zero, "||old")
	next(one, "||") // rank 2's text is not visible to rank 1
	if err := one.Write(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	next(one, "|b|")
	next(zero, "|b|old")
	put("/the/prefix/job.0/2", "new")
	next(zero, "|b|new")
	if err := zero.Write(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	next(one, "a|b|")
	put("/the/prefix/job.0/1", "another process")
	next(one, "a|another process|")
	next(zero, "a|another process|new")
	if err := zero.Remove(t.Context(), 0, 1, 2); err != nil {
		t.Fatal(err)
	}
	if got, err := one.Next(t.Context()); err != nil || got[0] != "" && got[1] != "" {
		t.Errorf("got %q and %v, want the removal", got, err)
	}
	if got := s.keys(t); len(got) != 3 {
		t.Errorf("got %v, want the three keys of no rank of the job", got)
	}
}

// A change that is older than the client's own write must be ignored.
func TestOlderTextsAreIgnored(t *testing.T) {
	e := &entries{dir: "/p/job.0/", texts: make([]string, 2), revisions: make([]int64, 2)}
	e.set("/p/job.0/1", "own", 7)
	e.changed = false
	e.set("/p/job.0/1", "older", 6)
	e.set("/p/job.0/1", "own", 7)
	if e.texts[1] != "own" || e.changed {
		t.Errorf("got %q, changed %v, want own and no change", e.texts[1], e.changed)
	}
	e.set("/p/job.0/1", "newer", 8)
	if e.texts[1] != "newer" || !e.changed {
		t.Errorf("got %q, changed %v, want newer and a change", e.texts[1], e.changed)
	}
}

// forward forwards connections to the server that runs at the time, until the end of the test. It
// returns the address of the forwarder, which does not change when the server does.
func forward(t *testing.T, to *atomic.Pointer[server]) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		conns.Wait()
	})
	conns.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to.Load().addr)
			if err != nil {
				in.Close()
				continue
			}
			for _, ends := range [][2]net.Conn{{in, out}, {out, in}} {
				conns.Go(func() {
					// Without a pipe of the kernel, which the runtime would keep.
					io.Copy(struct{ io.Writer }{ends[0]}, struct{ io.Reader }{ends[1]})
					in.Close()
					out.Close()
				})
			}
		}
	})
	return l.Addr().String()
}

// A rank that waits for others does not mind a restart of etcd, in which its key and lease are kept.
func TestRanksOutlastARestartOfEtcd(t *testing.T) {
	s := serve(t, Config{})
	var current atomic.Pointer[server]
	current.Store(s)
	through := &server{addr: forward(t, &current)}
	st := newStore(Config{})
	st.lease, st.call = 10*time.Minute, time.Minute // this process may wait for a processor
	one := through.entries(t, st, 1, 2)
	if err := one.Write(t.Context(), "1 NONCE -"); err != nil {
		t.Fatal(err)
	}
	s.process.Kill()
	<-s.ended
	current.Store(serveFrom(t, s.dir, Config{}))
	zero := through.entries(t, st, 0, 2)
	wait := func(e bootstrap.Entries, rank int, want string) {
		t.Helper()
		for {
			texts, err := e.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if texts[rank] == want {
				return
			}
		}
	}
	wait(zero, 1, "1 NONCE -")
	if err := zero.Write(t.Context(), "1 TOKEN value NONCE"); err != nil {
		t.Fatal(err)
	}
	wait(one, 0, "1 TOKEN value NONCE")
	if err := one.Write(t.Context(), "1 NONCE TOKEN"); err != nil {
		t.Fatal(err)
	}
	wait(zero, 1, "1 NONCE TOKEN")
}

func TestAnEtcdThatDiesIsAnError(t *testing.T) {
	s := serve(t, Config{})
	st := newStore(Config{})
	st.lease = 2 * time.Second
	e := s.entries(t, st, 1, 2)
	if _, err := e.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.process.Kill()
	if _, err := e.Next(t.Context()); err == nil || !strings.Contains(err.Error(), "etcd at "+s.addr+": the lease of this rank was not renewed") {
		t.Errorf("Next: got %v, want that etcd has not renewed the lease", err)
	}
	st.call = time.Millisecond
	if _, err := s.join(t.Context(), st, "TUTTI_RANK=0", "TUTTI_SIZE=2"); !errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), "TUTTI_STORE: etcd at "+s.addr+": no connection within 1ms") || strings.Contains(err.Error(), "\n") {
		t.Errorf("a new rank: got %v, want Refused in one line, and that there is no connection", err)
	}
}

func TestAnEtcdThatNeverAnswersIsAnError(t *testing.T) {
	leak.Check(t)
	l, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, user := range []string{"", "ann"} {
		st := newStore(Config{Username: user, Password: user})
		st.call = 10 * time.Millisecond
		_, err = st.Open(t.Context(), "etcd://"+l.Addr().String()+"/p", "job.0", 0, 2)
		if err == nil || !strings.Contains(err.Error(), "no connection within 10ms") {
			t.Errorf("user %q: got %v, want that there is no connection", user, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err = newStore(Config{}).Open(ctx, "etcd://"+l.Addr().String()+"/p", "job.0", 0, 2); !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "no connection") {
		t.Errorf("got %v, want the deadline of the context", err)
	}
}

func TestTLSAndUserComeFromTheVariablesOfEtcdctl(t *testing.T) {
	id := tlstest.New(t)
	t.Setenv("ETCDCTL_CACERT", id.CA)
	t.Setenv("ETCDCTL_CERT", id.Cert)
	t.Setenv("ETCDCTL_KEY", id.Key)
	own, err := newStore(Config{}).complete(nil)
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, Config{TLS: own.TLS}, "--cert-file", id.Cert, "--key-file", id.Key, "--trusted-ca-file", id.CA, "--client-cert-auth")
	ctx := t.Context()
	_, err1 := s.admin.RoleAdd(ctx, "root")
	_, err2 := s.admin.UserAdd(ctx, "root", "pass:word")
	_, err3 := s.admin.UserGrantRole(ctx, "root", "root")
	_, err4 := s.admin.AuthEnable(ctx)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	join := func() error {
		j, err := s.join(ctx, newStore(Config{}), "TUTTI_RANK=0", "TUTTI_SIZE=1")
		if err == nil {
			j.Close()
		}
		return err
	}
	for user, want := range map[string]string{"root:pass:word": "", "root": "", "root:wrong": "authentication failed"} {
		t.Setenv("ETCDCTL_USER", user)
		t.Setenv("ETCDCTL_PASSWORD", "pass:word")
		if err := join(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("user %q: got %v, want %q", user, err, want)
		}
	}
	t.Setenv("ETCDCTL_KEY", "/no/such/file")
	if err := join(); err == nil || !strings.Contains(err.Error(), "ETCDCTL_KEY: open /no/such/file") {
		t.Errorf("no such key: got %v, want the variable and the file", err)
	}
}

func TestOptionsOfTheProgramReplaceTheVariables(t *testing.T) {
	t.Setenv("ETCDCTL_USER", "env:pass")
	for want, c := range map[string]Config{
		"env:pass": {}, "own:own": {Username: "own", Password: "own"}, ":": {Token: "token"}, ":tls": {TLS: new(tls.Config)},
	} {
		got, err := newStore(c).complete(nil)
		if err != nil || got.Username+":"+got.Password != strings.TrimSuffix(want, "tls") {
			t.Errorf("got the user %s:%s and %v, want %s", got.Username, got.Password, err, want)
		}
	}
}

func TestParse(t *testing.T) {
	for url, want := range map[string]string{
		"etcd://n1:2379/p":                "n1:2379 /p",
		"etcd://n1:2379,[::1]:2379/p/q/":  "n1:2379 [::1]:2379 /p/q",
		"etcd://n1:2379":                  "",
		"etcd://n1:2379/":                 "",
		"etcd:///p":                       "",
		"etcd://n1/p":                     "",
		"etcd://:2379/p":                  "",
		"etcd://n1:/p":                    "",
		"etcd://user:secret@n1:2379/p":    "",
		"etcd:n1:2379/p":                  "",
		"etcd://n1:2379,/p":               "",
		"etcd://n1:2379, etcd://n2:237/p": "",
	} {
		endpoints, prefix, err := parse(url)
		if got := strings.Join(append(endpoints, prefix), " "); err == nil && got != want || (err != nil) != (want == "") {
			t.Errorf("%s: got %q and %v, want %q", url, got, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error shows the password: %v", url, err)
		}
	}
}
