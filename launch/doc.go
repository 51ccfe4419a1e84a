// Package launch starts the processes of a job on this host, watches them, and
// ends them. It is all of the program tuttirun but for its main function.
//
// It shares with package bootstrap nothing but the names of the variables: what
// it starts may be any program, tutti's or not. It does not know transports,
// communicators, or what the ranks say to each other.
//
// # The life of a job
//
// Each rank is a process in a process group of its own, so that its children
// can be signalled with it. Rank 0 inherits a listener on loopback, already
// bound, whose address all ranks find in TUTTI_ROOT: there is no port to race
// for. A random secret and a random job name go through the environment.
//
// Rank 0 has the launcher's standard input, the others have none. Signals that
// ask a job to end (INT, TERM, HUP, QUIT) are forwarded once; the second time
// every rank gets TERM, the third time KILL. USR1, USR2, TSTP and CONT are
// forwarded as they come.
//
// A rank that exits with 0 while others run is normal. When one exits with
// another code, or dies of a signal, the others have a time of grace to report
// and exit by themselves; then they get TERM, and 2 s later KILL. What ranks
// leave behind in their groups, or elsewhere with the job's name in its
// environment (Linux), gets the same when the last rank has ended.
//
// # When the launcher itself is killed
//
// Nothing of the above runs then, so each rank has asked the kernel (Linux) to
// be killed with its parent. That reaches no grandchildren, and other systems
// lack it; so a second process, the guardian, holds the other end of a pipe and
// knows the groups. When the pipe ends without a goodbye, it kills the groups,
// and (Linux) whatever else carries the job's name. It needs no privileges.
// Beyond its reach is a grandchild that left its group and wiped its
// environment while the launcher was killed.
//
// # Timelines
//
// With --timeline FILE each rank's coordinator writes FILE.rank0, FILE.rank1 and
// so on when it ends, and the launcher makes FILE of them when all ranks have
// ended. Ranks that were killed are missing, and named.
//
// # Exit codes
//
//	0          every rank exited with 0
//	1 to 255   the first failing rank's exit code; 128+n if signal n ended it
//	2          the command line is wrong
//	124        the job did not end within --timeout
//	126, 127   a program cannot be executed, or does not exist
//
// # Systems
//
// Linux has all of it. Other Unix systems lack the parent-death signal and the
// search by environment; the guardian still ends the groups. On Windows Run
// refuses: start the ranks by hand there, with TUTTI_RANK, TUTTI_SIZE and
// TUTTI_ROOT set.
package launch
