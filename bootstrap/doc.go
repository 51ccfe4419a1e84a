// Package bootstrap answers, from the environment that a launcher left behind:
// who am I, and where are the others?
//
// Find asks one source after the other, and the first that applies decides. The
// order follows who is closer to this process: what our own launcher or the
// user said by name comes first; then launchers that start each rank
// themselves; last, variables that are set once per machine, pod or job and may
// be left over from an outer level. TUTTI_BOOTSTRAP names one source and skips
// the others.
//
//	#  name       applies when
//	1  tuttirun   TUTTI_RANK, TUTTI_SIZE or TUTTI_ROOT is set
//	1  hosts      TUTTI_HOSTS is set: a static list of addresses
//	2  torchrun   TORCHELASTIC_RUN_ID and RANK are set
//	3  (PMI-1)    room for PMI_FD that is an open socket, PMI_PORT
//	4  (PMIx)     room for PMIX_NAMESPACE with a server's address
//	5  env        MASTER_ADDR and RANK or WORLD_SIZE are set
//	5  tf_config  TF_CONFIG is set and describes a cluster
//	6  (slurm)    room for SLURM_STEP_ID with its node list
//	7  (ompi)     room for Open MPI 4 without PMIx
//	8  (k8s)      room for JOB_COMPLETION_INDEX with a given size
//	9  single     nothing else applies, and no known launcher started several
//
// torchrun stands before PMI, PMIx and Slurm, because under "srun torchrun" the
// variables of the outer, node-level task are still there. env stands after
// them, because RANK and WORLD_SIZE of a pod survive into an mpirun inside it.
// Slurm's variables count only inside a step.
//
// A source that applies and is incomplete or malformed is an error that names
// the variable, its value and the remedy; it never makes Find try the next one,
// for then N processes would silently become N jobs of one rank.
//
// The package does not know transports, the handshake or what the secret is
// used for, and it never talks to another rank: Find only reads, and Listen
// opens the one listener. Find leaves the environment as it is, the secret
// included: a program may start a second job after the first, and whoever may
// read a process's environment may also read its memory. A program that starts
// children which it does not trust gives them an environment of their own, or
// keeps the secret in a file (TUTTI_SECRET_FILE).
package bootstrap
