package doctor

import (
	"net/netip"
	"strings"
	"testing"
	"time"
)

// healthy returns a report of two hosts without a fault.
func healthy() *Examination {
	host := func(name, addr string) *HostReport {
		unlimited, files := int64(-1), int64(1024)
		return &HostReport{
			Name: name, Slots: 2, LookedUp: name,
			Facts: &Facts{
				Hostname: name, Version: "1.2.3", Commit: "abc",
				Interfaces: []Interface{
					{Name: "lo", MTU: 65536, Prefixes: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8")}},
					{Name: "eth0", MTU: 1500, Prefixes: []netip.Prefix{netip.MustParsePrefix(addr + "/24")}},
				},
				Lookups: []Lookup{
					{Name: "a", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}},
					{Name: "b", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.2")}},
				},
				LockedMemory: &unlimited, OpenFiles: &files, Shm: &Shm{Size: 64 << 20, Free: 64 << 20},
				OnlineCores: 4, UsableCores: []int{0, 1, 2, 3},
			},
			Clock:     &Clock{Offset: time.Second, Within: time.Millisecond},
			Listening: &Listening{Address: addr + ":7000", Interface: "eth0", MTU: 1500},
		}
	}
	return &Examination{
		Hosts: []*HostReport{host("a", "10.0.0.1"), host("b", "10.0.0.2")},
		Pairs: []*Pair{{From: "a", To: "b", Address: "10.0.0.2:7000"}, {From: "b", To: "a", Address: "a:7000"}},
	}
}

// Each case changes a healthy report, and names the faults that follow: kind, host, peer, and a part
// of the text.
func TestDiagnose(t *testing.T) {
	number := func(n int64) *int64 { return &n }
	addr := netip.MustParseAddr
	for name, c := range map[string]struct {
		change func(a, b *HostReport, ab *Pair, r *Examination)
		want   []string
	}{
		"healthy": {func(a, b *HostReport, ab *Pair, r *Examination) {}, nil},
		"nothing known": {func(a, b *HostReport, ab *Pair, r *Examination) {
			b.Facts.LockedMemory, b.Facts.OpenFiles, b.Facts.Shm, b.Clock, b.Facts.UsableCores = nil, nil, nil, nil, nil
		}, nil},
		"no probe": {func(a, b *HostReport, ab *Pair, r *Examination) {
			b.Facts, b.Listening, b.Stage, b.Error = nil, nil, stageStart, "no route"
		}, []string{"probe b  start: no route: see that tuttirun agent runs there"}},
		"no tuttirun": {func(a, b *HostReport, ab *Pair, r *Examination) {
			b.Facts, b.Listening, b.Stage, b.Error = nil, nil, stageFacts, "nothing listens"
		}, []string{"probe b  facts: nothing listens: try ssh b tuttirun --version"}},
		"silent probe":       {func(a, b *HostReport, ab *Pair, r *Examination) { b.Stage, b.Error = stageDial, "got no answer" }, []string{"probe b  dial: got no answer"}},
		"clock a day behind": {func(a, b *HostReport, ab *Pair, r *Examination) { b.Clock.Offset = -24 * time.Hour }, []string{"clock b  24h0m0s behind the launcher's"}},
		"clock hours behind": {func(a, b *HostReport, ab *Pair, r *Examination) { b.Clock.Offset = -23 * time.Hour }, nil},
		"clock days ahead":   {func(a, b *HostReport, ab *Pair, r *Examination) { b.Clock.Offset = 48 * time.Hour }, []string{"clock b  48h0m0s ahead of the launcher's"}},
		"little memlock":     {func(a, b *HostReport, ab *Pair, r *Examination) { b.Facts.LockedMemory = number(64 << 10) }, []string{"memlock b  got 64 KiB, want at least 8 MiB"}},
		"default memlock":    {func(a, b *HostReport, ab *Pair, r *Examination) { b.Facts.LockedMemory = number(8 << 20) }, nil},
		"memlock with RDMA": {func(a, b *HostReport, ab *Pair, r *Examination) {
			b.Facts.LockedMemory, b.Facts.Devices = number(8<<20), make([]RDMAPort, 1)
		}, []string{"memlock b  want at least 1 GiB"}},
		"few files":           {func(a, b *HostReport, ab *Pair, r *Examination) { b.Facts.OpenFiles = number(271) }, []string{"files b  got a limit of 271, want at least 272 for 4 ranks"}},
		"files for few ranks": {func(a, b *HostReport, ab *Pair, r *Examination) { b.Facts.OpenFiles = number(272) }, nil},
		"files, slots unknown": {func(a, b *HostReport, ab *Pair, r *Examination) { a.Slots, b.Facts.OpenFiles = 0, number(279) },
			[]string{"files b  want at least 280 for 6 ranks"}},
		"full /dev/shm": {func(a, b *HostReport, ab *Pair, r *Examination) { b.Facts.Shm.Free = 4096 }, []string{"shm b  got 4 KiB free of 64 MiB"}},
		"no /dev/shm":   {func(a, b *HostReport, ab *Pair, r *Examination) { b.Facts.Shm = &Shm{Error: "no such file"} }, []string{"shm b  /dev/shm: no such file"}},
		"one core":      {func(a, b *HostReport, ab *Pair, r *Examination) { b.Facts.UsableCores = []int{2} }, []string{"cores b  only core 2 of 4"}},
		"host of one core": {func(a, b *HostReport, ab *Pair, r *Examination) {
			b.Facts.UsableCores, b.Facts.OnlineCores = []int{0}, 1
		}, nil},
		"quota":                       {func(a, b *HostReport, ab *Pair, r *Examination) { b.Facts.Quota = 0.5 }, []string{"cores b  0.5 processors of 4"}},
		"quota of a host's only rank": {func(a, b *HostReport, ab *Pair, r *Examination) { b.Facts.Quota, b.Slots = 1, 1 }, nil},
		"small quota of the only rank": {func(a, b *HostReport, ab *Pair, r *Examination) { b.Facts.Quota, b.Slots = 0.9, 1 },
			[]string{"cores b  0.9 processors of 4"}},
		"large quota": {func(a, b *HostReport, ab *Pair, r *Examination) { b.Facts.Quota = 1.5 }, nil},
		"version":     {func(a, b *HostReport, ab *Pair, r *Examination) { b.Facts.Version = "1.2.4" }, []string{"version b a 1.2.4"}},
		"commit":      {func(a, b *HostReport, ab *Pair, r *Examination) { b.Facts.Commit = "abd" }, []string{"version b a abd"}},
		"version of the second, first silent": {func(a, b *HostReport, ab *Pair, r *Examination) {
			a.Facts, a.Listening, b.Facts.Version = nil, nil, "1.2.4"
		}, nil},
		"wrong entry":    {func(a, b *HostReport, ab *Pair, r *Examination) { a.Facts.Lookups[1].Addrs[0] = addr("10.0.0.9") }, []string{"name a b b is 10.0.0.9 there, but b has 10.0.0.2"}},
		"loopback entry": {func(a, b *HostReport, ab *Pair, r *Examination) { a.Facts.Lookups[1].Addrs[0] = addr("127.0.1.1") }, []string{"name a b loopback"}},
		"own entry":      {func(a, b *HostReport, ab *Pair, r *Examination) { a.Facts.Lookups[0].Addrs[0] = addr("127.0.1.1") }, nil},
		"no entry": {func(a, b *HostReport, ab *Pair, r *Examination) {
			a.Facts.Lookups[1] = Lookup{Name: "b", Error: "no such host"}
		}, []string{"name a b cannot look up b: no such host"}},
		"one of several addresses": {func(a, b *HostReport, ab *Pair, r *Examination) {
			a.Facts.Lookups[1].Addrs = []netip.Addr{addr("10.9.9.9"), addr("10.0.0.2")}
		}, nil},
		"address of a gateway": {func(a, b *HostReport, ab *Pair, r *Examination) {
			a.Facts.Lookups[1].Addrs[0], a.Facts.Lookups[1].Name, b.Name, b.LookedUp = addr("9.9.9.9"), "9.9.9.9", "9.9.9.9", "9.9.9.9"
		}, nil},
		"wrong entry for the name that others use": {func(a, b *HostReport, ab *Pair, r *Examination) {
			a.Name, b.Facts.Lookups[0].Addrs[0] = "localhost", addr("10.0.0.9")
		}, []string{"name b localhost a is 10.0.0.9 there, but a has 10.0.0.1"}},
		"one machine twice": {func(a, b *HostReport, ab *Pair, r *Examination) {
			b.Facts.Interfaces = a.Facts.Interfaces
			a.Facts.Lookups = nil
		},
			[]string{"name b a has the address 10.0.0.1, as a has"}},
		"bridges of containers": {func(a, b *HostReport, ab *Pair, r *Examination) {
			bridge := Interface{Name: "docker0", MTU: 1500, Prefixes: []netip.Prefix{netip.MustParsePrefix("172.17.0.1/16")}}
			a.Facts.Interfaces, b.Facts.Interfaces = append(a.Facts.Interfaces, bridge), append(b.Facts.Interfaces, bridge)
		}, nil},
		"MTU": {func(a, b *HostReport, ab *Pair, r *Examination) { b.Listening.MTU = 9000 }, []string{"mtu b a ip link set eth0 mtu 1500 on b, or ip link set eth0 mtu 9000 on a"}},
		"MTU of other networks": {func(a, b *HostReport, ab *Pair, r *Examination) {
			b.Listening.MTU, b.Facts.Interfaces[1].Prefixes[0] = 9000, netip.MustParsePrefix("10.0.1.2/24")
			a.Facts.Lookups = nil
		}, nil},
		"only loopback": {func(a, b *HostReport, ab *Pair, r *Examination) {
			b.Facts.Interfaces, a.Facts.Lookups = b.Facts.Interfaces[:1], nil
		}, []string{"address b  no interface"}},
		"only loopback, one host": {func(a, b *HostReport, ab *Pair, r *Examination) {
			a.Facts.Interfaces, r.Hosts, r.Pairs = a.Facts.Interfaces[:1], r.Hosts[:1], nil
		}, nil},
		"families": {func(a, b *HostReport, ab *Pair, r *Examination) {
			b.Facts.Interfaces[1].Prefixes[0], ab.Trouble, a.Facts.Lookups = netip.MustParsePrefix("fd00::2/64"), troubleRoute, nil
		}, []string{"family a b has only IPv4 addresses, and b has only IPv6"}},
		"two families": {func(a, b *HostReport, ab *Pair, r *Examination) {
			b.Facts.Interfaces[1].Prefixes = append(b.Facts.Interfaces[1].Prefixes, netip.MustParsePrefix("fd00::2/64"))
			ab.Trouble = troubleRoute
		}, []string{"route a b ip route get 10.0.0.2 on a, and choose an interface"}},
		"refused by firewalld": {func(a, b *HostReport, ab *Pair, r *Examination) { ab.Trouble = troubleRoute },
			[]string{"route a b a firewall on either host answers so, as firewalld does: let that on b accept port 7000"}},
		"not let out": {func(a, b *HostReport, ab *Pair, r *Examination) { ab.Trouble = troubleDenied },
			[]string{"port a b the firewall on a itself"}},
		"lookup":     {func(a, b *HostReport, ab *Pair, r *Examination) { ab.Trouble = troubleLookup }, []string{"name a b give b an address"}},
		"dropped":    {func(a, b *HostReport, ab *Pair, r *Examination) { ab.Trouble = troubleSilent }, []string{"port a b accept port 7000"}},
		"refused":    {func(a, b *HostReport, ab *Pair, r *Examination) { ab.Trouble = troubleRefused }, []string{"port a b although the probe listens"}},
		"large":      {func(a, b *HostReport, ab *Pair, r *Examination) { ab.Trouble = troubleLarge }, []string{"mtu a b packets of full size do not"}},
		"other":      {func(a, b *HostReport, ab *Pair, r *Examination) { ab.Trouble = troubleOther }, []string{"link a b 10.0.0.2:7000"}},
		"two faults": {func(a, b *HostReport, ab *Pair, r *Examination) { ab.Trouble, a.Facts.Quota = troubleSilent, 1 }, []string{"cores a  quota", "port a b accept"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := healthy()
			c.change(r.Hosts[0], r.Hosts[1], r.Pairs[0], r)
			got := Diagnose(r)
			if len(got) != len(c.want) {
				t.Fatalf("got %+v, want %d faults", got, len(c.want))
			}
			for i, f := range got {
				head, rest, _ := strings.Cut(c.want[i], " ")
				host, rest, _ := strings.Cut(rest, " ")
				peer, text, _ := strings.Cut(rest, " ")
				if f.Kind != head || f.Host != host || f.Peer != peer || !strings.Contains(f.What+": "+f.Remedy, text) {
					t.Errorf("got %+v, want %q", f, c.want[i])
				}
				if f.Remedy == "" || strings.Contains(f.What+f.Remedy, "\n") || strings.Contains(f.What+f.Remedy, "%!") {
					t.Errorf("got %+v, want a remedy, and one line each", f)
				}
			}
		})
	}
}
