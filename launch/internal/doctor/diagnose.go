package doctor

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// The least that a host needs.
const (
	// certificateSkew is how long before its creation a certificate of a job becomes valid.
	certificateSkew = 24 * time.Hour

	minLocked     = 8 << 20 // the kernel's default since Linux 5.16
	minLockedRDMA = 1 << 30 // rings, message buffers, and what a rank's registration cache holds by default
	minShm        = 16 << 20
	minFiles      = 256 // without the files for connections; see filesPerRank
	filesPerRank  = 4   // connections to one other rank, and a margin for connections that are dialled again
)

// Diagnose returns the faults of a report: those of each host, then those between hosts. It uses
// only the report.
func Diagnose(r *Examination) []Finding {
	faults := []Finding{} // not nil, so that JSON has an empty list
	add := func(kind, host, peer, what, remedy string) {
		faults = append(faults, Finding{Kind: kind, Host: host, Peer: peer, What: what, Remedy: remedy})
	}
	ranks := 0
	for _, h := range r.Hosts {
		if ranks += h.Slots; h.Slots == 0 && h.Facts != nil {
			ranks += h.Facts.OnlineCores // as many ranks as cores
		}
	}
	for _, h := range r.Hosts {
		if h.Error != "" {
			add("probe", h.Name, "", h.Stage+": "+h.Error, stageRemedy(h))
		}
		if h.Facts != nil {
			diagnoseHost(h, ranks, func(kind, what, remedy string) { add(kind, h.Name, "", what, remedy) })
			if len(r.Hosts) > 1 && len(addrsOf(h.Facts)) == 0 {
				add("address", h.Name, "", "no interface that is up has an address for other hosts", "bring an interface up (ip link set IF up), and give it an address (ip addr add)")
			}
		}
	}
	diagnoseVersions(r, add)
	diagnoseNames(r, add)
	diagnoseMTU(r, add)
	for _, l := range r.Pairs {
		diagnosePair(r, l, add)
	}
	return faults
}

// stageRemedy says what to do after the probe of a host has failed.
func stageRemedy(h *HostReport) string {
	switch h.Stage {
	case stageStart: // ssh starts without an answer
		return "see that tuttirun agent runs there, with the secret or the CA of the launcher; without agents, see that ssh is installed here"
	case stageFacts:
		return "try ssh " + h.Name + " tuttirun --version: it must print this version, and nothing else, without a password"
	case stageListen:
		return "see that its name for the first host is right; choose another interface by --interface, or other ports by --listen"
	}
	return "see that the host is not overloaded, and that its connection to the launcher is up"
}

// diagnoseHost diagnoses a host by itself. The parameter ranks is the size of the job.
func diagnoseHost(h *HostReport, ranks int, add func(kind, what, remedy string)) {
	f := h.Facts
	if c := h.Clock; c != nil && c.Offset.Abs()+c.Within >= certificateSkew {
		add("clock", fmt.Sprintf("the clock is %v %s the launcher's, want less than %v: certificates that are made on one of them are not valid yet on the other", c.Offset.Abs().Round(time.Second), aheadOrBehind(c.Offset), certificateSkew),
			"set the clock, and keep it by NTP: timedatectl set-ntp true")
	}
	want, why := int64(minLocked), "the kernel's default"
	if len(f.Devices) > 0 {
		want, why = minLockedRDMA, "what a rank with RDMA registers"
	}
	if n := f.LockedMemory; n != nil && *n >= 0 && *n < want {
		add("memlock", fmt.Sprintf("memory that may be locked: got %s, want at least %s, %s", amount(*n), amount(want), why),
			"raise it: * - memlock unlimited in /etc/security/limits.conf, LimitMEMLOCK=infinity of a service, or --ulimit memlock=-1 of a container")
	}
	files := int64(minFiles + filesPerRank*ranks)
	if n := f.OpenFiles; n != nil && *n >= 0 && *n < files {
		add("files", fmt.Sprintf("open files: got a limit of %d, want at least %d for %d ranks", *n, files, ranks),
			"raise it: * - nofile 65536 in /etc/security/limits.conf, LimitNOFILE= of a service, or --ulimit nofile=65536 of a container")
	}
	switch s := f.Shm; {
	case s == nil:
	case s.Error != "":
		add("shm", "/dev/shm: "+s.Error, "mount it: mount -t tmpfs -o mode=1777 tmpfs /dev/shm")
	case s.Free < minShm:
		add("shm", fmt.Sprintf("/dev/shm: got %s free of %s, want at least %s", amount(s.Free), amount(s.Size), amount(minShm)),
			"remove files that jobs have left there, or make it larger: mount -o remount,size=50% /dev/shm, or --shm-size of a container")
	}
	switch {
	case f.OnlineCores < 2:
	case len(f.UsableCores) == 1:
		add("cores", fmt.Sprintf("ranks may use only core %d of %d: the process is bound to it", f.UsableCores[0], f.OnlineCores),
			"start ranks without binding (mpirun --bind-to none, srun --cpu-bind=none), or look for taskset and cpusets")
	case f.Quota > 0 && f.Quota <= 1 && (f.Quota < 1 || h.Slots != 1): // one processor is enough for a container of one rank
		add("cores", fmt.Sprintf("ranks may use %.2g processors of %d: the quota of a control group", f.Quota, f.OnlineCores),
			"raise the quota: the limit on CPUs of the container or pod, or CPUQuota= of the service")
	}
}

// aheadOrBehind says in which direction a clock differs.
func aheadOrBehind(offset time.Duration) string {
	if offset < 0 {
		return "behind"
	}
	return "ahead of"
}

// diagnoseVersions compares the version of tuttirun on each host with the version on the first
// host.
func diagnoseVersions(r *Examination, add func(kind, host, peer, what, remedy string)) {
	var first *HostReport
	for _, h := range r.Hosts {
		switch {
		case h.Facts == nil:
		case first == nil:
			first = h
		case h.Facts.Version != first.Facts.Version || h.Facts.Commit != first.Facts.Commit:
			add("version", h.Name, first.Name, fmt.Sprintf("tuttirun is version %s, commit %s; want %s, commit %s, as on %s", h.Facts.Version, h.Facts.Commit, first.Facts.Version, first.Facts.Commit, first.Name),
				"install the same tuttirun on all hosts")
		}
	}
}

// diagnoseNames compares the addresses that each host finds for the names of the other hosts with
// the addresses that the other hosts have. Debian maps a host's own name to loopback, so a host may
// find loopback for its own name.
func diagnoseNames(r *Examination, add func(kind, host, peer, what, remedy string)) {
	hosts := make(map[string]*HostReport)
	machines := make(map[netip.Addr]*HostReport)
	for _, h := range r.Hosts {
		hosts[h.LookedUp] = h
		// Only the interface by which other hosts reach the host is compared. Other interfaces,
		// such as the bridge of containers, may have the same addresses on every host.
		for _, p := range reachedBy(h).Prefixes {
			a := p.Addr()
			if other := machines[a]; other != nil && !a.IsLoopback() {
				add("name", h.Name, other.Name, fmt.Sprintf("has the address %v, as %s has: both names mean one machine, or two machines have one address", a, other.Name),
					"name each host once, or look for a wrong entry in /etc/hosts or the DNS of the launcher's host")
				break
			}
			machines[a] = h
		}
	}
	for _, h := range r.Hosts {
		if h.Facts == nil {
			continue
		}
		for _, l := range h.Facts.Lookups {
			of := hosts[l.Name]
			if of == nil || of == h || of.Facts == nil {
				continue
			}
			if _, err := netip.ParseAddr(l.Name); err == nil {
				continue // an address may be that of a gateway; the links tell
			}
			const remedy = "mend the entry in /etc/hosts of %s, or in its DNS: getent ahosts %s"
			own := addrsOf(of.Facts)
			switch found := func(a netip.Addr) bool { return slices.Contains(own, a) }; {
			case l.Error != "":
				add("name", h.Name, of.Name, "cannot look up "+l.Name+": "+l.Error, fmt.Sprintf("give %[2]s an address in /etc/hosts of %[1]s, or in its DNS: getent ahosts %[2]s", h.Name, l.Name))
			case slices.ContainsFunc(l.Addrs, netip.Addr.IsLoopback):
				add("name", h.Name, of.Name, fmt.Sprintf("%s is %s there: loopback, where only %s itself can be reached", l.Name, list(l.Addrs), h.Name), fmt.Sprintf(remedy, h.Name, l.Name))
			case !slices.ContainsFunc(l.Addrs, found):
				add("name", h.Name, of.Name, fmt.Sprintf("%s is %s there, but %s has %s", l.Name, list(l.Addrs), l.Name, list(own)), fmt.Sprintf(remedy, h.Name, l.Name))
			}
		}
	}
}

// diagnoseMTU compares the MTU of each interface with that of the first host in the same network. A
// host with a smaller MTU does not receive the full-size packets of a host with a larger one.
func diagnoseMTU(r *Examination, add func(kind, host, peer, what, remedy string)) {
	first := make(map[netip.Prefix]*HostReport)
	for _, h := range r.Hosts {
		n := network(h)
		switch other := first[n]; {
		case !n.IsValid():
		case other == nil:
			first[n] = h
		case h.Listening.MTU != other.Listening.MTU:
			a, b := h.Listening, other.Listening
			add("mtu", h.Name, other.Name, fmt.Sprintf("%s has MTU %d, and %s of %s, in the same network %v, has %d: packets of full size may be lost", a.Interface, a.MTU, b.Interface, other.Name, n, b.MTU),
				fmt.Sprintf("give both the same MTU, which the network carries: ip link set %s mtu %d on %s, or ip link set %s mtu %d on %s", a.Interface, b.MTU, h.Name, b.Interface, a.MTU, other.Name))
		}
	}
}

// network returns the network of a host's listener.
func network(h *HostReport) netip.Prefix {
	all := reachedBy(h).Prefixes
	if len(all) == 0 {
		return netip.Prefix{}
	}
	host, _, _ := net.SplitHostPort(h.Listening.Address)
	best := slices.IndexFunc(all, func(p netip.Prefix) bool { return p.Addr().String() == host })
	return all[max(best, 0)].Masked()
}

// reachedBy returns the interface by which other hosts reach a host, or the zero Interface.
func reachedBy(h *HostReport) Interface {
	if h.Facts != nil && h.Listening != nil {
		for _, i := range h.Facts.Interfaces {
			if i.Name == h.Listening.Interface {
				return i
			}
		}
	}
	return Interface{}
}

// diagnosePair diagnoses the failure of one host to connect to another.
func diagnosePair(r *Examination, l *Pair, add func(kind, host, peer, what, remedy string)) {
	if l.Trouble == "" {
		return
	}
	find := func(name string) *Facts {
		if i := slices.IndexFunc(r.Hosts, func(h *HostReport) bool { return h.Name == name }); i >= 0 {
			return r.Hosts[i].Facts
		}
		return nil
	}
	if from, to := find(l.From), find(l.To); from != nil && to != nil && l.Trouble != troubleLarge {
		if a, b := families(from), families(to); a != "" && b != "" && !strings.Contains(a, b) && !strings.Contains(b, a) {
			add("family", l.From, l.To, fmt.Sprintf("has only %s addresses, and %s has only %s: they cannot reach each other", a, l.To, b),
				"give both an address of the same family, or choose hosts of one family")
			return
		}
	}
	host, port, _ := net.SplitHostPort(l.Address)
	what := fmt.Sprintf("cannot connect to %s at %s: %s", l.To, l.Address, l.Error)
	switch l.Trouble {
	case troubleLookup:
		add("name", l.From, l.To, what, "give "+l.To+" an address in /etc/hosts of "+l.From+", or in its DNS")
	case troubleRoute:
		add("route", l.From, l.To, what, "look at ip route get "+host+" on "+l.From+", and choose an interface of a common network by --interface; if ping "+host+" works there, a firewall on either host answers so, as firewalld does: let that on "+l.To+" accept port "+port+", or a range of ports that --listen :FIRST-LAST checks and -x TUTTI_LISTEN=:FIRST-LAST gives to ranks")
	case troubleDenied:
		add("port", l.From, l.To, what, "let the firewall on "+l.From+" itself pass connections to "+host+" (nft list ruleset), or look for a sandbox that forbids them")
	case troubleRefused:
		add("port", l.From, l.To, what+", although the probe listens there", "let a firewall on "+l.To+" accept port "+port+" from "+l.From+" (nft list ruleset), or "+openRange+"; see also that the address means "+l.To)
	case troubleSilent:
		add("port", l.From, l.To, what, "let firewalls and security groups between them accept port "+port+" (nft list ruleset on both), or "+openRange)
	case troubleLarge:
		add("mtu", l.From, l.To, fmt.Sprintf("small packets reach %s at %s, but packets of full size do not: %s", l.To, l.Address, l.Error),
			"lower the MTU of both interfaces to what the path carries (ping -M do -s 1472 "+l.To+" finds it), or let ICMP \"fragmentation needed\" through")
	default:
		add("link", l.From, l.To, what, "see which process listens at "+l.Address+", and that the address means "+l.To)
	}
}

// openRange is a remedy for closed ports that also helps later jobs.
const openRange = "open a range of ports, check it by --listen :FIRST-LAST, and give it to ranks by -x TUTTI_LISTEN=:FIRST-LAST"

// addrsOf returns the addresses by which other hosts may reach a host.
func addrsOf(f *Facts) (all []netip.Addr) {
	for _, i := range f.Interfaces {
		for _, p := range i.Prefixes {
			if a := p.Addr(); !a.IsLoopback() && !a.IsLinkLocalUnicast() {
				all = append(all, a)
			}
		}
	}
	return all
}

// families returns the families of a host's addresses: IPv4, IPv6, or both.
func families(f *Facts) string {
	var names []string
	for _, a := range addrsOf(f) {
		if a.Is4() {
			names = append(names, "IPv4")
		} else {
			names = append(names, "IPv6")
		}
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), " ")
}

// list formats addresses for a message, at most 8 of them.
func list(addrs []netip.Addr) string {
	var parts []string
	for _, a := range addrs[:min(len(addrs), 8)] {
		parts = append(parts, a.String())
	}
	return cmp.Or(strings.Join(parts, ", "), "no address")
}

// amount formats a number of bytes with a unit.
func amount(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	v, i := float64(n), 0
	for ; v >= 1024 && i < len(units)-1; i++ {
		v /= 1024
	}
	return fmt.Sprintf("%.4g %s", v, units[i])
}
