package bootstrap

import (
	"github.com/tutti-go/tutti/internal/vars"
)

// A source is one way to find the job. If the source does not apply, its find returns nil, nil.
type source struct {
	name    string
	applies string // the condition under which it applies, for messages
	find    func(*finder) (*Job, error)
}

// sources returns the sources in the order of the package comment. Each source sets:
//
//	source     rank and size          addresses                    name of the job
//	store      TUTTI_RANK, _SIZE,     Root: rank 0's value in      from rank 0's value
//	           or a launcher's        the store
//	tuttirun   TUTTI_RANK, _SIZE      Root: TUTTI_ROOT             TUTTI_JOB, else "tutti"
//	hosts      TUTTI_RANK, or the     Peers: TUTTI_HOSTS           TUTTI_JOB, else from the list
//	           own entry; the list
//	torchrun   RANK, WORLD_SIZE       Root: MASTER_ADDR, and a     from the run's id and
//	                                  derived port                 MASTER_PORT
//	pmi1       PMI_RANK, PMI_SIZE,    Root: rank 0's value in      from rank 0's value
//	           or the launcher        the launcher's store
//	pmix       PMIX_RANK; the         the same                     the same
//	           server
//	env        RANK, WORLD_SIZE, or   Root: MASTER_ADDR, and       from Root
//	           a launcher's           MASTER_PORT
//	tf_config  task; cluster          Peers: cluster               TUTTI_JOB, else from the list
//	slurm      SLURM_PROCID,          Root: the step's first       from the step
//	           SLURM_STEP_NUM_TASKS   host, and a derived port
//	ompi       OMPI_COMM_WORLD_RANK,  Root: loopback, and a        from the job's id
//	           _SIZE                  derived port
//	k8s        JOB_COMPLETION_INDEX,  Root: the name of pod 0,     from Root
//	           WORLD_SIZE             and MASTER_PORT
//	single     0 of 1                 none                         "single"
//
// Local ranks come from TUTTI_LOCAL_RANK or LOCAL_RANK and their sizes. With a list of addresses,
// they come from the spelling of the hosts.
func sources() []source {
	return []source{
		{"store", vars.Store + " is set, and " + vars.StoreFD + " and " + vars.Root + " are not", (*finder).store},
		{"tuttirun", vars.StoreFD + ", or " + vars.Rank + " and " + vars.Size + " are set", (*finder).tuttirun},
		{"hosts", vars.Hosts + " is set", (*finder).hosts},
		{"torchrun", vars.TorchRunID + " and " + vars.TorchRank + " are set", (*finder).torchrun},
		{"pmi1", "PMI_FD is an open socket, or PMI_PORT and PMI_ID are set", (*finder).pmi1},
		{"pmix", "PMIX_NAMESPACE, PMIX_RANK and a PMIX_SERVER_URI are set", (*finder).pmix},
		{"env", vars.TorchAddr + " and a launcher's rank and size, such as " + vars.TorchRank + " and " + vars.TorchSize + ", are set", (*finder).env},
		{"tf_config", vars.TFConfig + " is set and describes a cluster", (*finder).tfConfig},
		{"slurm", vars.SlurmStep + ", " + vars.SlurmRank + " and " + vars.SlurmSize + " above 1 are set", (*finder).slurm},
		{"ompi", vars.OpenMPIJob + ", " + vars.OpenMPIRank + " and " + vars.OpenMPISize + " above 1 are set, for ranks on one host", (*finder).openMPI},
		{"k8s", vars.PodIndex + " and " + vars.TorchSize + " are set", (*finder).kubernetes},
		{"single", "always", (*finder).single},
	}
}

// tuttirun reads the variables that this module's launcher sets, or that a user sets by hand. If
// there is a static list, the source hosts reads it, even if the rank is set.
func (f *finder) tuttirun() (*Job, error) {
	if j, err := f.joining(); j != nil || err != nil {
		return j, err
	}
	if f.has(vars.Hosts) || !f.has(vars.Rank) && !f.has(vars.Size) && !f.has(vars.Root) {
		return nil, nil
	}
	j, err := f.member(vars.Rank, vars.Size)
	if err != nil {
		return nil, err
	}
	root, ok := f.get(vars.Root)
	switch {
	case !ok && j.Size > 1:
		return nil, refuse(j.Rank, "%s=%d, but %s is not set: set it to the host:port of rank 0, or start the ranks with tuttirun",
			vars.Size, j.Size, vars.Root)
	case !ok:
		return j, nil
	}
	if err := checkAddr(root); err != nil {
		return nil, badVariable(j.Rank, vars.Root, root, err.Error(), "set it to the host:port where rank 0 listens")
	}
	j.Root = root
	j.Source += ", " + vars.Root
	return j, f.inheritedListener(j)
}

// member returns a job with the rank and the size of the given variables. The local rank, the name
// and the incarnation come from this module's variables.
func (f *finder) member(rankVar, sizeVar string) (*Job, error) {
	j := newJob(rankVar + ", " + sizeVar)
	if err := f.rankAndSize(j, rankVar, sizeVar); err != nil {
		return nil, err
	}
	if err := f.localRank(j, vars.LocalRank, vars.LocalSize); err != nil {
		return nil, err
	}
	return j, f.identity(j)
}

// inheritedListener reads the descriptor of the listener that rank 0 inherited from the launcher.
// The launcher has sent the listener's address to the other ranks. Because the port is already
// bound, no other process can take it. Other ranks ignore the variable, because a shell may have
// passed it on.
func (f *finder) inheritedListener(j *Job) error {
	if j.Rank != 0 {
		return nil
	}
	fd, ok, err := f.number(j.Rank, vars.ListenFD, 0, 1<<20)
	if err != nil {
		return err
	}
	if ok && fd <= 2 {
		return badVariable(j.Rank, vars.ListenFD, itoa(fd), "is standard input, output or error", "unset it, and rank 0 listens by itself")
	}
	if ok {
		j.listenFD = fd
	}
	return nil
}

// identity reads the job's name and incarnation, if they are set. They take precedence over the
// values that the source derived.
func (f *finder) identity(j *Job) error {
	if name, ok := f.get(vars.Job); ok {
		if !plainName(name) {
			return badVariable(j.Rank, vars.Job, name, "is not a job name", "use at most 64 letters, digits, '.', '_', '-', ':', '@'")
		}
		j.Name = name
	}
	n, _, err := f.number(j.Rank, vars.Incarnation, 0, 1<<32-1)
	j.Incarnation = uint32(n)
	return err
}

// role gives the job the role of this process: TUTTI_ROLE, or the role that the source has found, or
// else DMLC_ROLE.
func (f *finder) role(j *Job) (err error) {
	if role, ok := f.get(vars.Role); ok {
		j.Role = role
	}
	if j.Role == "" {
		j.Role, err = f.dmlcRole(j.Rank)
	}
	return err
}

// dmlcRole returns the role that a launcher of ps-lite gives to this process, or "". It refuses the
// role scheduler: in ps-lite, a scheduler tells workers and servers their addresses, but ranks find
// each other without such a process.
func (f *finder) dmlcRole(rank int) (string, error) {
	role, _ := f.get(vars.DMLCRole)
	switch role {
	case "", "worker", "server":
		return role, nil
	case "scheduler":
		return "", badVariable(rank, vars.DMLCRole, role, "is for a process that is not needed here",
			"start only the workers and the servers, as in tuttirun -np 4 ./worker : -np 2 ./server")
	}
	return "", badVariable(rank, vars.DMLCRole, role, "is no role", "set it to worker or server, or unset it")
}

// single is the last source: a job of one rank. It returns an error if another launcher's variables
// show that there are more processes. TUTTI_BOOTSTRAP=single says that one rank is intended.
func (f *finder) single() (*Job, error) {
	only, _ := f.get(vars.Bootstrap)
	j := newJob("no launcher's variables")
	j.Size, j.LocalRank, j.LocalSize, j.Name = 1, 0, 1, "single"
	if only == "single" {
		j.Source = vars.Bootstrap + "=single"
		return j, nil
	}
	if l, name, n := f.severalBy(); name != "" {
		return nil, refuse(unknown, "%s=%d says that %s started several processes, but not where rank 0 is: "+
			"start them with tuttirun, or set %s (and %s) for all of them, or %s=single if each process is to work alone",
			name, n, l.Name, vars.TorchAddr, vars.TorchPort, vars.Bootstrap)
	}
	switch role, err := f.dmlcRole(unknown); {
	case err != nil:
		return nil, err
	case role != "":
		return nil, refuse(unknown, "%s=%s says that this process is one of several, but no variable says which rank it is: "+
			"start them with tuttirun -np 4 ./worker : -np 2 ./server, or set %s=single if each process is to work alone",
			vars.DMLCRole, role, vars.Bootstrap)
	}
	if n, _, err := f.number(unknown, vars.TorchNodes, 0, MaxRanks); err == nil && n > 1 {
		return nil, refuse(unknown, "%s=%d says that torchrun is to start ranks on several hosts, but it has not started this process: "+
			"start the program with torchrun --no-python, or set %s=single if each process is to work alone", vars.TorchNodes, n, vars.Bootstrap)
	}
	return j, nil
}

// checkAlone returns an error if the job has one rank, and a launcher's variables show that there
// are more processes. Either the source's variables or the launcher's are left over, and N
// independent jobs of one rank would look like a job that works. TUTTI_BOOTSTRAP says which of the
// two counts.
func (f *finder) checkAlone(j *Job) error {
	if j.Size != 1 || f.has(vars.Bootstrap) {
		return nil
	}
	if l, name, n := f.severalBy(); name != "" {
		return refuse(unknown, "%s=%d of %s says that this process is one of several, but by %s the job has one rank: "+
			"unset the variables of the launcher that has not started this process, or set %s to the name of the source that counts (single if each process is to work alone)",
			name, n, l.Name, j.Source, vars.Bootstrap)
	}
	return nil
}

// severalBy returns the first launcher whose variables show that there is more than one rank, with
// the variable and its value. The name of the variable is "" if there is no such launcher.
func (f *finder) severalBy() (l vars.Launcher, name string, value int) {
	for _, l := range vars.Launchers() {
		if l.Requires != "" && !f.has(l.Requires) {
			continue
		}
		if name, n := f.sizeHint(l); name != "" {
			return l, name, n
		}
	}
	return vars.Launcher{}, "", 0
}

// sizeHint returns the variable, if any, by which launcher l shows that there is more than one
// rank: a size above 1, or a rank above 0. It ignores values that are not numbers, because this
// module does not check variables of other launchers.
func (f *finder) sizeHint(l vars.Launcher) (name string, value int) {
	if n, _, err := f.number(unknown, l.Size, 0, MaxRanks); err == nil && n > 1 {
		return l.Size, n
	}
	if n, _, err := f.number(unknown, l.Rank, 0, MaxRanks); err == nil && n > 0 {
		return l.Rank, n
	}
	return "", 0
}
