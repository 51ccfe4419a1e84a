package bootstrap

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/fault"
)

func addrsOf(texts ...string) (addrs []netip.Addr) {
	for _, t := range texts {
		addrs = append(addrs, netip.MustParseAddr(t))
	}
	return addrs
}

func TestAnInterfaceIsSelectedAsInNCCL(t *testing.T) {
	for text, want := range map[string]string{
		"eth":                    "10.0.0.1 fd00::1 10.1.0.1",
		"eth1":                   "10.1.0.1",
		"=eth1":                  "",
		"=eth0":                  "10.0.0.1 fd00::1",
		"docker, eth10":          "172.17.0.1 10.1.0.1",
		"=lo,docker0":            "127.0.0.1 ::1 172.17.0.1",
		"10.0.0.0/8":             "10.0.0.1 10.1.0.1",
		"fd00::/8,172.16.0.0/12": "fd00::1 172.17.0.1",
		"10.9.0.0/16":            "",
		"^docker":                "10.0.0.1 fd00::1 10.1.0.1 127.0.0.1 ::1",
		"^docker,lo":             "10.0.0.1 fd00::1 10.1.0.1",
		"^=eth1,docker0":         "10.0.0.1 fd00::1 10.1.0.1 127.0.0.1 ::1",
		"^10.0.0.0/8,lo":         "fd00::1 172.17.0.1",
	} {
		all, _ := finderOf().interfaces()
		got, err := selectAddrs(text, all)
		if err != nil || !slices.Equal(got, addrsOf(strings.Fields(want)...)) {
			t.Errorf("%q: got %v, %v, want %s", text, got, err, want)
		}
	}
}

func TestInterfacesOfThisMachineIncludeLoopback(t *testing.T) {
	all, err := netInterfaces()
	if err != nil {
		t.Fatal(err)
	}
	loopback := func(n netInterface) bool { return n.name != "" && slices.ContainsFunc(n.addrs, netip.Addr.IsLoopback) }
	if !slices.ContainsFunc(all, loopback) {
		t.Errorf("got %+v, want loopback among them", all)
	}
}

func TestFindRefusesAWrongPlacement(t *testing.T) {
	const job = "TUTTI_RANK=1 TUTTI_SIZE=2 TUTTI_ROOT=127.0.0.1:9 TUTTI_SECRET=" + testSecret + " "
	for env, want := range map[string][]string{
		job + "TUTTI_INTERFACE=ib": {`TUTTI_INTERFACE="ib"`, "selects no address",
			"choose from lo 127.0.0.1 ::1, eth0 10.0.0.1 fd00::1, eth10 10.1.0.1, docker0 172.17.0.1"},
		job + "TUTTI_INTERFACE=10.9.0.0/16":                                    {`"10.9.0.0/16"`, "selects no address", "eth0 10.0.0.1"},
		job + "TUTTI_INTERFACE=10.0.0.0/33":                                    {`"10.0.0.0/33"`, "malformed entry", "10.0.0.0/8"},
		job + "TUTTI_INTERFACE=eth0,,lo":                                       {`TUTTI_INTERFACE="eth0,,lo"`, `malformed entry ""`},
		job + "TUTTI_INTERFACE=^":                                              {`TUTTI_INTERFACE="^"`, "malformed entry"},
		job + "TUTTI_ADVERTISE=gw:0":                                           {`TUTTI_ADVERTISE="gw:0"`, "host or host:port"},
		job + "TUTTI_ADVERTISE=:7000":                                          {`TUTTI_ADVERTISE=":7000"`, "host or host:port"},
		job + "TUTTI_ADVERTISE=gw:7000-7009":                                   {`TUTTI_ADVERTISE="gw:7000-7009"`, "host or host:port"},
		job + "TUTTI_LISTEN=:7099-7000":                                        {`TUTTI_LISTEN=":7099-7000"`, "7000-7099"},
		job + "TUTTI_LISTEN=h:0-7":                                             {`TUTTI_LISTEN="h:0-7"`, "7000-7099"},
		job + "TUTTI_LISTEN=h:7000-":                                           {`TUTTI_LISTEN="h:7000-"`, "7000-7099"},
		job + "TUTTI_LISTEN=h:1-65536":                                         {`TUTTI_LISTEN="h:1-65536"`, "7000-7099"},
		job + "TUTTI_LISTEN=7000-7099":                                         {`TUTTI_LISTEN="7000-7099"`, ":7000-7099"},
		"TUTTI_HOSTS=a:1,b:1 TUTTI_RANK=0 TUTTI_INTERFACE=lo":                  {`TUTTI_INTERFACE="lo"`, "TUTTI_HOSTS", "unset it"},
		"TUTTI_HOSTS=a:1,b:1 TUTTI_RANK=0 TUTTI_ADVERTISE=gw":                  {`TUTTI_ADVERTISE="gw"`, "TUTTI_HOSTS", "unset it"},
		"TUTTI_RANK=1 TUTTI_SIZE=2 TUTTI_ROOT=127.0.0.1:9 TUTTI_INTERFACE=eth": {"no secret", "10.0.0.1 is beyond it"},
		"TUTTI_RANK=1 TUTTI_SIZE=2 TUTTI_ROOT=127.0.0.1:9 TUTTI_ADVERTISE=gw":  {"no secret", "gw is beyond it"},
	} {
		_, err := finderOf(strings.Split(env, " ")...).find(Options{})
		if !errors.Is(err, fault.Refused) {
			t.Errorf("%s: got %v, want Refused", env, err)
			continue
		}
		for _, part := range want {
			if !strings.Contains(err.Error(), part) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: got %q, want one line with %q", env, err, part)
			}
		}
	}
	f := finderOf("TUTTI_INTERFACE=eth")
	f.interfaces = func() ([]netInterface, error) { return nil, errors.New("no netlink") }
	if _, err := f.find(Options{}); !errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), "no netlink") {
		t.Errorf("got %v, want the reason why interfaces are not known", err)
	}
}

// Nothing listens at the addresses of the fake interfaces. The rank without a secret may use
// loopback only.
func TestTheSelectedAddressSuitsTheRoot(t *testing.T) {
	for name, c := range map[string]struct{ env, selected, want string }{
		"the route to the root":          {"TUTTI_SECRET=" + testSecret, "10.0.0.1 127.0.0.1", "127.0.0.1"},
		"the family of the root":         {"TUTTI_SECRET=" + testSecret, "fd00::1 10.0.0.1 10.1.0.1", "10.0.0.1"},
		"no other family":                {"TUTTI_SECRET=" + testSecret, "fd00::1 fd00::2", "fd00::1"},
		"loopback if there is no secret": {"A=B", "10.0.0.1 ::1", "::1"},
	} {
		f := finderOf("TUTTI_RANK=1", "TUTTI_SIZE=2", "TUTTI_ROOT=127.0.0.1:9", "TUTTI_INTERFACE=x", c.env)
		f.interfaces = func() ([]netInterface, error) {
			return []netInterface{{"x", addrsOf(strings.Fields(c.selected)...)}}, nil
		}
		j, err := f.find(Options{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got, err := j.selectedHost(t.Context()); got != c.want || err != nil {
			t.Errorf("%s: got %s, %v, want %s", name, got, err, c.want)
		}
	}
}

func TestTheAdvertisedAddressIsThatOfTheListener(t *testing.T) {
	const secret = " TUTTI_SECRET=" + testSecret
	root := free(t)
	for name, c := range map[string]struct{ env, want string }{
		"a name":          {"TUTTI_RANK=1 TUTTI_ROOT=127.0.0.1:9 TUTTI_ADVERTISE=gw.lab", "gw.lab:PORT"},
		"a name and port": {"TUTTI_RANK=1 TUTTI_ROOT=127.0.0.1:9 TUTTI_ADVERTISE=gw.lab:7000", "gw.lab:7000"},
		"IPv6":            {"TUTTI_RANK=1 TUTTI_ROOT=127.0.0.1:9 TUTTI_ADVERTISE=2001:db8::7", "[2001:db8::7]:PORT"},
		"IPv6 and port":   {"TUTTI_RANK=1 TUTTI_ROOT=127.0.0.1:9 TUTTI_LISTEN=127.0.0.1 TUTTI_ADVERTISE=[2001:db8::7]:80", "[2001:db8::7]:80"},
		"rank 0":          {"TUTTI_RANK=0 TUTTI_ROOT=" + root + " TUTTI_ADVERTISE=gw.lab", "gw.lab:" + port(root)},
		"rank 0 at a selected address, the root at a gateway's": {"TUTTI_RANK=0 TUTTI_ROOT=192.0.2.7:" + port(root) + " TUTTI_INTERFACE==lo", "127.0.0.1:" + port(root)},
	} {
		j, err := finderOf(strings.Split(c.env+" TUTTI_SIZE=2"+secret, " ")...).find(Options{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		l, err := j.Listen(t.Context())
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		bound := l.(*advertised).Listener
		if want := strings.Replace(c.want, "PORT", port(bound.Addr().String()), 1); l.Addr().String() != want || l.Addr().Network() != "tcp" {
			t.Errorf("%s: got %v, want %s", name, l.Addr(), want)
		}
		conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", port(bound.Addr().String())))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else {
			conn.Close()
		}
		l.Close()
	}
}

func TestRankZeroPublishesTheAdvertisedAddress(t *testing.T) {
	for _, localSize := range []int{1, 2} {
		env := []string{"TUTTI_ADVERTISE=gw.lab:7000"}
		jobs, errs := joinAll(t, newBoard(), localSize, true, [2][]string{env, nil})
		if err := errors.Join(errs[:]...); err != nil {
			t.Fatal(err)
		}
		if jobs[0].Root != "gw.lab:7000" || jobs[1].Root != "gw.lab:7000" {
			t.Errorf("%d ranks per host: got %s and %s, want the advertised address", localSize, jobs[0].Root, jobs[1].Root)
		}
	}
	env := []string{"TUTTI_INTERFACE==lo"}
	jobs, errs := joinAll(t, newBoard(), 1, true, [2][]string{env, env})
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	if host, _, _ := net.SplitHostPort(jobs[1].Root); host != "127.0.0.1" {
		t.Errorf("got %s, want rank 0's selected address", jobs[1].Root)
	}
}
