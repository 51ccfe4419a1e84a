package vars

import "strings"

// The variables of torchrun, which many other launchers set, too.
const (
	TorchRank      = "RANK"
	TorchSize      = "WORLD_SIZE"
	TorchLocalRank = "LOCAL_RANK"
	TorchLocalSize = "LOCAL_WORLD_SIZE"
	TorchAddr      = "MASTER_ADDR"
	TorchPort      = "MASTER_PORT"
	TorchRunID     = "TORCHELASTIC_RUN_ID"
	TorchRestarts  = "TORCHELASTIC_RESTART_COUNT"
	TorchGroupSize = "GROUP_WORLD_SIZE"
	TorchNodes     = "PET_NNODES" // torchrun's option --nnodes, set for torchrun itself
)

// The variables of srun, which sets them for each task of a step.
const (
	SlurmJob       = "SLURM_JOB_ID"
	SlurmStep      = "SLURM_STEP_ID" // not set outside a step
	SlurmRank      = "SLURM_PROCID"
	SlurmSize      = "SLURM_STEP_NUM_TASKS"
	SlurmNodes     = "SLURM_STEP_NODELIST"
	SlurmNodeCount = "SLURM_STEP_NUM_NODES"
	SlurmNode      = "SLURM_NODEID" // which of the nodes this is
)

// The variables of Open MPI 4's mpirun. Later versions set only the ranks and the sizes.
const (
	OpenMPIRank      = "OMPI_COMM_WORLD_RANK"
	OpenMPISize      = "OMPI_COMM_WORLD_SIZE"
	OpenMPILocalRank = "OMPI_COMM_WORLD_LOCAL_RANK"
	OpenMPILocalSize = "OMPI_COMM_WORLD_LOCAL_SIZE"
	OpenMPIJob       = "OMPI_MCA_ess_base_jobid"
	OpenMPIRandom    = "OMPI_MCA_orte_precondition_transports" // differs from job to job
)

// PodIndex is the index of a pod in an Indexed Job of Kubernetes.
const PodIndex = "JOB_COMPLETION_INDEX"

// TFConfig describes a TensorFlow cluster and one task in it, in JSON.
const TFConfig = "TF_CONFIG"

// DMLCRole is the role of a process of ps-lite, BytePS or MXNet. It comes without a rank.
const DMLCRole = "DMLC_ROLE"

// A Launcher describes another launcher by its variables. Rank and Size are the names of the
// variables that hold a process's rank and the number of ranks. A name is "" if the launcher does
// not set that variable. If Requires is not "", the other variables count only if that variable is
// set.
type Launcher struct {
	Name, Rank, Size, Requires string
}

// Launchers returns the launchers whose variables show that a process is one of several. Slurm's
// variables count only inside a step. A program in a batch script, outside any step, sees
// SLURM_PROCID=0 and SLURM_NTASKS=4, and is not rank 0 of 4.
func Launchers() []Launcher {
	return []Launcher{
		{Name: "mpirun (Open MPI)", Rank: OpenMPIRank, Size: OpenMPISize},
		{Name: "mpiexec (Hydra, PMI)", Rank: "PMI_RANK", Size: "PMI_SIZE"},
		{Name: "mpiexec (Hydra, -pmi-port)", Rank: "PMI_ID", Requires: "PMI_PORT"},
		{Name: "a PMIx launcher", Rank: "PMIX_RANK", Requires: "PMIX_NAMESPACE"},
		{Name: "srun", Rank: SlurmRank, Size: SlurmSize, Requires: SlurmStep},
		{Name: "horovodrun", Rank: "HOROVOD_RANK", Size: "HOROVOD_SIZE"},
		{Name: "torchrun", Rank: TorchRank, Size: TorchSize},
	}
}

// IsForeignIdentity reports whether name is a variable by which another launcher tells its
// processes their ranks or roles. If a rank of this module inherited such a variable, the rank or a library
// in it could take it for a member of the outer job.
func IsForeignIdentity(name string) bool {
	for _, p := range [...]string{"OMPI_COMM_WORLD_", "PMI_", "PMIX_", "TORCHELASTIC_"} {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	switch name {
	case TorchRank, TorchSize, TorchLocalRank, TorchLocalSize, TorchAddr, TorchPort,
		"GROUP_RANK", TorchGroupSize, "ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE",
		TFConfig, DMLCRole,
		"OMPI_UNIVERSE_SIZE", "OMPI_WORLD_SIZE", "OMPI_WORLD_LOCAL_SIZE",
		"HYDI_CONTROL_FD", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
		"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS",
		"SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS",
		"HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE",
		"HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE":
		return true
	}
	return false
}
