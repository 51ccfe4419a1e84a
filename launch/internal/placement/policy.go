package placement

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A Unit is a part of a job's hosts to which ranks are mapped or bound.
type Unit uint8

// The units. As a target of binding, Slot and Node mean that ranks are not bound.
const (
	Slot Unit = iota
	Node
	Core
	HWThread
	Socket
	NUMA
)

// Overload says what happens to ranks for which no slot is left.
type Overload uint8

// The package comment shows an example of each rule.
const (
	Refuse Overload = iota
	Allow
	Wrap
)

// A Policy says how ranks are mapped to hosts and bound to processors. The zero Policy fills the
// slots of host after host, refuses more ranks than slots, and binds no rank.
type Policy struct {
	MapBy  Unit
	RankBy Unit // Slot numbers ranks host by host, Node gives consecutive ranks to different hosts
	Bind   Unit
	Over   Overload

	PerNode   int // ranks of each host; 0: as many as its slots
	PerSocket int // ranks of each socket, in place of PerNode; 0: not limited

	Width   int   // the number of units to which each rank is bound; 0 means 1
	CPUs    []int // the processors that ranks may use on each host; nil: all
	Threads bool  // slots are counted by hardware threads, not by cores
	Share   bool  // several ranks may be bound to the same processors
}

// NeedsCPUs reports whether Assign needs to know the processors of the hosts.
func (p *Policy) NeedsCPUs(hosts []Host) bool {
	return p.PerSocket > 0 || p.binds() || slices.ContainsFunc(hosts, func(h Host) bool { return h.Slots == 0 })
}

// binds reports whether ranks are bound to processors.
func (p *Policy) binds() bool { return p.Bind > Node || p.CPUs != nil }

// names has the units as users write them. Open MPI 5 calls a socket a package.
var names = map[string]Unit{
	"slot": Slot, "node": Node, "core": Core, "hwthread": HWThread, "socket": Socket, "package": Socket, "numa": NUMA,
}

// ParseMapBy applies the value of --map-by: a unit, ppr:N:node or ppr:N:socket. Modifiers may
// follow after a colon.
func (p *Policy) ParseMapBy(value string) error {
	words := strings.Split(strings.ToLower(value), ":")
	unit, modifiers := words[0], words[1:]
	if unit == "ppr" {
		if len(words) < 3 {
			return fmt.Errorf("got %q, want ppr:N:node or ppr:N:socket", value)
		}
		n, err := number(words[1])
		if err != nil {
			return fmt.Errorf("ppr: %w", err)
		}
		switch u, ok := names[words[2]]; {
		case ok && u == Node:
			p.PerNode = n
		case ok && u == Socket:
			p.PerSocket, p.MapBy = n, Socket
		default:
			return fmt.Errorf("got %q, want ppr:N:node or ppr:N:socket", value)
		}
		modifiers = words[3:]
	} else if unit != "" {
		u, ok := names[unit]
		if !ok {
			return fmt.Errorf("got %q, want slot, node, core, hwthread, socket, numa, ppr:N:node or ppr:N:socket", value)
		}
		p.MapBy, p.RankBy = u, Slot
		if u == Node {
			p.RankBy = Node
		}
	}
	for _, word := range modifiers {
		if err := p.modify(word); err != nil {
			return err
		}
	}
	return nil
}

// modify applies one modifier of --map-by.
func (p *Policy) modify(word string) error {
	for m := range strings.SplitSeq(word, ",") {
		key, value, _ := strings.Cut(m, "=")
		switch key {
		case "pe":
			n, err := number(value)
			if err != nil {
				return fmt.Errorf("pe: %w", err)
			}
			p.BindWidth(n)
		case "oversubscribe":
			p.Over = Allow
		case "nooversubscribe":
			p.Over = Refuse
		case "hwtcpus":
			p.Threads = true
		case "corecpus", "inherit", "noinherit":
		default:
			return fmt.Errorf("got modifier %q, want pe=N, oversubscribe, nooversubscribe, hwtcpus or corecpus", m)
		}
	}
	return nil
}

// BindWidth binds each rank to n cores, or to n of the units to which ranks already are bound.
func (p *Policy) BindWidth(n int) {
	p.Width = n
	if p.Bind <= Node {
		p.Bind = Core
	}
}

// ParseRankBy applies the value of --rank-by. Call it after ParseMapBy, which overwrites RankBy,
// and whose unit is also a legal value of --rank-by.
func (p *Policy) ParseRankBy(value string) error {
	u, ok := names[strings.ToLower(value)]
	switch {
	case !ok:
		return fmt.Errorf("got %q, want slot or node", value)
	case u == Node:
		p.RankBy = Node
	case (u == Socket || u == NUMA) && u != p.MapBy:
		return fmt.Errorf("got %q, want slot or node, or the unit of --map-by", value)
	default:
		p.RankBy = Slot
	}
	return nil
}

// ParseBindTo applies the value of --bind-to: none or a unit, which modifiers may follow after a
// colon. Hydra's core:2 binds each rank to two cores, and user:0,1 lists processors.
func (p *Policy) ParseBindTo(value string) error {
	unit, modifier, has := strings.Cut(strings.ToLower(value), ":")
	if unit == "user" || unit == "cpu-list" || unit == "cpuset" {
		if !has {
			return nil // the processors are in --cpu-list
		}
		cpus, err := ParseCPUs(modifier)
		p.CPUs = cpus
		return err
	}
	u, ok := names[unit]
	switch {
	case unit == "none" || unit == "board" || unit == "machine":
		p.Bind = Slot
	case !ok || u <= Node:
		return fmt.Errorf("got %q, want none, core, hwthread, socket or numa", value)
	default:
		p.Bind = u
	}
	if !has {
		return nil
	}
	for m := range strings.SplitSeq(modifier, ":") {
		switch m {
		case "overload-allowed":
			p.Share = true
		case "no-overload", "if-supported", "ordered":
		default:
			n, err := number(m)
			if err != nil {
				return fmt.Errorf("got modifier %q, want a number of %ss, overload-allowed or if-supported", m, unit)
			}
			p.Width = n
		}
	}
	return nil
}

// ParseCPUs parses a list of processors such as 0,2-4.
func ParseCPUs(list string) ([]int, error) {
	var cpus []int
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(strings.TrimSpace(part), "-")
		lo, err := strconv.Atoi(first)
		hi := lo
		if isRange && err == nil {
			hi, err = strconv.Atoi(last)
		}
		if err != nil || lo < 0 || hi < lo || hi >= maxSlots {
			return nil, fmt.Errorf("got %.40q, want processors such as 0,2-4", list)
		}
		for c := lo; c <= hi; c++ {
			cpus = append(cpus, c)
		}
	}
	slices.Sort(cpus)
	return slices.Compact(cpus), nil
}

// errNoCPUs is the error for a host whose processors are unknown.
var errNoCPUs = errors.New("its processors are unknown")
