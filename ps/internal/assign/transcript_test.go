package assign

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/internal/test/golden"
)

// TestTranscripts replays the files under testdata. A file has commands, and after each command its
// results in lines that begin with >.
//
//	member 3 hostb works serves    a rank, its host, and what it does
//	copies 2
//	assign 4000 4000 100           a part of each size; parts are numbered from 1
//	push 1 0 2                     one more entry in the log of part 1, on servers 0 and 2 only
//	lose 2 3                       ranks
//	plan                           plans for the members, and carries the plan out
//	interrupt                      plans, and carries only the transfers out
//	loads                          bytes of each server as primary, and in all
func TestTranscripts(t *testing.T) {
	golden.Replay(t, "testdata/*.txt", func(text []byte) ([]byte, error) {
		var out bytes.Buffer
		j := &job{copies: 1}
		for n, line := range strings.Split(strings.TrimRight(string(text), "\n"), "\n") {
			if strings.HasPrefix(line, "> ") {
				continue
			}
			fmt.Fprintln(&out, line)
			words := strings.Fields(line)
			if len(words) == 0 || words[0] == "#" {
				continue
			}
			results, err := j.command(words[0], words[1:])
			if err != nil {
				return nil, fmt.Errorf("line %d: %q: %w", n+1, line, err)
			}
			for _, r := range results {
				fmt.Fprintln(&out, "> "+r)
			}
		}
		return out.Bytes(), nil
	})
}

// A job is the members and the parts of a job without values.
type job struct {
	members []Member
	copies  int
	parts   []Part
	last    uint64 // the ID of the part that was assigned last
}

func (j *job) command(name string, args []string) (results []string, err error) {
	if name == "member" {
		m := Member{Host: args[1], Works: slices.Contains(args, "works"), Serves: slices.Contains(args, "serves"), Added: len(j.parts) > 0}
		m.Rank, err = strconv.Atoi(args[0])
		j.members = append(j.members, m)
		return nil, err
	}
	var numbers []int
	for _, a := range args {
		v, err := strconv.Atoi(a)
		if err != nil {
			return nil, err
		}
		numbers = append(numbers, v)
	}
	switch name {
	case "copies":
		j.copies = numbers[0]
	case "assign":
		var sizes []int64
		for _, v := range numbers {
			sizes = append(sizes, int64(v))
		}
		for _, p := range j.assign(sizes) {
			results = append(results, fmt.Sprintf("part %d: %s", p.ID, text(p.Placement)))
		}
	case "push":
		for i := range j.parts[numbers[0]-1].Copies {
			if c := &j.parts[numbers[0]-1].Copies[i]; slices.Contains(numbers[1:], c.Rank) {
				c.Index++
			}
		}
	case "lose":
		for _, r := range numbers {
			j.lose(r)
		}
	case "plan", "interrupt":
		plan := NewPlan(j.members, j.copies, j.parts)
		j.transfer(plan)
		if name == "plan" {
			j.drop(plan)
		}
		results = lines(plan)
	case "loads":
		b := j.balance()
		for _, s := range b.servers {
			results = append(results, fmt.Sprintf("server %d: %d as primary, %d in all", s.Rank, s.primary, s.total))
		}
	default:
		err = fmt.Errorf("unknown command")
	}
	return results, err
}

func text(p Placement) string {
	return strings.TrimSuffix(fmt.Sprintf("primary %d, replicas %v", p.Primary, p.Replicas), ", replicas []")
}

func lines(plan Plan) (results []string) {
	for _, p := range plan.Parts {
		results = append(results, fmt.Sprintf("part %d: %s", p.ID, text(p.Placement)))
	}
	for _, t := range plan.Transfers {
		results = append(results, fmt.Sprintf("transfer part %d: %d bytes from %d to %d", t.ID, t.Bytes, t.From, t.To))
	}
	for _, d := range plan.Drops {
		results = append(results, fmt.Sprintf("drop part %d on %d", d.ID, d.Rank))
	}
	for _, id := range plan.Lost {
		results = append(results, fmt.Sprintf("lost part %d", id))
	}
	return results
}

// balance returns the balance of the job's parts, as a new lead computes it.
func (j *job) balance() *Balance {
	b := NewBalance(j.members, j.copies)
	for _, p := range j.parts {
		b.Add(j.placement(p), p.Bytes)
	}
	return b
}

func (j *job) placement(p Part) Placement {
	pl := Placement{Primary: -1}
	for _, c := range p.Copies {
		if c.Primary {
			pl.Primary = c.Rank
		} else {
			pl.Replicas = append(pl.Replicas, c.Rank)
		}
	}
	slices.Sort(pl.Replicas)
	return pl
}

// assign declares parts of these sizes.
func (j *job) assign(sizes []int64) []PlannedPart {
	var result []PlannedPart
	for i, pl := range j.balance().Assign(sizes) {
		j.last++
		p := Part{ID: j.last, Bytes: sizes[i]}
		for _, r := range append([]int{pl.Primary}, pl.Replicas...) {
			p.Copies = append(p.Copies, Copy{Rank: r, Primary: r == pl.Primary})
		}
		j.parts = append(j.parts, p)
		result = append(result, PlannedPart{p.ID, pl})
	}
	return result
}

// lose removes a rank and its copies.
func (j *job) lose(rank int) {
	j.members = slices.DeleteFunc(j.members, func(m Member) bool { return m.Rank == rank })
	for i := range j.parts {
		p := &j.parts[i]
		p.Copies = slices.DeleteFunc(slices.Clone(p.Copies), func(c Copy) bool { return c.Rank == rank })
	}
}

// transfer carries out the transfers of a plan. Servers report the role that they had before until
// the plan has been carried out.
func (j *job) transfer(plan Plan) {
	for _, t := range plan.Transfers {
		p := &j.parts[slices.IndexFunc(j.parts, func(p Part) bool { return p.ID == t.ID })]
		from := p.Copies[slices.IndexFunc(p.Copies, func(c Copy) bool { return c.Rank == t.From })]
		p.Copies = slices.DeleteFunc(p.Copies, func(c Copy) bool { return c.Rank == t.To })
		p.Copies = append(p.Copies, Copy{Rank: t.To, Index: from.Index})
	}
}

// drop ends a plan: it drops copies, sets the roles, and forgets parts that are lost.
func (j *job) drop(plan Plan) {
	for _, d := range plan.Drops {
		p := &j.parts[slices.IndexFunc(j.parts, func(p Part) bool { return p.ID == d.ID })]
		p.Copies = slices.DeleteFunc(p.Copies, func(c Copy) bool { return c.Rank == d.Rank })
	}
	for _, pl := range plan.Parts {
		p := &j.parts[slices.IndexFunc(j.parts, func(p Part) bool { return p.ID == pl.ID })]
		for i := range p.Copies {
			p.Copies[i].Primary = p.Copies[i].Rank == pl.Primary
		}
	}
	j.parts = slices.DeleteFunc(j.parts, func(p Part) bool { return slices.Contains(plan.Lost, p.ID) })
	for i := range j.members {
		j.members[i].Added = false
	}
}
