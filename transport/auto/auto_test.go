package auto

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/memory"
	"github.com/tutti-go/tutti/transport/shm"
	"github.com/tutti-go/tutti/transport/transporttest"
	"github.com/tutti-go/tutti/transport/verbs"
	"github.com/tutti-go/tutti/transport/wires"
)

func listen(tb testing.TB) net.Listener {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

func node(tb testing.TB, name string, o Options, l net.Listener) transporttest.Node {
	tb.Helper()
	t, err := New(name, o)
	if err != nil {
		tb.Fatal(err)
	}
	return transporttest.Node{Transport: t, Listener: l}
}

func TestAutoKeepsTheContract(t *testing.T) {
	t.Run("within a process", func(t *testing.T) {
		transporttest.Run(t, func(tb testing.TB, n int) (nodes []transporttest.Node) {
			hub := memory.New()
			for i := range n {
				nodes = append(nodes, node(tb, "auto", Options{Hub: hub, Rank: i}, listen(tb)))
			}
			return nodes
		})
	})
	t.Run("shm alone", func(t *testing.T) {
		onLinux(t)
		transporttest.Run(t, func(tb testing.TB, n int) (nodes []transporttest.Node) {
			for range n {
				nodes = append(nodes, node(tb, "shm", Options{}, listen(tb)))
			}
			return nodes
		})
	})
	t.Run("between processes without shm", func(t *testing.T) {
		transporttest.Run(t, func(tb testing.TB, n int) (nodes []transporttest.Node) {
			for range n {
				nodes = append(nodes, node(tb, "auto", Options{NoShm: true}, listen(tb)))
			}
			return nodes
		})
	})
	t.Run("between processes", func(t *testing.T) {
		transporttest.Run(t, func(tb testing.TB, n int) (nodes []transporttest.Node) {
			for range n {
				nodes = append(nodes, node(tb, "auto", Options{Hub: memory.New()}, listen(tb)))
			}
			return nodes
		})
	})
}

// serve returns a serving transport and its address. The end of the test closes the transport.
func serve(t *testing.T, name string, o Options, l net.Listener) (transport.Transport, string) {
	t.Helper()
	n := node(t, name, o, l)
	addr, err := n.Transport.Serve(n.Listener, func(transport.Conn) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Transport.Close() })
	return n.Transport, addr
}

func TestChoiceIsExplained(t *testing.T) {
	hub := memory.New()
	me, mine := serve(t, "auto", Options{Hub: hub, Rank: 0}, listen(t))
	_, sibling := serve(t, "auto", Options{Hub: hub, Rank: 1}, listen(t))
	_, noPort := serve(t, "auto", Options{Hub: hub, Rank: 2}, nil)
	_, other := serve(t, "auto", Options{Hub: memory.New()}, listen(t))
	_, single := serve(t, "auto", Options{}, listen(t))
	_, without := serve(t, "auto", Options{NoShm: true}, listen(t))
	onHost, notOffered := "shm: the same host", "the peer does not offer shm"
	if ok, why := me.(*Picker).shm.Reaches(""); !ok && runtime.GOOS != "linux" {
		onHost, notOffered = "tcp: "+why, why
	}
	for _, tc := range []struct{ name, addr, want string }{
		{"itself", mine, "memory: the same process"},
		{"a sibling", sibling, "memory: the same process"},
		{"a sibling without a port", noPort, "memory: the same process"},
		{"another process", other, onHost},
		{"a process of one rank", single, onHost},
		{"a process that avoids shm", without, "tcp: " + notOffered},
		{"rank 0 as bootstrap knows it", "127.0.0.1:5000", "tcp: a bare address"},
		{"a later version", "rdma=/x;tcp=127.0.0.1:5000;quic=?", "tcp: " + notOffered},
		{"another hub only", "memory=0123456789abcdef/hub/0", "no wire: " + notOffered + ", and there is no tcp"},
		{"nothing known", "rdma=/x", "no wire: " + notOffered + ", and there is no tcp"},
		{"nothing", "", `no wire: got "", want kind=address`},
		{"a broken list", "tcp=127.0.0.1:5000;", `no wire: got "", want kind=address`},
		{"too long", "tcp=" + strings.Repeat("x", 509), "no wire: address: got 513 bytes, want at most 512"},
	} {
		if got := me.(*Picker).Explain(tc.addr); got != tc.want {
			t.Errorf("%s (%.80q): got %q, want %q", tc.name, tc.addr, got, tc.want)
		}
		if !strings.HasPrefix(tc.want, "no wire") {
			continue
		}
		if _, err := me.Dial(context.Background(), tc.addr); !errors.Is(err, fault.Refused) {
			t.Errorf("dial to %s: got %v, want %v", tc.name, err, fault.Refused)
		}
	}
}

func TestNamedTransportIsUsedWithinAProcess(t *testing.T) {
	hub := memory.New()
	for i, tc := range []struct {
		name     string
		listener bool
		sharer   bool
	}{{"tcp", true, false}, {"grpc", true, false}, {"memory", false, true}} { // shm: see TestShmAloneIsForEverythingButTheWayToRankZero
		var l net.Listener
		if tc.listener {
			l = listen(t)
		}
		got, addr := serve(t, tc.name, Options{Hub: hub, Rank: i, Wires: wires.All()}, l)
		if _, sharer := got.(transport.Sharer); got.Name() != tc.name || strings.Contains(addr, "=") || sharer != tc.sharer {
			t.Errorf("New(%q): got %s at %q, a Sharer: %v", tc.name, got.Name(), addr, sharer)
		}
	}
}

func TestNameThatCannotBeIsRefused(t *testing.T) {
	hub := memory.New()
	hub.Transport()
	for _, name := range []string{"memory", "auto"} {
		if tr, err := New(name, Options{Hub: hub}); !errors.Is(err, fault.Misuse) || tr != nil {
			t.Errorf("New(%q) with a number that is taken: got %v, %v, want %v", name, tr, err, fault.Misuse)
		}
	}
	for name, want := range map[string]fault.Kind{
		"": fault.Misuse, "tpc": fault.Misuse, "TCP": fault.Misuse, "memory": fault.Misuse,
		"verbs": fault.Refused, "grpc+verbs": fault.Refused, "tcp+verbs": fault.Refused,
	} {
		if verbs.Built && want == fault.Refused {
			continue // the result depends on this machine's devices
		}
		tr, err := New(name, Options{Wires: wires.All()})
		if !errors.Is(err, want) || tr != nil {
			t.Errorf("New(%q): got %v, %v, want %v", name, tr, err, want)
		}
	}
}

// The error for a name that the program does not link must name the package to import.
func TestWireThatIsNotLinkedNamesTheImport(t *testing.T) {
	for name, want := range map[string]string{"grpc": "transport/grpc", "verbs": "transport/verbs", "tcp+verbs": "transport/verbs"} {
		_, err := New(name, Options{})
		if !errors.Is(err, fault.Misuse) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "transport/wires") {
			t.Errorf("New(%q): got %v, want %v that names %s and transport/wires", name, err, fault.Misuse, want)
		}
	}
}

// A Transport without ForRank must serve one rank in one epoch, and must be refused in a process
// with several ranks, and in a second epoch.
func TestPassedTransportIsUsed(t *testing.T) {
	mine := namedTransport{memory.New().Transport()}
	if tr, err := New("mine", Options{Wires: []transport.Transport{mine}}); err != nil || tr != transport.Transport(mine) {
		t.Errorf("got %v, %v, want the Transport that was passed", tr, err)
	}
	if _, err := New("mine", Options{Hub: memory.New(), Wires: []transport.Transport{mine}}); !errors.Is(err, fault.Misuse) {
		t.Errorf("in a process of several ranks: got %v, want %v", err, fault.Misuse)
	}
	if _, err := New("mine", Options{Again: true, Wires: []transport.Transport{mine}}); !errors.Is(err, fault.Misuse) {
		t.Errorf("in a second epoch: got %v, want %v", err, fault.Misuse)
	}
}

// A Transport with ForRank must serve a process with several ranks, and a second epoch.
func TestATemplateMakesATransportForEachRankAndEpoch(t *testing.T) {
	mine := templateTransport{namedTransport{memory.New().Transport()}, new([]int)}
	for rank, o := range []Options{{Hub: memory.New()}, {Again: true}} {
		o.Rank, o.Wires = rank, []transport.Transport{mine}
		if tr, err := New("mine", o); err != nil || tr == transport.Transport(mine) {
			t.Errorf("rank %d: got %v, %v, want a Transport of its own", rank, tr, err)
		}
	}
	if want := []int{0, 1}; !slices.Equal(*mine.ranks, want) {
		t.Errorf("got Transports for ranks %v, want %v", *mine.ranks, want)
	}
}

type templateTransport struct {
	namedTransport
	ranks *[]int
}

func (t templateTransport) ForRank(rank int) (transport.Transport, error) {
	*t.ranks = append(*t.ranks, rank)
	return namedTransport{memory.New().Transport()}, nil
}

type namedTransport struct{ transport.Transport }

func (namedTransport) Name() string { return "mine" }

// onLinux skips tests that need shm on systems without shm, because shm uses memfds and abstract
// sockets. Other tests check auto on those systems.
func onLinux(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		// Reason: there is no shm to test on other systems; its tests run on Linux, in every gate.
		t.Skip("the wire shm is built on Linux only: it stands on memfds and abstract sockets")
	}
}

func TestShmIsRefusedWhereItCannotBe(t *testing.T) {
	if runtime.GOOS == "linux" {
		// Reason: this test checks the error on systems where shm is not built.
		t.Skip("here it can be")
	}
	if tr, err := New("shm", Options{}); !errors.Is(err, fault.Refused) || tr != nil {
		t.Errorf("got %v, %v, want %v", tr, err, fault.Refused)
	}
}

// If shm is chosen by name, all data must use shm. Only a bare address, which is the address of
// rank 0, may be dialled over tcp.
func TestShmAloneIsForEverythingButTheWayToRankZero(t *testing.T) {
	onLinux(t)
	l := listen(t)
	me, mine := serve(t, "shm", Options{}, l)
	_, both := serve(t, "auto", Options{}, listen(t))
	if me.Name() != "shm" || !strings.HasPrefix(mine, "shm=") || strings.Contains(mine, ";") {
		t.Errorf("got %s at %q", me.Name(), mine)
	}
	for addr, want := range map[string]string{
		mine:                 "shm: the same host",
		both:                 "shm: the same host",
		l.Addr().String():    "tcp: a bare address",
		"tcp=127.0.0.1:5000": "no wire: the peer does not offer shm, and shm is asked for",
		strings.Replace(mine, "shm=", "shm=f", 1): "no wire: another host, and shm is asked for",
	} {
		if got := me.(*Picker).Explain(addr); got != want {
			t.Errorf("%q: got %q, want %q", addr, got, want)
		}
		c, err := me.Dial(context.Background(), addr)
		if refused := errors.Is(err, fault.Refused); refused != strings.HasPrefix(want, "no wire") {
			t.Errorf("dial to %q: got %v", addr, err)
		}
		if err == nil {
			c.Close()
		}
	}
}

// If two processes of one host cannot share memory, "auto" must use tcp and give the reason, and
// "shm" must fail.
func TestPeerThatRefusesSharedMemoryIsReachedOverTCP(t *testing.T) {
	onLinux(t)
	l, err := net.Listen("unix", "@tutti-test-"+rand.Text())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() { // this server rejects every connection, in the format of package shm
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			nc.Read(make([]byte, 64))
			const reason = "none came with the message"
			answer := append([]byte("tuttishm\x01"), byte(len(reason)))
			answer = append(answer, make([]byte, 128-len(answer))...)
			copy(answer[48:], reason)
			nc.Write(answer)
			nc.Close()
		}
	}()
	me, _ := serve(t, "auto", Options{}, listen(t))
	alone, _ := serve(t, "shm", Options{}, listen(t))
	_, peer := serve(t, "auto", Options{}, listen(t))
	host, _, _ := strings.Cut(peer, "@")
	_, tcp, _ := strings.Cut(peer, ";")
	addr := host + l.Addr().String() + ";" + tcp
	p := me.(*Picker)
	if got, want := p.Explain(addr), "shm: the same host"; got != want {
		t.Errorf("before: got %q, want %q", got, want)
	}
	c, err := me.Dial(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if got := p.Explain(addr); !strings.HasPrefix(got, "tcp: no memory can be shared with this peer: ") || !strings.Contains(got, "none came with the message") {
		t.Errorf("afterwards: got %q", got)
	}
	if got, want := p.Explain(peer), "shm: the same host"; got != want {
		t.Errorf("another peer: got %q, want %q", got, want)
	}
	if _, err := alone.Dial(t.Context(), addr); !errors.Is(err, fault.Refused) {
		t.Errorf("shm alone: got %v, want %v", err, fault.Refused)
	}
}

func TestRanksOfAHostCanShare(t *testing.T) {
	onLinux(t)
	a, first := serve(t, "shm", Options{}, nil)
	b, second := serve(t, "auto", Options{}, listen(t))
	c, third := serve(t, "auto", Options{NoShm: true}, listen(t))
	hub := memory.New()
	d, fourth := serve(t, "auto", Options{Hub: hub, Rank: 0}, listen(t))
	_, fifth := serve(t, "auto", Options{Hub: hub, Rank: 1}, listen(t))
	for _, tc := range []struct {
		who   transport.Transport
		addrs []string
		want  string
	}{
		{a, []string{first, second}, "*shm.Transport"},
		{b, []string{first, second}, "*shm.Transport"},
		{b, []string{second, third}, "<nil>"},
		{c, []string{second, third}, "<nil>"},
		{d, []string{fourth, fifth}, "*memory.Transport"},
		{d, []string{fourth, fifth, first}, "*shm.Transport"},
		{a, []string{fourth, fifth, first}, "*shm.Transport"},
		{a, []string{first, "127.0.0.1:5000"}, "<nil>"},
		{a, nil, "<nil>"},
	} {
		if got := fmt.Sprintf("%T", tc.who.(*Picker).SharerFor(tc.addrs)); got != tc.want {
			t.Errorf("%s among %q: got %s, want %s", tc.who.Name(), tc.addrs, got, tc.want)
		}
	}
}

func FuzzPick(f *testing.F) {
	f.Add("memory=0123456789abcdef/hub/0;tcp=127.0.0.1:5000")
	f.Add("127.0.0.1:5000")
	f.Add("shm=00/host/1/2/@name;tcp=127.0.0.1:5000")
	f.Fuzz(func(t *testing.T, addr string) {
		p := &Picker{name: Name, shm: shm.New(shm.Options{})}
		c := p.pick(addr)
		if c.kind == "memory" || c.kind != "" && c.addr == "" || c.why == "" {
			t.Errorf("%q: got %+v", addr, c)
		}
	})
}
