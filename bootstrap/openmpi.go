package bootstrap

import (
	"net"

	"github.com/tutti-go/tutti/internal/vars"
)

// openMPI reads the variables that Open MPI 4 sets beside those of its PMIx server. They do not say
// on which host rank 0 is. So openMPI applies only if all ranks are on this host. All of them derive
// one port from the job's id and from a random number that mpirun gives each job, and rank 0
// listens there.
func (f *finder) openMPI() (*Job, error) {
	id, ok := f.get(vars.OpenMPIJob)
	if !ok || !f.has(vars.OpenMPIRank) || !f.has(vars.OpenMPISize) {
		return nil, nil
	}
	j := newJob(vars.OpenMPIJob + ", " + vars.OpenMPIRank + ", " + vars.OpenMPISize)
	if err := f.rankAndSize(j, vars.OpenMPIRank, vars.OpenMPISize); err != nil {
		return nil, err
	}
	if err := f.localRank(j, vars.OpenMPILocalRank, vars.OpenMPILocalSize); err != nil {
		return nil, err
	}
	if j.Size == 1 || j.LocalSize != j.Size {
		return nil, nil // one rank needs no source; for several hosts, single names the remedy
	}
	random, _ := f.get(vars.OpenMPIRandom)
	j.Name = nameFrom("ompi", id)
	j.Root = net.JoinHostPort("127.0.0.1", derivedPort("tutti|"+j.Name+"|"+random))
	return j, f.identity(j)
}
