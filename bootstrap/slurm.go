package bootstrap

import (
	"errors"
	"net"
	"strings"

	"github.com/tutti-go/tutti/internal/vars"
)

// slurm reads the variables that srun sets for each task of a step. Outside a step, as in a batch
// script, the variables describe the allocation, and this process is not a task.
//
// Without PMI and PMIx, Slurm has no store for the job. So all ranks derive one port from the step,
// and rank 0 listens there on the first host of the step. Other users can derive the port, too.
func (f *finder) slurm() (*Job, error) {
	step, ok := f.get(vars.SlurmStep)
	if !ok || !f.has(vars.SlurmRank) || !f.has(vars.SlurmSize) {
		return nil, nil
	}
	j := newJob(vars.SlurmStep + ", " + vars.SlurmRank + ", " + vars.SlurmSize)
	if err := f.rankAndSize(j, vars.SlurmRank, vars.SlurmSize); err != nil {
		return nil, err
	}
	if j.Size == 1 {
		return nil, nil // another launcher may run as this task
	}
	if only, _ := f.get(vars.Bootstrap); only != "slurm" {
		if err := f.checkOneTaskPerRank(j); err != nil {
			return nil, err
		}
	}
	list, _ := f.get(vars.SlurmNodes)
	host, err := firstHost(list)
	if err != nil {
		return nil, badVariable(j.Rank, vars.SlurmNodes, list, err.Error(), "start the ranks with srun")
	}
	nodes, ok, err := f.number(j.Rank, vars.SlurmNodeCount, 1, MaxRanks)
	if err != nil {
		return nil, err
	}
	if ok && nodes == 1 {
		host, j.LocalRank, j.LocalSize = "127.0.0.1", j.Rank, j.Size
	}
	node, _, err := f.number(j.Rank, vars.SlurmNode, 0, MaxRanks)
	switch {
	case err != nil:
		return nil, err
	case j.Rank == 0 && node != 0:
		return nil, refuse(0, "%s=%d, but the other ranks look for rank 0 on the first host of %s=%.80q: set %s to the host of rank 0, or use another --distribution",
			vars.SlurmNode, node, vars.SlurmNodes, list, vars.TorchAddr)
	}
	id, _ := f.get(vars.SlurmJob)
	j.Name = nameFrom("slurm", id+"."+step)
	j.Root = net.JoinHostPort(host, derivedPort(strings.Join([]string{"tutti", j.Name, itoa(j.Size)}, "|")))
	return j, f.identity(j)
}

// checkOneTaskPerRank returns an error if a launcher that runs inside the step gives this process
// another rank or size. Open MPI and Hydra start a daemon on each host with srun, and the ranks
// inherit the variables of the daemon.
func (f *finder) checkOneTaskPerRank(j *Job) error {
	for _, l := range vars.Launchers() {
		if l.Rank == vars.SlurmRank || l.Rank == vars.TorchRank || l.Requires != "" && !f.has(l.Requires) {
			continue
		}
		for name, own := range map[string]int{l.Rank: j.Rank, l.Size: j.Size} {
			if n, ok, err := f.number(j.Rank, name, 0, MaxRanks); ok && err == nil && n != own {
				return refuse(j.Rank, "%s=%d of %s, but %s=%d and %s=%d of srun say otherwise: unset the variables of the one that has not started this process, or set %s=slurm if srun is right",
					name, n, l.Name, vars.SlurmRank, j.Rank, vars.SlurmSize, j.Size, vars.Bootstrap)
			}
		}
	}
	return nil
}

// firstHost returns the first host of a list as Slurm writes it: names separated by commas, in
// which a bracket holds numbers and ranges, such as n[1-2,7],r[01-02]c[0-1].
func firstHost(list string) (string, error) {
	var host strings.Builder
	for rest := list; ; {
		i := strings.IndexAny(rest, "[,")
		if i < 0 || rest[i] == ',' {
			if i < 0 {
				i = len(rest)
			}
			host.WriteString(rest[:i])
			break
		}
		host.WriteString(rest[:i])
		inside, after, ok := strings.Cut(rest[i+1:], "]")
		if !ok {
			return "", errors.New("has a bracket without its end")
		}
		if k := strings.IndexAny(inside, ",-"); k >= 0 {
			inside = inside[:k]
		}
		host.WriteString(inside)
		rest = after
	}
	if err := checkAddr(net.JoinHostPort(host.String(), "1")); err != nil {
		return "", err
	}
	return host.String(), nil
}
