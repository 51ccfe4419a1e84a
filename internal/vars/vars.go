// Package vars holds the names of the environment variables that a launcher sets and a rank reads.
// Packages launch and bootstrap share them, and the form of package jobca's Bundle.
package vars

// The variables of a job. README's table describes each to users.
const (
	Rank        = "TUTTI_RANK"        // this process's rank, 0 to size-1
	Size        = "TUTTI_SIZE"        // the number of ranks
	LocalRank   = "TUTTI_LOCAL_RANK"  // the rank among those of this host
	LocalSize   = "TUTTI_LOCAL_SIZE"  // the number of ranks on this host
	Root        = "TUTTI_ROOT"        // host:port where rank 0 listens
	ListenFD    = "TUTTI_LISTEN_FD"   // rank 0: an inherited descriptor that listens on Root
	Job         = "TUTTI_JOB"         // the job's name, unique among jobs alive
	JobPart     = "TUTTI_JOB_PART"    // the job's part on this host, by which its launcher finds processes
	Incarnation = "TUTTI_INCARNATION" // counts restarts of the job, from 0
	Role        = "TUTTI_ROLE"        // the role of this process in the job
	Secret      = "TUTTI_SECRET"      // the job's secret, in hex
	SecretFile  = "TUTTI_SECRET_FILE" // a file that holds the secret
	SecretFD    = "TUTTI_SECRET_FD"   // an inherited descriptor: secret and certificate
	ExitsFD     = "TUTTI_EXITS_FD"    // an inherited descriptor: which ranks' processes have ended
	JoinedFD    = "TUTTI_JOINED_FD"   // an inherited descriptor: the rank tells its launcher its process id
	StoreFD     = "TUTTI_STORE_FD"    // an inherited descriptor: the launcher's record of which ranks the job has
	Store       = "TUTTI_STORE"       // file:///DIRECTORY or etcd://HOST:PORT/PREFIX, where the ranks of a job meet
	Transport   = "TUTTI_TRANSPORT"   // auto, or one transport by name
	Algorithm   = "TUTTI_ALGORITHM"   // operation:algorithm[,...]; read by rank 0
	Tuning      = "TUTTI_TUNING"      // a file that tuttibench tune wrote; read by rank 0
	Rack        = "TUTTI_RACK"        // the rack of this rank's host
	Topology    = "TUTTI_TOPOLOGY"    // a file that says which rack each host is in; read by rank 0
	Timeout     = "TUTTI_TIMEOUT"     // a duration; 0 means none
	Hosts       = "TUTTI_HOSTS"       // a static list of host:port, one per rank, comma separated
	Listen      = "TUTTI_LISTEN"      // host, host:port, host:first-last or :first-last that this rank listens on
	Interface   = "TUTTI_INTERFACE"   // the network interfaces that this rank may listen on
	Advertise   = "TUTTI_ADVERTISE"   // host or host:port at which the other ranks reach this rank
	Bootstrap   = "TUTTI_BOOTSTRAP"   // the one source of the job to use, by its name
	Timeline    = "TUTTI_TIMELINE"    // the file into which coordinators write their timeline
	Report      = "TUTTI_REPORT_TRANSPORT"
	Plain       = "TUTTI_INSECURE_PLAIN" // connections between hosts are not encrypted

	ReportBootstrap = "TUTTI_REPORT_BOOTSTRAP" // print by which source each rank has found the job
	ReportServers   = "TUTTI_REPORT_SERVERS"   // a duration: how often parameter servers print what they do
)

// Identity returns the variables that say which job and rank a process is. A launcher that runs
// within another job's rank must not pass these on to its own ranks.
func Identity() []string {
	return []string{
		Rank, Size, LocalRank, LocalSize, Root, ListenFD, Job, JobPart, Incarnation, Role,
		Secret, SecretFile, SecretFD, ExitsFD, JoinedFD, StoreFD, Store, Hosts, Listen, Interface, Advertise, Bootstrap,
	}
}

// ExitsMagic are the first bytes of the file that ExitsFD refers to.
const ExitsMagic = "tutti exits 2\n\x00\x00"

// ExitsSize returns the size of the file that ExitsFD refers to, for n ranks, which is also the
// offset of rank n's byte. The byte is 1 once the rank is known to be dead.
func ExitsSize(n int) int { return len(ExitsMagic) + n }

// JoinedMagic are the first bytes of the file that JoinedFD refers to. The id of the process that
// joins follows them, in 4 bytes, little-endian. It is 0 before.
const JoinedMagic = "tutti joined 1\n\x00"

// JoinedSize is the size of the file that JoinedFD refers to.
const JoinedSize = len(JoinedMagic) + 4
