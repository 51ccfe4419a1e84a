// Package launch starts the processes of a job on this host, watches them, and ends them. It is
// all of the program tuttirun except for its main function.
//
// With package bootstrap it shares only the names of the variables: what it starts may be any
// program, tutti's or not. It does not know transports, communicators, or what the ranks send
// to each other.
//
// For maintainers: policy.go decides which signals a job gets and when; it is a pure state
// machine. run_unix.go is the one goroutine that owns a running job and applies the policy.
// start_unix.go starts the processes, guardian_unix.go ends them if the launcher is killed,
// output.go and lasterror.go read what they print, and outcome_unix.go makes exit code and
// verdict of how they ended. options.go and optiontable.go read the command line.
//
// # Goroutines
//
// One goroutine, in Run, owns the job: ranks, policy and outcome. All others send it what
// they see, and own nothing that it reads:
//
//	goroutine        one per     does                                  ends with
//	Run              job         handles events, signals processes     the job
//	starter          job         forks, on a thread of its own         cleanUp
//	rank's wait      rank        waits for the process                 the process
//	lineCopier       stream      copies lines, keeps the last error    its last writer
//	terminalCopier   job         copies a terminal to rank 0           cleanUp
//	guardian's watch guardian    restarts a guardian that was killed   dismiss
//
// # The life of a job
//
// Each rank is a process in a process group of its own, so that its children can be signalled
// with it. Rank 0 inherits a listener on loopback that is already bound; all ranks find its
// address in TUTTI_ROOT. So no other process can take the port in between. A random secret and
// a random job name are in the environment of all ranks.
//
// Rank 0 has the launcher's standard input, the others have none. Signals that ask a job to end
// (INT, TERM, HUP, QUIT) are forwarded once. The second time every rank gets TERM, the third
// time KILL. USR1, USR2, TSTP and CONT are always forwarded.
//
// A rank that exits with 0 while others run is normal. When one exits with another code, or
// dies of a signal, the others have a grace period to report and exit by themselves. Then they
// get TERM, and 2 s later KILL. The same happens, once the last rank has ended, to the
// processes that ranks leave behind in their groups, or elsewhere with the job's name in their
// environment (Linux).
//
// # The environment of a rank
//
// A rank inherits the launcher's environment, except for variables that would give it
// another identity. To that the launcher adds, and nothing overrides it:
//
//	TUTTI_RANK, TUTTI_SIZE               which rank this is, of how many
//	TUTTI_LOCAL_RANK, TUTTI_LOCAL_SIZE   the same on this host, which has all ranks
//	TUTTI_ROOT                           the address of rank 0's listener
//	TUTTI_LISTEN_FD                      rank 0 only: the descriptor of that listener
//	TUTTI_JOB                            the job's name, by which its processes are found
//	TUTTI_SECRET                         by which ranks authenticate each other
//	TUTTI_INCARNATION                    0: ranks are not restarted
//
// --transport, --report-transport and --timeline set variables, too.
//
// # Standard streams
//
// Standard output passes through the launcher only if its lines are tagged, or if the
// caller's writer is no file. Standard error always does, because the verdict quotes each
// rank's last error. Tagged lines are written whole. When the reader of the launcher's
// output closes it, ranks that write get SIGPIPE, as in a pipeline without a launcher.
//
// # Command lines of mpirun and mpiexec
//
// Options of Open MPI and MPICH that mean the same here have the same names. Options that
// place ranks on hosts and processors are ignored with one warning, so that scripts keep
// working. Options that would change results if they were ignored are errors.
//
// # When the launcher itself is killed
//
// A killed launcher can end nothing. So each rank has asked the kernel (Linux) to be killed
// with its parent. This does not reach grandchildren, and other systems lack it. Therefore a
// second process, the guardian, holds the other end of a pipe and knows the groups. When the
// pipe ends without a goodbye, the guardian kills the groups, and on Linux every other process
// with the job's name. It needs no privileges. It cannot reach a grandchild that has left its
// group and cleared its environment.
//
// # Timelines
//
// With --timeline FILE each rank's coordinator writes FILE.rank0, FILE.rank1 and so on when it
// ends. The launcher merges them into FILE when all ranks have ended. It names the ranks that
// have written none, as those that were killed.
//
// # Exit codes
//
//	0          every rank exited with 0
//	1 to 255   the exit code of the first rank that failed; 128+n if signal n ended it
//	2          the command line is wrong
//	124        the job has not ended within --timeout
//	126, 127   a program cannot be executed, or does not exist
//
// # Systems
//
// Linux has all of this. Other Unix systems lack the parent-death signal and the search by
// environment; the guardian still ends the groups. On Windows Run refuses: start the ranks by
// hand there, with TUTTI_RANK, TUTTI_SIZE and TUTTI_ROOT set.
package launch
