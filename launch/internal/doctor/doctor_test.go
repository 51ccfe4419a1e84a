package doctor

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"
)

func TestExamineMeasuresLinks(t *testing.T) {
	r := Examine(context.Background(), Options{Interface: "=lo", Targets: []Target{
		{Name: "127.0.0.1", Slots: 1, Start: Local}, {Name: "127.0.0.2", Slots: 1, Start: Local}}})
	for _, h := range r.Hosts {
		if h.Facts == nil || h.Listening == nil || h.Error != "" {
			t.Fatalf("%s: got %+v, want facts and a listener", h.Name, h)
		}
		if c := h.Clock; c == nil || c.Offset.Abs() > c.Within {
			t.Errorf("%s: got the clock %+v, want that of this process", h.Name, c)
		}
	}
	if len(r.Pairs) != 2 {
		t.Fatalf("got links %+v, want two", r.Pairs)
	}
	for _, l := range r.Pairs {
		if l.Trouble != "" || l.Latency <= 0 || l.Bandwidth <= 0 || l.From == l.To {
			t.Errorf("got %+v, want a measured link", l)
		}
	}
}

// misbehaving returns a Start whose probe is a function.
func misbehaving(probe func(net.Conn)) func(context.Context) (io.ReadWriteCloser, error) {
	return func(context.Context) (io.ReadWriteCloser, error) {
		here, there := net.Pipe()
		go probe(there)
		return here, nil
	}
}

// No probe may keep the examination from its end, and each failure names its host.
func TestExamineNamesHostsWhoseProbesFail(t *testing.T) {
	for name, c := range map[string]struct {
		start func(context.Context) (io.ReadWriteCloser, error)
		want  string
	}{
		"no start":      {func(context.Context) (io.ReadWriteCloser, error) { return nil, errors.New("no ssh") }, "start: no ssh"},
		"silence":       {misbehaving(func(c net.Conn) { io.Copy(io.Discard, c) }), "facts: got no answer within 30s"},
		"reads nothing": {misbehaving(func(c net.Conn) {}), "facts: got no answer within 30s"},
		"ends":          {misbehaving(func(c net.Conn) { bufio.NewReader(c).ReadString('\n'); c.Close() }), "facts: unexpected EOF"},
		"a greeting":    {misbehaving(func(c net.Conn) { bufio.NewReader(c).ReadString('\n'); fmt.Fprintln(c, "Welcome!") }), `facts: got "Welcome!", want the answer of tuttirun probe`},
		"a long line": {misbehaving(func(c net.Conn) {
			bufio.NewReader(c).ReadString('\n')
			io.Copy(c, strings.NewReader(strings.Repeat("x", maxLine+1)))
		}), "facts: bufio.Scanner: token too long"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := Examine(context.Background(), Options{Targets: []Target{{Name: "n1", Start: c.start}}})
				if len(r.Faults) != 1 || r.Faults[0].Host != "n1" || !strings.HasPrefix(r.Faults[0].What, c.want) {
					t.Errorf("got %+v, want %q", r.Faults, c.want)
				}
			})
		})
	}
}

func TestExamineEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(context.Background())
		time.AfterFunc(time.Second, func() { cancel(errors.New("interrupted")) })
		begin := time.Now()
		r := Examine(ctx, Options{Targets: []Target{{Name: "n1", Start: misbehaving(func(c net.Conn) { io.Copy(io.Discard, c) })}}})
		if elapsed := time.Since(begin); elapsed != time.Second || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "interrupted") {
			t.Errorf("got notes %q after %v, want one after 1s", r.Notes, elapsed)
		}
		if len(r.Faults) != 0 || r.Pairs == nil {
			t.Errorf("got %+v and pairs %v, want no fault, and lists", r.Faults, r.Pairs)
		}
	})
}

// A probe whose answers do not fit the requests must neither end the doctor nor count as healthy.
func TestExamineNamesHostsWhoseAnswersDoNotFit(t *testing.T) {
	const facts, listening = `"facts": {"hostname": "x"}, `, `"listening": {"address": "127.0.0.1:1"}, `
	for answer, stage := range map[string]string{
		`{}`:                                           stageFacts,
		`{` + listening + `"pairs": [{}]}`:             stageFacts,
		`{` + facts + `"pairs": [{}]}`:                 stageListen,
		`{` + facts + listening + `"pairs": []}`:       stageDial,
		`{` + facts + listening + `"pairs": [{}, {}]}`: stageDial,
		`{` + facts + listening + `"pairs": [null]}`:   stageDial,
		`{` + facts + listening + `"pairs": [{}]}`:     stageMeasure,
	} {
		probe := misbehaving(func(c net.Conn) {
			for lines := bufio.NewScanner(c); lines.Scan(); {
				if stage == stageMeasure && strings.Contains(lines.Text(), `"measure":true`) {
					fmt.Fprintln(c, `{"pairs": [null]}`)
				} else {
					fmt.Fprintln(c, answer)
				}
			}
		})
		r := Examine(t.Context(), Options{Targets: []Target{{Name: "127.0.0.2", Start: probe}, {Name: "127.0.0.3", Start: probe}}})
		for _, h := range r.Hosts {
			if h.Stage != stage || !strings.Contains(h.Error, "does not fit") {
				t.Errorf("%s: got %q at %q, want an error at %q", answer, h.Error, h.Stage, stage)
			}
		}
	}
}

// Only ssh's configuration may know the name of a host. The other hosts cannot look up this name.
func TestExamineDoesNotUseNamesThatOthersCannotLookUp(t *testing.T) {
	other, why := "127.0.0.1", "" // why stays empty if this machine has only loopback
	for _, own := range addrsOf(&Facts{Interfaces: interfaces()}) {
		other, why = own.String(), "the route to "+own.String()
	}
	alias := func(context.Context) string { return "" }
	r := Examine(t.Context(), Options{Targets: []Target{{Name: "alias", LookUp: alias, Start: Local}, {Name: other, Start: Local}}})
	first, second := r.Hosts[0], r.Hosts[1]
	if first.Facts == nil || first.Listening == nil || second.Facts == nil {
		t.Fatalf("got %+v and %+v, want facts and a listener", first, second)
	}
	if _, err := netip.ParseAddrPort(first.Listening.Address); err != nil || why != "" && first.Listening.Why != why {
		t.Errorf("got %+v, want an address, because of %q", first.Listening, why)
	}
	if len(second.Facts.Lookups) != 0 {
		t.Errorf("got %+v, want no lookup", second.Facts.Lookups)
	}
	if all := first.Facts.Lookups; len(all) != 1 || all[0].Name != other {
		t.Errorf("got %+v, want a lookup of %s", all, other)
	}
}

// If the other hosts cannot look up the name of a host, they reach the host by the address of its
// interface that leads to them.
func TestTheInterfaceLeadsToAnotherHost(t *testing.T) {
	for _, own := range addrsOf(&Facts{Interfaces: interfaces()}) {
		r := &listenRequest{Other: own.String()}
		if addr, why := r.reachedAt(t.Context(), "::"); addr != own || why != "the route to "+own.String() {
			t.Errorf("got %v by %s, want %v", addr, why, own)
		}
	}
	r := &listenRequest{Other: "127.0.0.1"}
	if addr, why := r.reachedAt(t.Context(), "::"); addr.IsLoopback() {
		t.Errorf("got %v by %s, want no loopback", addr, why)
	}
}

// connection is one end of a connection whose other end is served with the token "secret".
func connection(t *testing.T) *bufio.ReadWriter {
	here, there := net.Pipe()
	go func() {
		serveConn(there, "secret")
		there.Close()
	}()
	t.Cleanup(func() { here.Close() })
	return bufio.NewReadWriter(bufio.NewReader(here), bufio.NewWriter(here))
}

func TestAListenerAnswersOnlyTheToken(t *testing.T) {
	for text, c := range map[string]struct {
		answers int
		ends    time.Duration
	}{
		"secret":                         {1, connLimit},
		"secret\x00\x00\x00\x02ab":       {2, connLimit},
		"secreT\x00\x00\x00\x02ab":       {0, 0},
		"sec":                            {0, stepLimit},
		"secret\x7f\x00\x00\x00":         {1, 0},         // a message of 2 GB
		"secret\x00\x00\x00\x05ab":       {1, connLimit}, // the rest never comes
		"secret\x00\x00\x00\x00\x00\x00": {2, connLimit},
	} {
		synctest.Test(t, func(t *testing.T) {
			conn := connection(t)
			go func() {
				conn.WriteString(text)
				conn.Flush()
			}()
			begin := time.Now()
			got, err := io.ReadAll(conn)
			if elapsed := time.Since(begin); err != nil || string(got) != strings.Repeat("k", c.answers) || elapsed != c.ends {
				t.Errorf("%q: got %q, %v after %v, want %d answers and the end after %v", text, got, err, elapsed, c.answers, c.ends)
			}
		})
	}
}

// A network that loses packets of full size carries the small message of a test, but not the large
// message.
func TestLostLargePacketsDifferFromOtherLosses(t *testing.T) {
	for _, c := range []struct {
		answers int
		want    string
	}{{0, troubleOther}, {1, troubleLarge}, {2, ""}} {
		synctest.Test(t, func(t *testing.T) {
			here, there := net.Pipe()
			go func() {
				for _, n := range []int{smallMessage, largeMessage}[:c.answers] {
					io.CopyN(io.Discard, there, int64(4+n))
					there.Write([]byte{acknowledged})
				}
			}()
			peer := &caller{conn: here, in: bufio.NewReader(here), stop: func() bool { return true }}
			defer peer.close()
			if trouble, err := peer.check(); trouble != c.want || (err == nil) != (c.want == "") {
				t.Errorf("%d answers: got %q, %v, want %q", c.answers, trouble, err, c.want)
			}
		})
	}
}

func TestDialTrouble(t *testing.T) {
	in := func(err error) error { return &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", err)} }
	for _, c := range []struct {
		err  error
		want string
	}{
		{&net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", IsNotFound: true}}, troubleLookup},
		{in(syscall.ECONNREFUSED), troubleRefused},
		{in(syscall.EPERM), troubleDenied}, // a firewall of the dialling host
		{in(syscall.EACCES), troubleDenied},
		{in(syscall.EHOSTUNREACH), troubleRoute},
		{in(syscall.ENETUNREACH), troubleRoute},
		{in(syscall.ETIMEDOUT), troubleSilent},
		{&net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}, troubleSilent},
		{in(syscall.EMFILE), troubleOther},
	} {
		if got := dialTrouble(c.err); got != c.want {
			t.Errorf("%v: got %q, want %q", c.err, got, c.want)
		}
	}
}

// ask returns the answers of a probe to lines.
func ask(t *testing.T, lines ...string) ([]answer, error) {
	in, out := strings.NewReader(strings.Join(lines, "\n")), new(strings.Builder)
	err := Serve(in, out)
	var all []answer
	for line := range strings.Lines(out.String()) {
		var a answer
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			t.Fatalf("got %q: %v", line, err)
		}
		all = append(all, a)
	}
	return all, err
}

func TestServeRefusesWhatIsNoRequest(t *testing.T) {
	if _, err := ask(t, "hello"); err == nil || !strings.Contains(err.Error(), "standard input is for tuttirun doctor") {
		t.Errorf("got %v, want an error", err)
	}
	if _, err := ask(t, strings.Repeat("x", maxLine+1)); !errors.Is(err, bufio.ErrTooLong) {
		t.Errorf("got %v, want an error", err)
	}
}

func TestServeAnswersAFailureAndGoesOn(t *testing.T) {
	const listen = `{"listen": {"token": "x", "name": "here", "interface": "=lo"}}`
	got, err := ask(t, `{"unknown": 1}`, `{"clock": true}`, listen, listen, `{"listen": {"interface": "=none", "root": "127.0.0.1:1"}}`)
	if err != nil || len(got) != 5 {
		t.Fatalf("got %+v, %v, want five answers", got, err)
	}
	for i, want := range []string{"does not know this request", "", "", "listens already", "listens already"} {
		if (got[i].Error == "") != (want == "") || !strings.Contains(got[i].Error, want) {
			t.Errorf("answer %d: got %q, want %q", i, got[i].Error, want)
		}
	}
	got, err = ask(t, `{"listen": {"interface": "=none", "root": "127.0.0.1:1"}}`)
	if err != nil || len(got) != 1 || !strings.Contains(got[0].Error, `TUTTI_INTERFACE="=none" selects no address`) {
		t.Errorf("got %+v, %v, want the error of package bootstrap", got, err)
	}
}

func TestServeEndsWithoutRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, doctor := io.Pipe()
		begin := time.Now()
		err := Serve(in, io.Discard)
		if elapsed := time.Since(begin); err == nil || elapsed != idleLimit {
			t.Errorf("got %v after %v, want an error after %v", err, elapsed, idleLimit)
		}
		doctor.Close() // readRequests ends with its input
	})
}

// The launcher's end of a probe's input ends a dial to an address that never answers.
func TestServeEndsWithItsInput(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	in, doctor := io.Pipe()
	served := make(chan error)
	go func() { served <- Serve(in, io.Discard) }()
	line, _ := json.Marshal(&request{Dial: &dialRequest{Token: "x", Addresses: []string{l.Addr().String()}}})
	doctor.Write(append(line, '\n'))
	c, err := l.Accept() // and say nothing
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	doctor.Close()
	if err := <-served; err != nil {
		t.Errorf("got %v, want nil", err)
	}
}

func TestFactsOfAHost(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text + "\n")} }
	system := fstest.MapFS{
		"sys/devices/system/cpu/online":                         file("0-3,8,10-11"),
		"sys/class/net/eth0/ifindex":                            file("2"),
		"sys/class/net/eth0/speed":                              file("25000"),
		"sys/class/net/down/ifindex":                            file("3"),
		"sys/class/net/down/speed":                              file("-1"),
		"sys/class/infiniband/mlx5_0/ports/1/state":             file("4: ACTIVE"),
		"sys/class/infiniband/mlx5_0/ports/1/rate":              file("100 Gb/sec (4X EDR)"),
		"sys/class/infiniband/mlx5_0/ports/1/link_layer":        file("Ethernet"),
		"sys/class/infiniband/mlx5_0/ports/1/gids/0":            file("fe80:0000:0000:0000:0202:c9ff:fe00:0001"),
		"sys/class/infiniband/mlx5_0/ports/1/gids/1":            file("0000:0000:0000:0000:0000:0000:0000:0000"),
		"sys/class/infiniband/mlx5_0/ports/1/gids/2":            file("0000:0000:0000:0000:0000:ffff:0a00:0001"),
		"sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/2": file("RoCE v2"),
	}
	if got := onlineCores(system); got != 7 {
		t.Errorf("got %d cores, want 7", got)
	}
	for _, c := range []struct {
		name        string
		index, want int
	}{{"eth0", 2, 25000}, {"eth0", 7, 0}, {"down", 3, 0}, {"none", 4, 0}} {
		if got := speed(system, c.name, c.index); got != c.want {
			t.Errorf("speed of %s, index %d: got %d, want %d", c.name, c.index, got, c.want)
		}
	}
	got := fmt.Sprint(devices(system))
	if want := "[{mlx5_0 1 ACTIVE 100 Gb/sec (4X EDR) Ethernet [0: fe80::202:c9ff:fe00:1 2: 10.0.0.1, RoCE v2]}]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestQuotaIsTheLeastOfAllGroups(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  float64
	}{
		"none":                {nil, 0},
		"own, less":           {map[string]string{"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/b/cpu.max": "150000 100000", "sys/fs/cgroup/a/cpu.max": "400000 100000"}, 1.5},
		"no limit":            {map[string]string{"proc/self/cgroup": "0::/a", "sys/fs/cgroup/a/cpu.max": "max 100000"}, 0},
		"own":                 {map[string]string{"proc/self/cgroup": "0::/a", "sys/fs/cgroup/a/cpu.max": "50000 100000"}, 0.5},
		"above":               {map[string]string{"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/b/cpu.max": "400000 100000", "sys/fs/cgroup/a/cpu.max": "150000 100000"}, 1.5},
		"a container":         {map[string]string{"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "100000 100000"}, 1},
		"version 1":           {map[string]string{"proc/self/cgroup": "4:memory:/m\n3:cpu,cpuacct:/a\n", "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "25000", "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000"}, 0.25},
		"version 1, no limit": {map[string]string{"proc/self/cgroup": "3:cpu:/", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 0},
		"cpuset only":         {map[string]string{"proc/self/cgroup": "3:cpuset:/", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 0},
	} {
		system := make(fstest.MapFS)
		for file, text := range c.files {
			system[file] = &fstest.MapFile{Data: []byte(text)}
		}
		if got := quota(system); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

func TestEachHostIsDialledFromOthers(t *testing.T) {
	for _, n := range []int{1, 2, 3, allPairs, allPairs + 1, 100, 1000} {
		dialled := make([]int, n)
		for i := range n {
			peers := peersOf(i, n)
			for _, j := range peers {
				if dialled[j]++; i == j {
					t.Errorf("%d hosts: host %d dials itself", n, i)
				}
			}
			if n <= allPairs && len(peers) != n-1 || len(peers) > 16 {
				t.Errorf("%d hosts: host %d dials %d", n, i, len(peers))
			}
		}
		for i, k := range dialled {
			if k < min(n-1, 4) {
				t.Errorf("%d hosts: only %d dial host %d", n, k, i)
			}
		}
	}
	if got := fmt.Sprint(spread([]int{0, 1, 2, 3, 4, 5, 6}, 3), spread([]int{1, 2}, 3)); got != "[0 2 4] [1 2]" {
		t.Errorf("got %s", got)
	}
}

func TestPrint(t *testing.T) {
	r := healthy()
	a, b := r.Hosts[0], r.Hosts[1]
	a.Facts.Quota, a.Facts.Devices = 2.5, []RDMAPort{{Name: "rxe0", Port: 1, State: "ACTIVE", Rate: "10 Gb/sec", Network: "Ethernet", GIDs: []string{"0: 10.0.0.1, RoCE v1", "1: 10.0.0.1, RoCE v2"}}}
	a.Facts.Hostname, a.Facts.Commit, a.Listening.MTU = "a\x1b[31m\t\n", "0123456789ab", 0
	b.Facts = nil
	r.Pairs[0].Latency, r.Pairs[0].Bandwidth, r.Pairs[0].Speed, r.Pairs[0].PathMTU = 25*time.Microsecond, 1e9, 10000, 1500
	r.Pairs[1].Trouble = troubleSilent
	r.Notes, r.Faults = []string{"a sample"}, []Finding{{Host: "b", What: "is down", Remedy: "start it"}}
	a.Listening.Why = "the default route"
	var out strings.Builder
	if err := Print(&out, r); err != nil {
		t.Fatal(err)
	}
	const want = `HOST  NAME      VERSION        CLOCK       CORES              FILES  LOCKED     SHM FREE
a     a?[31m??  1.2.3 0123456  +1000.0 ms  4 of 4, quota 2.5  1024   unlimited  64 MiB
b     no answer

HOST  ADDRESS        INTERFACE  MTU   SPEED  WHY
a     10.0.0.1:7000  eth0       -     -      the default route
b     10.0.0.2:7000  eth0       1500  -      

HOST  RDMA DEVICE            STATE   RATE       GIDS
a     rxe0 port 1, Ethernet  ACTIVE  10 Gb/sec  0: 10.0.0.1, RoCE v1
                                                1: 10.0.0.1, RoCE v2

FROM  TO  ADDRESS        PATH MTU  LATENCY  BANDWIDTH        LINK
a     b   10.0.0.2:7000  1500      25.0 µs  8.00 Gb/s (80%)  10 Gb/s
b     a   a:7000         -         -        -                fault: silent

note: a sample
FAULT: b: is down
       start it
1 fault on 2 hosts
`
	if got := out.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestClockText(t *testing.T) {
	for offset, want := range map[time.Duration]string{
		-1500 * time.Microsecond: "-1.5 ms", 48 * time.Hour: "+172800 s", -20 * time.Second: "-20 s",
	} {
		if got := clockText(&Clock{Offset: offset}); got != want {
			t.Errorf("%v: got %q, want %q", offset, got, want)
		}
	}
}

// Without a listener the table of addresses would be empty.
func TestPrintOmitsEmptyTables(t *testing.T) {
	r := healthy()
	r.Hosts[0].Listening, r.Hosts[1].Listening, r.Pairs = nil, nil, nil
	var out strings.Builder
	if err := Print(&out, r); err != nil || strings.Contains(out.String(), "ADDRESS") {
		t.Errorf("got %v and\n%s\nwant no table of addresses", err, out.String())
	}
}

func TestInterfaceOf(t *testing.T) {
	all := healthy().Hosts[0].Facts.Interfaces
	for text, want := range map[string]string{"10.0.0.1": "eth0", "127.0.0.1": "lo", "10.0.0.7": ""} {
		if got := interfaceOf(all, netip.MustParseAddr(text)).Name; got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}

// A command is a connection of a probe that can explain why it has ended.
type command struct {
	net.Conn
	connected bool
}

func (c *command) Connected() { c.connected = true }

func (c *command) Explain(err error) error { return fmt.Errorf("%w: connected: %v", err, c.connected) }

func TestExamineAsksTheConnectionForTheReason(t *testing.T) {
	for want, answers := range map[string]string{
		"facts: unexpected EOF: connected: false": "",
		"clock: unexpected EOF: connected: true":  `{"facts": {}}` + "\n",
	} {
		synctest.Test(t, func(t *testing.T) {
			start := func(ctx context.Context) (io.ReadWriteCloser, error) {
				c, _ := misbehaving(func(c net.Conn) {
					bufio.NewReader(c).ReadString('\n')
					io.WriteString(c, answers)
					c.Close()
				})(ctx)
				return &command{Conn: c.(net.Conn)}, nil
			}
			r := Examine(context.Background(), Options{Targets: []Target{{Name: "n1", Start: start}}})
			if len(r.Faults) == 0 || r.Faults[0].What != want {
				t.Errorf("got %+v, want %q", r.Faults, want)
			}
		})
	}
}
