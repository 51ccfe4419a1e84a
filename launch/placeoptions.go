package launch

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/tutti-go/tutti/launch/internal/placement"
)

// A placer collects what the command line says about hosts and places.
type placer struct {
	file      string            // the host file; "" if there is none
	dialect   placement.Dialect // the dialect of a host file without slots
	byDefault string            // the host file to use if the user names neither hosts nor a file
	slots     int               // the slots of a host that the file names without slots; 0: one per core

	over    *placement.Overload // the user's choice; nil: the choice of the dialect
	hydra   bool                // the user has given an option or a host file of Hydra
	torch   bool                // torchrun's options say how many ranks each host has
	perCore bool                // each host has one slot per core, whatever slots its entry gives
	nodes   int                 // --nnodes; 0: all hosts
	nolocal bool
	rankBy  string // --rank-by is applied after --map-by
}

// placeOptions returns the options that place ranks on hosts and processors.
func placeOptions() []option {
	policy := func(p *parser) *placement.Policy { return &p.req.job.Placement }
	overload := func(o placement.Overload) func(*parser, []string) error {
		return func(p *parser, _ []string) error { p.place.over = &o; return nil }
	}
	mapBy := func(value string) func(*parser, []string) error {
		return func(p *parser, _ []string) error { return policy(p).ParseMapBy(value) }
	}
	bindTo := func(value string) func(*parser, []string) error {
		return func(p *parser, _ []string) error { return policy(p).ParseBindTo(value) }
	}
	perNode := func(p *parser, text string) (err error) { policy(p).PerNode, err = count(text); return }
	return []option{
		{names: []string{"H", "host"}, args: 1, operand: "HOST[:SLOTS],...", help: "the hosts that run the program, with one slot each by default",
			set: func(p *parser, a []string) error { return p.hosts(a[0]) }},
		{names: []string{"hosts"}, args: 1, operand: "HOST[:SLOTS],...", help: "the same; as in mpiexec, more ranks than slots begin again with the first host",
			set: func(p *parser, a []string) error { p.place.hydra = true; return p.hosts(a[0]) }},
		{names: []string{"hostfile", "machinefile"}, args: 1, operand: "FILE", help: "a file with a host on each line, as \"n1 slots=2\" or \"n1:2\"",
			set: func(p *parser, a []string) error { return p.hostFile(a[0]) }},
		{names: []string{"f"}, args: 1, operand: "FILE", help: "the same; a host without slots has one",
			set: func(p *parser, a []string) error {
				p.place.hydra, p.place.dialect = true, placement.Hydra
				return p.hostFile(a[0])
			}},
		{names: []string{"default-hostfile"}, args: 1, operand: "FILE", help: "the host file if no hosts are named",
			set: func(p *parser, a []string) error { p.place.byDefault = a[0]; return nil }},
		{names: []string{"N", "npernode"}, args: 1, operand: "N", help: "run N ranks on each host",
			set: func(p *parser, a []string) error { return perNode(p, a[0]) }},
		{names: []string{"ppn", "perhost", "grr"}, args: 1, operand: "N", help: "the same, whatever the slots are, and begin again with the first host",
			set: func(p *parser, a []string) error { p.place.hydra = true; return perNode(p, a[0]) }},
		{names: []string{"pernode"}, help: "run one rank on each host",
			set: func(p *parser, _ []string) error { return perNode(p, "1") }},
		{names: []string{"npersocket"}, args: 1, operand: "N", help: "run N ranks on each socket",
			set: func(p *parser, a []string) error { return policy(p).ParseMapBy("ppr:" + a[0] + ":socket") }},
		{names: []string{"ppr"}, args: 1, operand: "N:UNIT", set: func(p *parser, a []string) error { return policy(p).ParseMapBy("ppr:" + a[0]) }},
		{names: []string{"map-by"}, args: 1, operand: "UNIT", help: "place ranks by slot (the default), node, core, hwthread, socket, numa, ppr:N:node or ppr:N:socket; modifiers: :pe=N, :oversubscribe",
			set: func(p *parser, a []string) error { return policy(p).ParseMapBy(a[0]) }},
		{names: []string{"byslot"}, set: mapBy("slot")},
		{names: []string{"bynode", "rr"}, set: mapBy("node")},
		{names: []string{"bycore"}, set: mapBy("core")},
		{names: []string{"bysocket"}, set: mapBy("socket")},
		{names: []string{"rank-by"}, args: 1, operand: "UNIT", help: "number ranks host by host (slot) or round robin (node)",
			set: func(p *parser, a []string) error { p.place.rankBy = a[0]; return nil }},
		{names: []string{"bind-to"}, args: 1, operand: "UNIT", help: "bind each rank to a core, hwthread, socket or numa node, or to several as in core:2; none is the default",
			set: func(p *parser, a []string) error { return policy(p).ParseBindTo(a[0]) }},
		{names: []string{"bind-to-none"}, set: bindTo("none")},
		{names: []string{"bind-to-core"}, set: bindTo("core")},
		{names: []string{"bind-to-socket"}, set: bindTo("socket")},
		{names: []string{"cpus-per-proc", "cpus-per-rank"}, args: 1, operand: "N", help: "bind each rank to N cores",
			set: func(p *parser, a []string) error {
				n, err := count(a[0])
				policy(p).BindWidth(n)
				return err
			}},
		{names: []string{"cpu-set", "cpu-list"}, args: 1, operand: "LIST", help: "use only these processors of each host, such as 0,2-4",
			set: func(p *parser, a []string) (err error) { policy(p).CPUs, err = placement.ParseCPUs(a[0]); return }},
		{names: []string{"use-hwthread-cpus"}, help: "count slots by hardware threads, not by cores",
			set: func(p *parser, _ []string) error { policy(p).Threads = true; return nil }},
		{names: []string{"oversubscribe"}, help: "allow more ranks than the hosts have slots", set: overload(placement.Allow)},
		{names: []string{"nooversubscribe"}, help: "refuse more ranks than slots or, without hosts, than processors", set: overload(placement.Refuse)},
		{names: []string{"nolocal", "skip-launch-node"}, help: "run no rank on this host",
			set: func(p *parser, _ []string) error { p.place.nolocal = true; return nil }},
		{names: []string{"report-bindings"}, help: "print the processors to which each rank is bound",
			set: func(p *parser, _ []string) error { p.req.job.ReportBindings = true; return nil }},
		{names: []string{"display-map", "display-allocation", "display-devel-map", "print-rank-map"}, help: "print which ranks run on which host",
			set: func(p *parser, _ []string) error { p.req.job.DisplayMap = true; return nil }},
		{names: []string{"nnodes"}, args: 1, operand: "N", help: "use N of the hosts, as torchrun does",
			set: func(p *parser, a []string) error {
				lo, hi, ranged := strings.Cut(a[0], ":")
				if ranged && lo != hi {
					return fmt.Errorf("got %q, want one number: --min-np and --max-np bound the ranks of a job that changes", a[0])
				}
				var err error
				p.place.nodes, err = count(lo)
				return err
			}},
		{names: []string{"nproc-per-node"}, args: 1, operand: "N", help: "run N ranks on each host, or with auto one per processor",
			set: func(p *parser, a []string) error {
				switch a[0] {
				case "auto", "cpu":
					p.place.perCore = true
					return nil
				case "gpu":
					return errors.New("got \"gpu\", want a number, auto or cpu: tuttirun does not count GPUs")
				}
				p.place.torch = true
				return perNode(p, a[0])
			}},
		{names: []string{"numa-binding"}, args: 1, operand: "KIND", help: "bind ranks as torchrun does: node, socket or exclusive",
			set: func(p *parser, a []string) error {
				unit, ok := map[string]string{"node": "numa", "socket": "socket", "exclusive": "core"}[a[0]]
				if !ok {
					return fmt.Errorf("got %q, want node, socket or exclusive", a[0])
				}
				return policy(p).ParseBindTo(unit)
			}},
	}
}

// hosts parses host[:slots],... for one program. Several lists add up.
func (p *parser) hosts(list string) error {
	hosts, err := placement.ParseList(list)
	if err != nil {
		return err
	}
	p.app.Hosts = placement.Merge(append(p.app.Hosts, hosts...), isHere)
	return nil
}

// hostFile remembers the host file. All programs share it.
func (p *parser) hostFile(name string) error {
	if p.place.file != "" && p.place.file != name {
		return fmt.Errorf("got a second host file %s, want one: write all hosts into %s", name, p.place.file)
	}
	p.place.file = name
	return nil
}

// readHosts reads a host file.
func (p *parser) readHosts(name string) ([]placement.Host, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("host file: %w", err)
	}
	defer f.Close()
	hosts, dialect, err := placement.ParseFile(f, name, p.place.dialect)
	if err != nil {
		return nil, err
	}
	p.place.hydra = p.place.hydra || dialect == placement.Hydra
	for i := range hosts {
		hosts[i].Slots = cmp.Or(hosts[i].Slots, p.place.slots)
	}
	return placement.Merge(hosts, isHere), nil
}

// finishHosts decides on which hosts the job may run, and by which rules.
func (p *parser) finishHosts() error {
	j := &p.req.job
	for i := range j.Apps {
		j.Hosts = append(j.Hosts, j.Apps[i].Hosts...)
	}
	j.Hosts = placement.Merge(j.Hosts, isHere)
	discovers := p.elastic.Discovery != ""
	if discovers && (j.Hosts != nil || p.place.file != "") {
		return usagef("--host-discovery-script: got -H or a host file, too, want one source of hosts; let the script print these hosts")
	}
	if file := p.place.file; file != "" || p.place.byDefault != "" && j.Hosts == nil && !discovers {
		hosts, err := p.readHosts(cmp.Or(file, p.place.byDefault))
		if err != nil {
			return usagef("%v", err)
		}
		for i := range j.Apps {
			if list := j.Apps[i].Hosts; list != nil {
				if j.Apps[i].Hosts, err = placement.Select(hosts, list); err != nil {
					return usagef("-H: %v", err)
				}
			}
		}
		j.Hosts = hosts
	}
	// A program for which no host is named may use all of them.
	if len(j.Apps) == 1 && j.Apps[0].Hosts != nil {
		j.Hosts, j.Apps[0].Hosts = j.Apps[0].Hosts, nil
	}
	if p.place.nolocal {
		j.Hosts = slices.DeleteFunc(j.Hosts, func(h placement.Host) bool { return isHere(h.Name) })
		if len(j.Hosts) == 0 {
			return usagef("--nolocal: got no other host, want some by -H or --hostfile")
		}
	}
	if n := p.place.nodes; n > max(len(j.Hosts), 1) {
		return usagef("--nnodes: got %d, want at most %d, the hosts that -H or --hostfile names", n, max(len(j.Hosts), 1))
	} else if n > 0 && len(j.Hosts) > 0 {
		j.Hosts = j.Hosts[:n]
	}
	if p.place.perCore {
		for i := range j.Hosts {
			j.Hosts[i].Slots = 0
		}
	}
	if p.place.rankBy != "" {
		if err := j.Placement.ParseRankBy(p.place.rankBy); err != nil {
			return usagef("--rank-by: %v", err)
		}
	}
	switch over := p.place.over; {
	case over != nil:
		j.Placement.Over = *over
	case j.Placement.Over != placement.Refuse: // --map-by :oversubscribe
	case p.place.hydra:
		j.Placement.Over = placement.Wrap
	case p.place.torch:
		j.Placement.Over = placement.Allow
	}
	if over := p.place.over; j.Hosts == nil && over != nil && *over == placement.Refuse {
		j.Hosts = []placement.Host{{Name: "localhost", Slots: processors()}}
	}
	return nil
}

// finishRanks fills in the number of ranks of each program, where it is known before the hosts have
// answered. It returns the sum, or 0 if it is not known yet.
func (p *parser) finishRanks() (total int, err error) {
	j := &p.req.job
	elsewhere := slices.ContainsFunc(j.Hosts, func(h placement.Host) bool { return !isHere(h.Name) })
	if elsewhere && j.Placement.NeedsCPUs(j.Hosts) {
		return 0, nil
	}
	places, apps, err := j.assign(j.Apps, j.Hosts)
	if err != nil {
		if over := p.place.over; over != nil && *over == placement.Refuse {
			err = fmt.Errorf("--nooversubscribe: %w", err)
		}
		return 0, usagef("%v", err)
	}
	j.Apps = apps
	return len(places), nil
}
