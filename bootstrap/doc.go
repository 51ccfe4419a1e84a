// Package bootstrap finds this process's rank and the addresses of the other ranks in the
// environment that a launcher has set.
//
// Find asks one source after another, and the first source that applies decides. Sources that are
// more specific to this process come first: variables that this module's launcher or the user sets
// by name. Then come launchers that start each rank themselves. The last are variables that are set
// once per machine, pod or job, because they may be left over from an outer level. TUTTI_BOOTSTRAP
// names one source and skips all others.
//
//	#  name       applies when
//	1  store      TUTTI_STORE is set, and neither TUTTI_STORE_FD nor TUTTI_ROOT
//	1  tuttirun   TUTTI_STORE_FD, TUTTI_RANK, TUTTI_SIZE or TUTTI_ROOT is set
//	1  hosts      TUTTI_HOSTS is set: a static list of addresses
//	2  torchrun   TORCHELASTIC_RUN_ID and RANK are set
//	3  pmi1       PMI_FD is an open socket, or PMI_PORT and PMI_ID are set
//	4  pmix       PMIX_NAMESPACE, PMIX_RANK and a PMIX_SERVER_URI are set
//	5  env        MASTER_ADDR and RANK or WORLD_SIZE, or another launcher's rank and size, are set
//	5  tf_config  TF_CONFIG is set and describes a cluster
//	6  slurm      SLURM_STEP_ID, SLURM_PROCID and SLURM_STEP_NUM_TASKS are set, for several tasks
//	7  ompi       OMPI_MCA_ess_base_jobid and OMPI_COMM_WORLD_RANK are set, for ranks on one host
//	8  k8s        JOB_COMPLETION_INDEX and WORLD_SIZE are set: an Indexed Job of Kubernetes
//	9  single     nothing else applies, and no known launcher started several
//
// torchrun comes before PMI, PMIx and Slurm, because under "srun torchrun" the variables of the
// outer, node-level task are still set. env comes after them, because RANK and WORLD_SIZE of a pod
// are still set under an mpirun inside the pod. Slurm's variables count only inside a step.
//
// If a source applies and is incomplete or malformed, Find returns an error that names the
// variable, its value and the remedy. It does not try the next source, because N processes would
// then silently become N jobs of one rank. For the same reason Find refuses a job of one rank, from
// any source, if the variables of another launcher show that it started several processes.
// TUTTI_BOOTSTRAP then says which of the two sources counts.
//
// # Roles
//
// TUTTI_ROLE is the role of this process in its job. Without it the role is the type of the task in
// TF_CONFIG, or else DMLC_ROLE, which is worker or server. ps-lite's launchers set DMLC_ROLE but
// give no ranks, so another source must apply; otherwise Find returns an error. It also returns an
// error for the role scheduler, because the ranks find each other without such a process.
//
// An evaluator of TF_CONFIG is not a member of the cluster in TensorFlow. Here it is a job of one
// rank.
//
// # Secrets
//
// A rank gets its job's secret in one of these ways. The first that is set counts:
//
//	TUTTI_SECRET_FD    tuttirun's: a descriptor, from which a rank also reads its own certificate
//	TUTTI_SECRET_FILE  a file that only its owner may read, or the group of a file of root
//	TUTTI_SECRET       hex, for jobs that are started by hand
//
// Find removes the variables TUTTI_SECRET_FD and TUTTI_SECRET and closes the descriptor, so that no
// child of this process inherits them. A program may start a second job after the first, so Find
// keeps the secret for the next Find. The kept secret belongs to the whole process, as environment
// and descriptors do. /proc/PID/environ still shows the variables that a process was started with,
// but only to the same user and to root, who can also read the memory of the process. A Find with a
// Lookup removes nothing.
//
// A job without a secret listens on loopback only, unless Options.Insecure allows more.
//
// # Jobs whose ranks change
//
// TUTTI_STORE_FD is a socket to a launcher that decides which processes are ranks. Find then leaves
// rank, size and secret unset, and Job.Join asks the launcher for them, once for each epoch of the
// job. The socket belongs to the whole process, as the secret does, and no child inherits it.
//
// # Launchers with a key-value store
//
// A launcher that speaks PMI or PMIx tells each process its rank, and stores a value of rank 0 for
// the other ranks. Job.Join connects to the launcher, opens rank 0's listener, and exchanges the
// value: rank 0's addresses, a random name for the job and, if the ranks have no secret, the job's
// secret. If a process ends before Job.Finalize, the launcher ends the other ranks. After
// Job.Finalize, the end of this process has no effect on the other ranks.
//
// The secret is published only through a connection that the launcher has opened itself (PMI_FD),
// or to a PMIx server that listens on loopback only. Any process may connect to PMI_PORT, so it
// carries no secret, and a job on several hosts needs TUTTI_SECRET_FILE.
//
// Other users of the hosts may still learn a published secret: a PMIx server believes what a
// process says about its user, and Hydra's mpiexec, behind PMI_FD, accepts any connection to its
// own port. So rank 0 logs a warning. With TUTTI_SECRET_FILE nothing is published.
//
// TUTTI_STORE names another store for such a value. Every program can use a directory that all
// hosts share. Only its owner and root may write in it, and only the owner can read its files, so
// it carries the job's secret. The program may pass further kinds of Stores, such as package
// etcd's. They carry no secret, because this package does not know who can read them.
//
// If Join cannot connect to a PMIx server, it uses the next source that applies. This source must
// give the same rank, and the size that the launcher has set; otherwise Join fails. If the server
// accepts the connection and then refuses this process or does not answer, Join fails, too, because
// the other ranks may be waiting at the server.
//
// # What it does not know
//
// The package does not know transports or the handshake. It uses the secret only in
// Job.Credentials, which returns the certificate derived from the secret. It never sends
// anything to another rank: Find only reads, Listen opens the one listener, and Join talks to
// the launcher.
package bootstrap
