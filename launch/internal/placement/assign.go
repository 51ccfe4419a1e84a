package placement

import (
	"fmt"
	"slices"
)

// A Program is what Assign needs to know of one program of a job.
type Program struct {
	Ranks int    // 0: as many as the slots that are left, or as PerNode or PerSocket allow
	Hosts []Host // the hosts of this program only; nil: all hosts of the job
}

// An Assignment says where one rank runs.
type Assignment struct {
	Host    int // the index of its host
	Node    int // the index of its host among the hosts that have ranks, in the order of their lowest ranks
	Program int // the index of its program

	Local, LocalSize int   // the rank's index among the ranks of its host, and how many ranks the host has
	Cross, CrossSize int   // the same, counted among the ranks of all hosts that have the same Local
	CPUs             []int // the processors to which it is bound; nil: not bound
}

// Assign returns the place of each rank, in the order of ranks. The ranks of each Program are
// consecutive. The parameter hosts must also hold the hosts that only one Program names, with the
// slots that all programs together may use.
func Assign(hosts []Host, programs []Program, p Policy) ([]Assignment, error) {
	if len(hosts) == 0 {
		return nil, fmt.Errorf("got no hosts, want at least one")
	}
	a := assigner{Policy: p, hosts: hosts, used: make([]int, len(hosts))}
	var places []Assignment
	for i, program := range programs {
		order, err := a.program(program)
		if err != nil {
			return nil, err
		}
		for _, h := range order {
			places = append(places, Assignment{Host: h, Program: i})
		}
	}
	return places, a.finish(places)
}

// An assigner maps the programs of one job, one after the other.
type assigner struct {
	Policy
	hosts []Host
	used  []int // how many ranks each host has so far
}

// program returns the host of each rank of a Program.
func (a *assigner) program(app Program) ([]int, error) {
	// The slots that this Program may use, by host. A host that the Program does not name has none.
	room := make([]int, len(a.hosts))
	var named []int
	limit := func(i int, h Host) error {
		n := h.SlotsUnder(&a.Policy)
		if n == 0 {
			return fmt.Errorf("host %s: got no slots, and %w; give the number of slots, as in %s:2", h.Name, errNoCPUs, h.Name)
		}
		room[i] = n
		named = append(named, i)
		return nil
	}
	if app.Hosts == nil {
		for i, h := range a.hosts {
			if err := limit(i, h); err != nil {
				return nil, err
			}
		}
	}
	for _, h := range app.Hosts {
		i := find(a.hosts, h.Name)
		if i < 0 {
			return nil, fmt.Errorf("host %s: a program names this host, but it is not a host of the job", h.Name)
		}
		h.CPUs = a.hosts[i].CPUs
		if err := limit(i, h); err != nil {
			return nil, err
		}
	}
	if a.Over == Wrap {
		return a.wrap(app.Ranks, named, room)
	}
	counts, err := a.counts(app.Ranks, named, room)
	if err != nil {
		return nil, err
	}
	for i, n := range counts {
		a.used[i] += n
	}
	return a.number(named, counts), nil
}

// wrap fills the slots of one host after another. When all are full, it begins again with the first
// host, as Hydra does. If Policy.PerNode is set, each host gets that number of ranks per turn,
// however many slots it has.
func (a *assigner) wrap(ranks int, named, room []int) (order []int, err error) {
	turn, total := make([]int, len(room)), 0
	for _, i := range named {
		if turn[i], err = a.perTurn(i, room[i]); err != nil {
			return nil, err
		}
		total += turn[i]
	}
	if ranks == 0 {
		ranks = total
	}
	for len(order) < ranks {
		before := len(order)
		for _, i := range named {
			n := min(turn[i], ranks-len(order))
			if m := a.hosts[i].Max; m > 0 {
				n = min(n, m-a.used[i])
			}
			order = append(order, slices.Repeat([]int{i}, n)...)
			a.used[i] += n
		}
		if len(order) == before {
			return nil, fmt.Errorf("got %d ranks, want at most %d: the hosts' max_slots allow no more", ranks, len(order))
		}
	}
	return order, nil
}

// perTurn returns how many ranks a host gets before it is the next host's turn.
func (a *assigner) perTurn(host, slots int) (int, error) {
	switch {
	case a.PerSocket > 0 && len(a.hosts[host].CPUs) == 0:
		return 0, fmt.Errorf("host %s: got ranks by socket, but %w", a.hosts[host].Name, errNoCPUs)
	case a.PerSocket > 0:
		return a.PerSocket * len(a.group(a.hosts[host].CPUs, Socket)), nil
	case a.PerNode > 0:
		return a.PerNode, nil
	case a.MapBy == Node:
		return 1, nil
	}
	return slots, nil
}

// counts returns how many ranks of a Program each host gets, by Open MPI's rules.
func (a *assigner) counts(ranks int, named, room []int) ([]int, error) {
	counts, total, free := make([]int, len(room)), 0, 0
	perHost := a.PerNode > 0 || a.PerSocket > 0
	for _, i := range named {
		free += max(room[i]-a.used[i], 0)
		if !perHost {
			continue
		}
		n, err := a.perTurn(i, room[i])
		if err != nil {
			return nil, err
		}
		if ranks > 0 {
			n = min(n, ranks-total)
		}
		if a.used[i]+n > room[i] && a.Over == Refuse || a.hosts[i].Max > 0 && a.used[i]+n > a.hosts[i].Max {
			return nil, a.tooMany(a.used[i]+n, room[i], "host "+a.hosts[i].Name+": ")
		}
		counts[i] = n
		total += n
	}
	switch {
	case perHost && total < ranks:
		return nil, fmt.Errorf("got %d ranks, want at most %d, because the number of ranks per host or socket allows no more", ranks, total)
	case perHost:
		return counts, nil
	case ranks == 0 && free == 0:
		return nil, a.tooMany(1, 0, "")
	case ranks == 0:
		ranks = free
	case ranks > free && a.Over == Refuse:
		return nil, a.tooMany(ranks, free, "")
	}
	// Ranks beyond the slots are spread evenly over the hosts.
	fill := func(host int, most int) {
		for ; most > 0 && total < ranks; most-- {
			counts[host]++
			total++
		}
	}
	if a.MapBy != Node {
		for _, i := range named {
			fill(i, room[i]-a.used[i])
		}
	}
	for slots := true; total < ranks; {
		before := total
		for _, i := range named {
			has, bound := a.used[i]+counts[i], a.hosts[i].Max
			if slots && has < room[i] || !slots && (bound == 0 || has < bound) {
				fill(i, 1)
			}
		}
		switch {
		case total == before && !slots:
			return nil, fmt.Errorf("got %d ranks, want at most %d: the hosts' max_slots allow no more", ranks, total)
		case total == before:
			slots = false
		}
	}
	return counts, nil
}

// tooMany returns the error for a job with more ranks than slots.
func (a *assigner) tooMany(ranks, slots int, where string) error {
	return fmt.Errorf("%sgot %d ranks, want at most %d, the slots that are free; give the hosts more slots, as in n1:4 or slots=4, or allow more ranks with --oversubscribe", where, ranks, slots)
}

// number returns the host of each rank. The argument named lists the hosts, and counts holds the
// number of ranks of each host. If RankBy is Node, consecutive ranks are on different hosts where
// possible. Otherwise the ranks of one host are consecutive.
func (a *assigner) number(named, counts []int) (order []int) {
	if a.RankBy != Node {
		for _, i := range named {
			order = append(order, slices.Repeat([]int{i}, counts[i])...)
		}
		return order
	}
	for left := true; left; {
		left = false
		for _, i := range named {
			if counts[i] > 0 {
				counts[i]--
				order, left = append(order, i), true
			}
		}
	}
	return order
}

// finish fills in the fields that depend on all ranks: all fields but Host and Program.
func (a *assigner) finish(places []Assignment) error {
	node, bound := make(map[int]int), make(map[int][][]int)
	local, cross := make([]int, len(a.hosts)), make(map[int]int)
	for i := range places {
		p := &places[i]
		if _, ok := node[p.Host]; !ok {
			node[p.Host] = len(node)
		}
		p.Node, p.Local, p.LocalSize = node[p.Host], local[p.Host], a.used[p.Host]
		p.Cross = cross[p.Local]
		local[p.Host]++
		cross[p.Local]++
		if !a.binds() {
			continue
		}
		if bound[p.Host] == nil {
			var err error
			if bound[p.Host], err = a.bind(&a.hosts[p.Host], a.used[p.Host]); err != nil {
				return err
			}
		}
		p.CPUs = bound[p.Host][p.Local]
	}
	for i := range places {
		places[i].CrossSize = cross[places[i].Local]
	}
	return nil
}
