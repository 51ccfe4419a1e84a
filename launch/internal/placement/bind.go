package placement

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tutti-go/tutti/internal/cpu"
)

// units groups the processors that ranks may use into those that make up one slot each: cores, or
// hardware threads. Cores are ordered by socket, then by number.
func (p *Policy) units(cpus []cpu.Thread) [][]cpu.Thread {
	if p.Threads || p.Bind == HWThread {
		return p.group(cpus, HWThread)
	}
	return p.group(cpus, Core)
}

// group groups the processors that ranks may use by a unit. The units Slot and Node put all of them
// in one group.
func (p *Policy) group(cpus []cpu.Thread, by Unit) (groups [][]cpu.Thread) {
	key := func(c cpu.Thread) [3]int {
		switch by {
		case Slot, Node:
			return [3]int{}
		case Core:
			return [3]int{c.Socket, c.NUMA, c.Core}
		case Socket:
			return [3]int{c.Socket}
		case NUMA:
			return [3]int{c.Socket, c.NUMA}
		}
		return [3]int{c.Socket, c.Core, c.ID}
	}
	usable := slices.Clone(cpus)
	if p.CPUs != nil {
		usable = slices.DeleteFunc(usable, func(c cpu.Thread) bool { return !slices.Contains(p.CPUs, c.ID) })
	}
	slices.SortFunc(usable, func(a, b cpu.Thread) int {
		ka, kb := key(a), key(b)
		return cmp.Or(slices.Compare(ka[:], kb[:]), cmp.Compare(a.ID, b.ID))
	})
	for i, c := range usable {
		if i == 0 || key(usable[i-1]) != key(c) {
			groups = append(groups, nil)
		}
		groups[len(groups)-1] = append(groups[len(groups)-1], c)
	}
	return groups
}

// bind returns the processors of each of n ranks of a host.
func (p *Policy) bind(h *Host, n int) ([][]int, error) {
	if len(h.CPUs) == 0 {
		return nil, fmt.Errorf("host %s: got no list of its processors, want one for --bind-to; bind no ranks with --bind-to none", h.Name)
	}
	units := p.group(h.CPUs, p.Bind) // with --cpu-list only, all ranks share one unit
	if len(units) == 0 {
		return nil, fmt.Errorf("host %s: got processors %v, want some that exist and that this user may use: %v", h.Name, p.CPUs, ids(h.CPUs))
	}
	width := max(p.Width, 1)
	if width > len(units) {
		return nil, fmt.Errorf("host %s: got %d processors or cores for each rank, want at most the %d that it has", h.Name, width, len(units))
	}
	exclusive := p.Bind == Core || p.Bind == HWThread
	if exclusive && !p.Share && n*width > len(units) {
		return nil, fmt.Errorf("host %s: got %d ranks, each to be bound to %d of the host's %d cores or threads, want at most %d ranks; --bind-to none leaves them unbound, and --bind-to core:overload-allowed lets them share",
			h.Name, n, width, len(units), len(units)/width)
	}
	order := p.order(units, width, h.CPUs)
	bound := make([][]int, n)
	for i := range bound {
		for k := range width {
			bound[i] = append(bound[i], ids(units[(order[i%len(order)]+k)%len(units)])...)
		}
		slices.Sort(bound[i])
	}
	return bound, nil
}

// BindOne returns the processors for the rank with the given local index on a host. They are the
// same as Assign would give to that rank. The result is nil if the Policy binds no ranks.
func (p *Policy) BindOne(h *Host, local int) ([]int, error) {
	if !p.binds() {
		return nil, nil
	}
	bound, err := p.bind(h, local+1)
	if err != nil {
		return nil, err
	}
	return bound[local], nil
}

// order returns the first unit of each rank. Ranks take the units one after the other. If they are
// mapped by socket or by NUMA node, they take one unit of each socket or node in turn. If ranks are
// bound to sockets or NUMA nodes but mapped by slot, each rank gets the socket or node of the core
// that it would otherwise have.
func (p *Policy) order(units [][]cpu.Thread, width int, cpus []cpu.Thread) []int {
	if p.Bind == Socket || p.Bind == NUMA {
		if p.MapBy == Socket || p.MapBy == NUMA || width > 1 {
			return starts(len(units), width)
		}
		var order []int
		for i, unit := range units {
			order = append(order, slices.Repeat([]int{i}, len(p.group(unit, Core)))...)
		}
		return order
	}
	first := starts(len(units), width)
	if p.MapBy != Socket && p.MapBy != NUMA || len(p.group(cpus, p.MapBy)) < 2 {
		return first
	}
	// Group the starting units by socket or NUMA node, and take one from each in turn.
	var groups [][]int
	for _, unit := range p.group(cpus, p.MapBy) {
		var group []int
		for _, f := range first {
			if slices.Contains(unit, units[f][0]) {
				group = append(group, f)
			}
		}
		groups = append(groups, group)
	}
	var order []int
	for turn := 0; len(order) < len(first); turn++ {
		for _, group := range groups {
			if turn < len(group) {
				order = append(order, group[turn])
			}
		}
	}
	return order
}

// starts returns 0, width, 2*width and so on, while width units are left.
func starts(n, width int) (at []int) {
	for i := 0; i+width <= n; i += width {
		at = append(at, i)
	}
	return at
}

// ids returns the numbers of processors.
func ids(cpus []cpu.Thread) []int {
	n := make([]int, len(cpus))
	for i, c := range cpus {
		n[i] = c.ID
	}
	return n
}
