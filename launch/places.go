package launch

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/tutti-go/tutti/internal/cpu"
	"github.com/tutti-go/tutti/launch/internal/placement"
)

// assign returns the place of each rank of apps on the given hosts, and the apps with the number of
// their ranks. Without hosts, all ranks are on this host, which may have more ranks than processors.
func (j *Job) assign(apps []App, hosts []placement.Host) ([]placement.Assignment, []App, error) {
	policy, programs := j.Placement, make([]placement.Program, len(apps))
	for i := range apps {
		programs[i] = placement.Program{Ranks: apps[i].Ranks, Hosts: apps[i].Hosts}
	}
	if hosts == nil {
		// The slots are the processors that this process may use, because the ranks inherit its
		// affinity.
		hosts = []placement.Host{{Name: "localhost", Slots: processors()}}
		if policy.Over == placement.Refuse {
			policy.Over = placement.Allow
		}
	}
	if len(hosts) == 1 && isHere(hosts[0].Name) && policy.NeedsCPUs(hosts) {
		hosts = slices.Clone(hosts)
		hosts[0].CPUs = cpu.Topology()
	}
	places, err := placement.Assign(hosts, programs, policy)
	if err != nil {
		return nil, nil, err
	}
	if len(places) > MaxRanks {
		return nil, nil, fmt.Errorf("got %d ranks, want at most %d", len(places), MaxRanks)
	}
	apps = slices.Clone(apps)
	for i := range apps {
		apps[i].Ranks = 0
	}
	for _, p := range places {
		apps[p.Program].Ranks++
	}
	return places, apps, nil
}

// isHere reports whether a name means this host. As in mpirun, names that differ only by a domain
// are equal.
func isHere(name string) bool {
	switch name {
	case "localhost", "127.0.0.1", "::1":
		return true
	}
	own := hostname()
	return own != "" && (name == own || strings.HasPrefix(name, own+".") || strings.HasPrefix(own, name+"."))
}

// hostname returns this host's name, or "" if it has none.
func hostname() string {
	name, _ := os.Hostname()
	return name
}

// lookupLimit bounds the time of a name's lookup.
const lookupLimit = 2 * time.Second

// isKnown reports whether a host's name has an address that other hosts can use, too.
func isKnown(ctx context.Context, name string) bool {
	ctx, cancel := context.WithTimeout(ctx, lookupLimit)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", withoutUser(name))
	return err == nil && !slices.ContainsFunc(addrs, netip.Addr.IsLoopback)
}

// withoutUser returns a host's name without the prefix "user@", which ssh allows.
func withoutUser(name string) string { return name[strings.LastIndexByte(name, '@')+1:] }

// lookedUp returns the name by which ranks on other hosts look up rank 0 on a host. It returns ""
// if those ranks get an address instead.
func lookedUp(ctx context.Context, name string) string {
	if isHere(name) {
		name = hostname()
	}
	if !isKnown(ctx, name) {
		return ""
	}
	return withoutUser(name)
}

// processors returns how many hardware threads this process may use.
func processors() int { return runtime.NumCPU() }

// describePlaces returns the lines of --display-map and --report-bindings.
func (j *Job) describePlaces(hosts []placement.Host, places []placement.Assignment) (lines []string) {
	name := func(host int) string {
		if host < len(hosts) {
			return hosts[host].Name
		}
		return "this host"
	}
	if j.DisplayMap {
		byHost, order := make(map[int][]int), []int(nil)
		for rank, p := range places {
			if byHost[p.Host] == nil {
				order = append(order, p.Host)
			}
			byHost[p.Host] = append(byHost[p.Host], rank)
		}
		for _, h := range order {
			lines = append(lines, fmt.Sprintf("%s: %s", name(h), plural("rank", byHost[h])))
		}
	}
	if j.ReportBindings {
		for rank, p := range places {
			bound := "is not bound"
			if p.CPUs != nil {
				bound = "is bound to " + plural("processor", p.CPUs)
			}
			lines = append(lines, fmt.Sprintf("rank %d on %s %s", rank, name(p.Host), bound))
		}
	}
	return lines
}

// plural formats numbers in ascending order, with consecutive ones as a range: ranks 0-3,6.
func plural(noun string, n []int) string {
	var parts []string
	for i := 0; i < len(n); {
		end := i
		for end+1 < len(n) && n[end+1] == n[end]+1 {
			end++
		}
		if end == i {
			parts = append(parts, fmt.Sprint(n[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", n[i], n[end]))
		}
		i = end + 1
	}
	if len(n) != 1 {
		noun += "s"
	}
	return noun + " " + strings.Join(parts, ",")
}
