// Package launch starts the processes of a job on this host and on others, watches them, and ends
// them. It is all of the program tuttirun except for its main function.
//
// The package shares with package bootstrap only the names of environment variables, the form of a
// rank's credentials, the record of a job whose ranks change, and the messages of PMI-1. It can
// start any program, whether or not the program uses tutti. It does not know transports,
// communicators, or the messages between ranks.
//
// For maintainers: policy.go decides which signals a job gets and when; it is a pure state machine.
// restart_unix.go starts a job again. run_unix.go is the one goroutine that owns a running job and
// applies the policy. start_unix.go starts the ranks by the interface host, which local_unix.go
// implements for this machine and remotehost_unix.go for others. others_unix.go handles what comes
// from other hosts, and node_unix.go is what runs there. preload_unix.go sends programs to other
// hosts. guardian_unix.go ends processes if the launcher is killed, output.go, output_unix.go and
// lasterror.go read what they print, and outcome_unix.go derives the exit code and the verdict from
// the ranks' exit statuses. members.go and elastic_unix.go change the ranks while a job runs.
// options.go, optiontable.go and outputoptions.go read the command line.
//
// # Goroutines
//
// One goroutine, in Run, owns the job: ranks, policy and outcome. All other goroutines send events
// to it, and own no data that it reads:
//
//	goroutine        one per     does                                  ends with
//	Run              job         handles events, signals processes     the job
//	starter          host        forks, on a thread of its own         cleanUp
//	rank's wait      rank        waits for the process                 the process
//	lineCopier       stream      copies lines, keeps the last error    its last writer
//	PMI              rank        answers requests of PMI-1             the rank's last process, or drain
//	inputCopier      job         copies the input to a rank            cleanUp
//	serve            other host  sends the host's events               the connection, or cleanUp
//	node's run       other host  handles commands, and ends of ranks   the connection
//	preload's send   other host  sends the programs to the host        the last byte, or the connection
//	answer           other host  stores the programs there             the last byte, or the connection
//	copyStream       stream      joins a process and the connection    either of them
//	guardian's watch guardian    restarts a guardian that was killed   dismiss
//	several          see epochs  serve the record of the ranks         cleanUp
//
// # The life of a job
//
// Each rank is a process in its own process group, so that a signal to the process group also
// reaches the rank's children. Rank 0 inherits a listener on loopback that is already bound, so no
// other process can take its port. All ranks find the listener's address in TUTTI_ROOT. A random
// job name is in the environment of all ranks.
//
// The launcher makes a random secret and a certificate authority (CA) for the job, in memory. Each
// rank inherits a memory file with the secret, its own private key, its certificate and the CA's
// certificate. It reads the file once and closes it. None of this is in an environment, on a
// command line or in a file with a name, and the CA's private key never leaves the launcher.
//
// One rank, rank 0 by default, has the launcher's standard input; the other ranks have no input.
// Signals that ask a job to end (INT, TERM, HUP, QUIT) are forwarded once. The second such signal
// sends TERM to every rank, the third sends KILL. USR1, USR2, TSTP and CONT are always forwarded.
//
// It is normal that a rank exits with 0 while others run. There is one exception: Init waits for
// all ranks, so if a rank exits without having called Init, and others have called it, the job ends
// as if the rank had failed. When a rank exits with another code, or is killed by a signal, the
// as if the rank had failed. When a rank exits with another code, or is killed by a signal, the
// other ranks have a grace period in which to report and exit. After the grace period they get
// TERM, and 2 s later KILL. When the last rank has ended, the same sequence applies to processes
// that ranks leave behind. These are the processes in the ranks' process groups and, on Linux, all
// processes with the job's TUTTI_JOB_PART in their environment.
//
// With --enable-recovery, the failure of a rank does not end the other ranks, because they may have
// shrunk their communicator.
//
// With --restart a failed job is started again as a whole, after the ranks of the earlier start have
// ended. Each start has its own name, secret and certificates. TUTTI_INCARNATION counts the starts, so
// a process of an earlier start that is left somewhere cannot join. --timeout and the times in
// verdicts count from the first start. Only the first start has the launcher's standard input. The
// timeline shows only the last start.
//
// All ranks inherit, read-only, a memory file in which the launcher records the processes that have
// ended; see exitRecord. Each rank also inherits a file of its own, by which it tells the launcher
// that it has joined.
//
// # Several hosts
//
// On each other host that has ranks, one process, "tuttirun remote", does what the launcher does on
// its own host: it starts processes, signals and watches them, has a guardian, and keeps a record
// of processes that have ended. Package remote starts it by ssh, or package agent asks "tuttirun
// agent" on that host to start it. Package remote carries commands to it and events from it. The
// ranks' standard streams and their connections for PMI are streams to the launcher. All decisions
// stay in the launcher. Credentials, arguments and variables are in commands, and never in a command
// line or a file with a name.
//
// No rank starts before all hosts have answered. The host of rank 0 binds the listener on all
// interfaces, unless all ranks are on that host. The name in TUTTI_ROOT is the one that the user
// has written for that host. A rank gets the launcher's environment and working directory, and its
// program is found on its own host. When a rank has died, the records of all hosts say so.
//
// A host is lost if its connection has ended or has been silent for 9 s, or if it has not answered
// the command to prepare or to start a process for 2 min. Its ranks count as failed, with exit code
// 255. The host itself kills them: at once when its input ends, or after 9 s of silence. A launcher
// that stops itself after TSTP first tells the hosts to wait. After KILL, a job on several hosts
// waits 16 s for the ends of its processes. That is long enough to detect a lost host.
//
// With --preload-binary the launcher finds the programs of the job on its own host, and sends them
// to each other host, all on one stream. Programs with the same SHA-256 are sent once. The host
// stores them in a new directory of mode 0700 and compares the sums before it answers, so no rank
// starts before all programs are there. It removes the directory after the last process of the job.
// If tuttirun remote is killed, its guardian removes the directory; the guardian knows the path
// before the directory exists. A host accepts at most 1 GiB of programs for a job.
//
// Two hosts of a job may be one machine. So TUTTI_JOB_PART differs on each host, and each host
// finds only its own processes by it.
//
// # Jobs whose ranks change
//
// With --restart-ranks, --min-np, --host-discovery-script or --enable-recovery, processes can
// become ranks of the running job. The life of the job is a sequence of epochs, each with its own
// ranks, secret and certificates. members.go decides who is in the next epoch; it is a pure state
// machine. elastic_unix.go starts the processes, and serves each of them the record of the ranks
// (package store) on a Unix socket that the process has inherited.
//
// The launcher forms an epoch when every process that it has not seen end asks for it, by Init or
// by Rejoin. So no process of an earlier epoch can go on beside it, except for a while on a host
// that is lost: that host kills its processes itself. The launcher kills a process that does not
// ask within --elastic-timeout after the first rank has asked. If a process fails, the launcher
// first kills the rest of its process group. It neither kills nor awaits a child that has left the
// process group.
//
// A process that fails is started again in its slot, up to --restart-ranks times in the job. After
// the second failure in a slot, and after each further one, the slot stays empty for a pause. A
// process that exits with 0 has finished. Then no process is started any more, and processes that
// were never ranks are ended. When fewer ranks are left than --min-np, and no other can come, the
// job ends as if a rank had failed.
//
// A slot belongs to a host. The discovery script decides how many slots each host has. The launcher
// connects to a host that the script names for the first time, and ends the ranks of a host that the
// script does not name any more. If a host is lost, its processes count as failed. As long as the
// script names the host, the launcher connects to it again, after a pause that grows with each loss
// like the pause of a slot. A job that has lost all its hosts waits for one of them, at most for
// --elastic-timeout. Without a script, the slots of a lost host move to free slots of the other
// hosts of the job.
//
// A job that begins on one host listens on loopback. When it gets a second host, the launcher
// writes its own address into the record. Each process that waits for an epoch then listens on the
// local address from which it reaches the launcher, and asks again. The launcher ignores requests
// that were made before.
//
// A process may have another rank in each epoch. Tags of output and notes of the launcher therefore
// name processes by their slots: "1.2" is the process that was started in slot 1 after two others.
// The slots that the job begins with are numbered as the ranks that it begins with.
//
// # The environment of a rank
//
// A rank inherits the launcher's environment, except for variables that would give it another
// identity. The launcher adds these variables, which the user cannot override:
//
//	TUTTI_RANK, TUTTI_SIZE               which rank this is, of how many
//	TUTTI_LOCAL_RANK, TUTTI_LOCAL_SIZE   the same among the ranks of its host
//	TUTTI_ROOT                           the address of rank 0's listener
//	TUTTI_EXITS_FD                       the descriptor of the record of ranks that have ended, 4
//	TUTTI_JOINED_FD                      the descriptor of the file by which the rank tells that it has joined, 7
//	TUTTI_LISTEN_FD                      rank 0 only: the descriptor of that listener, 5
//	TUTTI_JOB                            the job's name
//	TUTTI_JOB_PART                       its part on this host, by which processes are found
//	TUTTI_SECRET_FD                      the descriptor of the rank's secret and certificate, 3
//	TUTTI_INCARNATION                    how many times the job was started before
//
// If the ranks change, TUTTI_STORE_FD, the descriptor (5) of the socket to the launcher, replaces
// TUTTI_ROOT, TUTTI_LISTEN_FD, TUTTI_SECRET_FD and TUTTI_INCARNATION. TUTTI_RANK is then the slot,
// and TUTTI_SIZE the number of processes that have begun.
//
// For programs and scripts that are written for other launchers, a rank also gets its rank, its
// size and its local rank and size under the names that these launchers use: OMPI_COMM_WORLD_RANK
// and so on, PMI_RANK, PMI_SIZE, MPI_LOCALRANKID and MPI_LOCALNRANKS, torchrun's RANK, WORLD_SIZE,
// LOCAL_RANK and LOCAL_WORLD_SIZE, and HOROVOD_RANK and so on. A value that the user gives by -x
// takes precedence over each of these. Ranks that use this module do not need these variables. If
// the ranks change, none of them is set.
//
// TUTTI_ROLE, and torchrun's ROLE_NAME, are the role of the rank's program: what --role says, or the
// name of the program's file if the job has several programs.
//
// --transport, --report-transport, --report-bootstrap, --report-servers, --timeline and
// --insecure-plain also set environment variables.
//
// # Programs of MPICH
//
// PMI_FD names a connected socket (6), by which the launcher answers PMI-1, as MPICH's mpiexec
// does. A program that is linked with MPICH finds the other ranks through it. Package pmi has the
// protocol. The launcher refuses to start further processes by MPI_Comm_spawn.
//
// The job ends at once when a rank aborts (MPI_Abort). It ends as if a rank had failed when a rank
// has sent a request and exits without finalize, when a rank sends an invalid request, and when
// ranks wait in a barrier for a rank that has exited. The verdict names such a rank, unless its own
// exit status already is a failure. After a signal that asks for the end, a rank may exit without
// finalize. A job in which ranks wait in a barrier for that rank then ends as by the signal.
//
// # Checking hosts
//
// "tuttirun doctor" starts "tuttirun probe" on each host as it would start "tuttirun remote", and
// reports what keeps ranks from running there. Package doctor does both.
//
// # Standard streams
//
// Standard output passes through the launcher only if Job.Output changes it, or if the caller's
// writer is not a file. Standard error always passes through the launcher, because the verdict
// quotes each rank's last error. Each line with a prefix is written as a whole. When the reader of
// the launcher's output closes it, ranks that write get SIGPIPE, as in a pipeline without a launcher.
//
// Output files are created when their rank starts, and then get the same bytes as the screen,
// except for colours. If a file cannot be written, for example on a full disk, the job goes on.
// From then on the lines meant for the file are printed, even if they were to go only to the file.
// The launcher says so at once and in the verdict, and a job that has otherwise succeeded exits
// with 1.
//
// # Command lines of mpirun and mpiexec
//
// Options of Open MPI, MPICH's Hydra, horovodrun and torchrun that mean the same here have the same
// names. Options that mean nothing here are ignored with one warning, so that scripts keep working.
// Options that would change results if they were ignored are errors.
//
// # Hosts and processors
//
// Package placement decides where ranks run. Without hosts all ranks run here, and there may be
// more ranks than processors. With hosts, more ranks than slots are an error, unless the user
// allows them. If the options or the host file are Hydra's, ranks wrap around to the first host
// instead.
//
// By default ranks are not bound. --bind-to and --cpu-list bind them by sched_setaffinity before the
// rank's program begins, so that Go's runtime and other libraries see only these processors. The
// launcher leaves GOMAXPROCS alone: Go derives it from the processors of the process.
//
// # When the launcher itself is killed
//
// A launcher that is killed by SIGKILL cannot end its ranks. On Linux, the kernel kills each rank
// when the launcher dies (the parent-death signal). But that signal does not reach grandchildren,
// and other systems do not have it. Therefore a second process, the guardian, holds the other end
// of a pipe and knows the ranks' process groups. When the pipe ends without a final message, the
// guardian kills the process groups, and on Linux every other process with the job's name. It needs
// no privileges. It cannot reach a grandchild that has left its process group and cleared its
// environment.
//
// # Timelines
//
// With --timeline FILE each rank's coordinator writes FILE.rank0, FILE.rank1 and so on when it
// ends. A rank with package ps, which works or serves, writes FILE.rank0.ps and so on. The launcher merges them into FILE when all ranks have ended. It names the ranks that have
// written no file, for example because they were killed. The job fails if FILE cannot be written.
// It also fails if a rank exited with 0 and left its file empty, for example on a full disk. Ranks on
// other hosts write their files there, so FILE must be in a directory that all hosts share. If a file
// of such a rank is not there, a note names the rank.
//
// # Exit codes
//
//	0          every rank exited with 0; with --enable-recovery, at least one rank did
//	1 to 255   the exit code of the rank that failed by itself or aborted by PMI; 128+n if signal n
//	           ended the rank; 255 if its host was lost
//	128+n      no rank failed by itself, and signal n asked the job to end
//	1          the timeline or a file of output could not be written, a rank ended without the
//	           Init in which other ranks waited for it, too few ranks were left, or a rank broke off
//	           PMI
//	2          the command line is wrong
//	124        the job has not ended within --timeout
//	126, 127   a program cannot be executed, or does not exist
//
// # Systems
//
// Linux has all of this. Other Unix systems lack the parent-death signal and the search by
// environment; the guardian still ends the process groups. On Windows, Run returns an error; start
// the ranks by hand, with TUTTI_RANK, TUTTI_SIZE and TUTTI_ROOT set.
package launch
