package bootstrap

import (
	"crypto/sha256"
	"encoding/binary"
	"net"
	"strings"

	"github.com/tutti-go/tutti/internal/vars"
)

// defaultPort is torch's default, for a job that sets MASTER_ADDR without a port.
const defaultPort = "29500"

// torchrun reads the variables that torchrun sets for its workers.
//
// MASTER_PORT is in use: the agent of node 0, or torch's own store, listens on it. All ranks
// therefore derive another port from it and from the run's id. The port depends on the restart
// count only if there is one node, because each agent counts its own restarts, and the counts of
// several agents differ after a failure.
func (f *finder) torchrun() (*Job, error) {
	id, ok := f.get(vars.TorchRunID)
	if !ok || !f.has(vars.TorchRank) {
		return nil, nil
	}
	j, err := f.torch(vars.TorchRunID+", ", vars.TorchRank, vars.TorchSize)
	if err != nil {
		return nil, err
	}
	nodes, ok, err := f.number(j.Rank, vars.TorchGroupSize, 1, MaxRanks)
	if err != nil {
		return nil, err
	}
	if ok && nodes == 1 || j.LocalSize == j.Size {
		n, _, err := f.number(j.Rank, vars.TorchRestarts, 0, 1<<32-1)
		if err != nil {
			return nil, err
		}
		j.Incarnation = uint32(n)
	}
	port, _ := f.get(vars.TorchPort)
	j.Name = nameFrom("torchrun", id+":"+port)
	if j.Root != "" {
		host, _, _ := net.SplitHostPort(j.Root)
		key := strings.Join([]string{"tutti", id, port, itoa(int(j.Incarnation))}, "|")
		j.Root = net.JoinHostPort(host, derivedPort(key))
	}
	return j, nil
}

// env reads MASTER_ADDR, the rank and the size. Scripts and training operators set rank and size
// under torch's names, and other launchers under their own names, as in mpirun -x MASTER_ADDR=n1.
// Here no other process listens on MASTER_PORT, so rank 0 uses that port.
func (f *finder) env() (*Job, error) {
	rankVar, sizeVar := f.rankNames()
	if !f.has(vars.TorchAddr) || rankVar == "" {
		return nil, nil
	}
	j, err := f.torch(vars.TorchAddr+", ", rankVar, sizeVar)
	if err != nil {
		return nil, err
	}
	if only, _ := f.get(vars.Bootstrap); only != "env" {
		err = f.checkForeignRank(j, rankVar)
	}
	j.Name = nameFrom("env", j.Root)
	return j, err
}

// rankNames returns the names of the variables that hold the rank and the size. These are the first
// of:
//
//   - the index of a pod and torch's size, if the index is set and torch's rank is not
//   - torch's variables, if one of them is set
//   - the variables of another launcher, if both are set
func (f *finder) rankNames() (rankVar, sizeVar string) {
	if f.has(vars.PodIndex) && !f.has(vars.TorchRank) {
		return vars.PodIndex, vars.TorchSize
	}
	if f.has(vars.TorchRank) || f.has(vars.TorchSize) {
		return vars.TorchRank, vars.TorchSize
	}
	for _, l := range vars.Launchers() {
		if f.has(l.Rank) && f.has(l.Size) && (l.Requires == "" || f.has(l.Requires)) {
			return l.Rank, l.Size
		}
	}
	return "", ""
}

// torch reads what the sources torchrun and env have in common: rank, size, local rank and rank 0's
// address. If all ranks are on this host, torch replaces the host of rank 0's address by loopback,
// so that such a job needs no secret.
func (f *finder) torch(source, rankVar, sizeVar string) (*Job, error) {
	j := newJob(source + rankVar + ", " + sizeVar)
	if err := f.rankAndSize(j, rankVar, sizeVar); err != nil {
		return nil, err
	}
	if err := f.localRank(j, vars.TorchLocalRank, vars.TorchLocalSize); err != nil {
		return nil, err
	}
	if j.Size == 1 {
		return j, nil
	}
	host, ok := f.get(vars.TorchAddr)
	if !ok {
		return nil, refuse(j.Rank, "%s=%d, but %s is not set: set it to the host of rank 0", sizeVar, j.Size, vars.TorchAddr)
	}
	port, ok := f.get(vars.TorchPort)
	if !ok {
		port = defaultPort
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if err := checkAddr(net.JoinHostPort(host, "1")); err != nil {
		return nil, badVariable(j.Rank, vars.TorchAddr, host, err.Error(), "set it to the host of rank 0")
	}
	if err := checkAddr(net.JoinHostPort(host, port)); err != nil {
		return nil, badVariable(j.Rank, vars.TorchPort, port, err.Error(), "set it to a free port on the host of rank 0")
	}
	if j.LocalSize == j.Size {
		// All ranks are on this host, so the name that the launcher gives the host does not matter.
		host = "127.0.0.1"
	}
	j.Root = net.JoinHostPort(host, port)
	return j, nil
}

// checkForeignRank returns an error if a launcher that starts each rank itself reports a different
// rank. RANK is then the rank of the pod or node, and all processes of a pod would claim the same
// rank. checkForeignRank ignores srun.
func (f *finder) checkForeignRank(j *Job, rankVar string) error {
	for _, l := range vars.Launchers() {
		switch {
		// srun often starts one process per node, which then starts the ranks.
		case l.Rank == rankVar, l.Rank == vars.TorchRank, l.Name == "srun":
			continue
		case l.Requires != "" && !f.has(l.Requires):
			continue
		}
		if n, ok, err := f.number(j.Rank, l.Rank, 0, MaxRanks); ok && err == nil && n != j.Rank {
			return refuse(j.Rank, "%s=%d, but %s=%d of %s says otherwise: give each process its own %s and %s (or %s and %s), or set %s=env if %s is right",
				rankVar, j.Rank, l.Rank, n, l.Name, vars.TorchRank, vars.TorchSize, vars.Rank, vars.Size, vars.Bootstrap, rankVar)
		}
	}
	return nil
}

// derivedPort returns a port that all ranks compute from the same key. It is between 15000 and
// 29999, which is above the ports of services and below the range of ephemeral ports. So it is
// likely to be free.
func derivedPort(key string) string {
	sum := sha256.Sum256([]byte(key))
	return itoa(15000 + int(binary.BigEndian.Uint64(sum[:])%15000))
}
