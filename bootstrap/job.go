package bootstrap

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/jobca"
	"github.com/tutti-go/tutti/internal/vars"
)

// MaxRanks is the maximum number of ranks that a description of a job may ask for. It guards
// against malformed numbers. It does not promise that a job of that size works.
const MaxRanks = 1 << 16

// op is the name of the operation in the errors of this package.
const op = "bootstrap"

// unknown is the rank in errors that happen before the rank is known.
const unknown = -1

// Options change where Find looks and what it accepts. The zero value reads the environment of this
// process. An option that is set takes precedence over the variable of the same meaning.
type Options struct {
	// Lookup reads one variable; nil means os.LookupEnv. A variable that is set to "" counts as not
	// set. A program that sets options in code passes a Lookup that returns these options, and
	// reads the environment for all other variables.
	Lookup func(name string) (value string, ok bool)

	// Secret, if not empty, is the job's secret, of at least 16 bytes. TUTTI_SECRET_FD,
	// TUTTI_SECRET_FILE and TUTTI_SECRET then have no effect.
	Secret []byte

	// Insecure lets a job without a secret listen beyond loopback. Then every process that can
	// reach the port can join the job.
	Insecure bool

	// Listen, if not "", replaces TUTTI_LISTEN.
	Listen string

	// Stores are the kinds of stores that TUTTI_STORE may name, besides directories.
	Stores []Store
}

// A Job says who this process is and how it reaches the other ranks. Find makes it; fields may be
// changed before Listen. Any number of goroutines may read it.
type Job struct {
	Rank, Size int

	// LocalRank is the index of this rank among the LocalSize ranks of this host. Both are -1 if
	// the source does not provide them.
	LocalRank, LocalSize int

	// Role is the role of this process in the job: TUTTI_ROLE, or the type of its task in
	// TF_CONFIG, or DMLC_ROLE. It is "" if none of these is set.
	Role string

	// Name is unique among the jobs that run on these hosts; it has at most 64 bytes. Incarnation
	// counts the restarts of one job, so that ranks refuse a process left over from an earlier
	// incarnation.
	Name        string
	Incarnation uint32

	// Secret proves that a process belongs to the job; it is empty if there is none. Credentials
	// returns the credentials derived from it.
	Secret []byte

	// Exited reports whether the launcher has seen the process of a rank end. It is nil if no
	// launcher records that.
	Exited func(rank int) bool

	// Root is the host:port at which rank 0 can be reached. It is "" if Peers has the addresses of
	// all ranks, and for a job of one rank.
	Root  string
	Peers []string

	// Host is this machine's name, for messages.
	Host string

	// Source names the source that decided, and the variables that it used.
	Source string

	// Settings that this package passes on without interpreting them; "" if not set.
	Transport       string // a transport by name, or "auto"
	Algorithm       string // operation:algorithm[,...]
	Tuning          string // a file that tuttibench tune wrote
	ReportTransport bool   // print which transport connects which ranks
	ReportBootstrap bool   // print by which source each rank has found the job
	Plain           bool   // connections between hosts are not encrypted
	Rack            string // the rack of this host
	Topology        string // a file that says which rack each host is in

	// Timeout is the default deadline of calls and of Join, or 0 for none. It is valid only if
	// TimeoutSet is true.
	Timeout    time.Duration
	TimeoutSet bool

	// StartLimit is how long the ranks of an elastic job's epoch may take to begin it after Join, or
	// 0 for no limit.
	StartLimit time.Duration

	// Loopback says that this job listens on loopback only, whatever its addresses are. Warnings
	// are lines that the caller should log.
	Loopback bool
	Warnings []string

	listen      string             // TUTTI_LISTEN: host, host:ports or :ports; "" if Listen chooses
	advertise   string             // TUTTI_ADVERTISE: host or host:port; "" if it is the listener's address
	selected    []netip.Addr       // addresses that TUTTI_INTERFACE selects; nil if it is not set
	listenFD    int                // the descriptor of an inherited listener; -1 if there is none
	everywhere  bool               // rank 0 listens on all interfaces
	credentials *jobca.Credentials // the credentials from the launcher; nil if there are none

	// members is the launcher's record of the ranks. It is nil if the environment alone says who
	// they are.
	members  *membership
	finder   *finder      // set if members is set; reads the values that belong to an epoch
	listener net.Listener // opened by Join, until Listen returns it

	// meeting is how Join completes the job. It is nil if Find has completed it, or if the job is
	// elastic. The field store is the connection that Join has used for that, or nil.
	meeting *meeting
	store   launcherStore
}

// String returns the rank, the size, the host and the source of the job, without the secret.
func (j Job) String() string {
	return fmt.Sprintf("rank %d of %d on %s, by %s", j.Rank, j.Size, j.Host, j.Source)
}

// Find returns the job that this process belongs to, or a *fault.Error. The error is Refused if the
// environment is incomplete, malformed or contradictory; it names the variable, its value and the
// remedy. It is Misuse if the options are wrong. Find reads variables and at most one file, and
// opens no socket.
//
// Without a Lookup it removes the secret from what children inherit; see the package comment.
func Find(o Options) (*Job, error) {
	f := &finder{lookup: o.Lookup, hostname: os.Hostname, addrs: net.InterfaceAddrs, interfaces: netInterfaces, hostsFile: hostsFile}
	if f.lookup == nil {
		f.lookup, f.own = os.LookupEnv, true
	}
	return f.find(o)
}

// A finder is one call of Find. Its fields are the functions by which Find queries the machine, so
// that a test can describe another machine.
type finder struct {
	own      bool // lookup reads this process's environment
	lookup   func(string) (string, bool)
	hostname func() (string, error)
	addrs    func() ([]net.Addr, error)

	interfaces func() ([]netInterface, error)
	hostsFile  func() (string, error) // the text of /etc/hosts
	stores     []Store                // the stores of Options
}

// find runs the sources, and then reads what does not depend on the source: the settings, the
// secret, and whether the job may leave loopback. Options take precedence over variables.
func (f *finder) find(o Options) (*Job, error) {
	if n := len(o.Secret); n > 0 && n < jobca.MinSecret {
		return nil, fault.New(fault.Misuse, op, unknown, "Options.Secret: got %d bytes, want at least %d", n, jobca.MinSecret)
	}
	f.stores = o.Stores
	j, err := f.decide()
	if err != nil {
		return nil, err
	}
	if err := f.role(j); err != nil {
		return nil, err
	}
	j.Host = f.host()
	if err := f.settings(j); err != nil {
		return nil, err
	}
	if j.listen == "" || o.Listen != "" {
		j.listen = o.Listen
	}
	switch { // Join completes the job
	case j.Elastic():
		j.Secret = o.Secret
		return j, nil
	case j.meeting != nil:
		j.meeting.options = o
		return j, nil
	}
	if err := f.secretOf(j, o); err != nil {
		return nil, err
	}
	j.Exited = f.exits(j.Rank, upTo(j.Size), false)
	return j, j.confineToLoopback(o.Insecure, "")
}

// secretOf gives the job the secret of the options, or else the secret of the environment. If there
// is neither, the job keeps the secret that it may have from an earlier Join.
func (f *finder) secretOf(j *Job, o Options) error {
	p, err := f.proof(j) // runs even with Options.Secret, so that no child inherits another secret
	if len(o.Secret) > 0 {
		p, err = proof{secret: o.Secret}, nil
	}
	if err == nil && len(p.secret) > 0 {
		j.Secret, j.credentials = p.secret, p.credentials
	}
	return err
}

// decide asks the sources in order, or only the source that TUTTI_BOOTSTRAP names. If the named
// source does not apply, decide returns an error that says when it would apply.
func (f *finder) decide() (*Job, error) {
	only, forced := f.get(vars.Bootstrap)
	var names []string
	for _, s := range sources() {
		names = append(names, s.name)
		if forced && s.name != only {
			continue
		}
		j, err := s.find(f)
		if err != nil {
			return nil, err
		}
		if j != nil {
			return j, f.checkAlone(j)
		}
		if forced {
			return nil, refuse(unknown, "%s=%q, but the variables of that source are not set: the source applies when %s",
				vars.Bootstrap, only, s.applies)
		}
	}
	if !forced || slices.Contains(names, only) {
		// This is unreachable, because the source single always applies.
		return nil, refuse(unknown, "no source of a job applies")
	}
	return nil, badVariable(unknown, vars.Bootstrap, only, "is no source of a job",
		"use one of "+strings.Join(names, ", ")+", or unset it")
}

// settings reads the settings that do not depend on the source and are passed on with the job.
// Package comm checks their values, because this package does not know transports or algorithms.
func (f *finder) settings(j *Job) error {
	j.Transport, _ = f.get(vars.Transport)
	j.Algorithm, _ = f.get(vars.Algorithm)
	j.Tuning, _ = f.get(vars.Tuning)
	j.Rack, _ = f.get(vars.Rack)
	j.Topology, _ = f.get(vars.Topology)
	j.listen, _ = f.get(vars.Listen)
	if err := f.placement(j); err != nil {
		return err
	}
	var err error
	if j.ReportTransport, err = f.flag(j.Rank, vars.Report); err != nil {
		return err
	}
	if j.ReportBootstrap, err = f.flag(j.Rank, vars.ReportBootstrap); err != nil {
		return err
	}
	if j.Plain, err = f.flag(j.Rank, vars.Plain); err != nil {
		return err
	}
	j.Timeout, j.TimeoutSet, err = f.duration(j.Rank, vars.Timeout)
	return err
}

// confineToLoopback decides whether a job may leave loopback:
//
//	secret  Insecure  addresses     the job
//	yes     any       any           listens where its addresses say
//	no      yes       any           the same, with a warning
//	no      no        all loopback  listens on loopback only, with a warning
//	no      no        any other     is refused; with TUTTI_INSECURE_PLAIN listens there, with a warning
//
// Without this rule a job without a secret would accept any process that reaches its ports. An
// early error is better than ranks that cannot reach each other later.
//
// The parameter elsewhere describes one more address of the job: that of a rank on another host,
// which is not known yet. It is "" if there is none.
func (j *Job) confineToLoopback(insecure bool, elsewhere string) error {
	if j.listen != "" {
		if _, _, err := splitListen(j.listen); err != nil {
			return j.badListen()
		}
	}
	if len(j.Secret) > 0 || j.Size == 1 {
		return nil
	}
	letAllIn := func() error {
		j.Warnings = append(j.Warnings, "INSECURE: no secret: whoever reaches this job's ports can join it (WithInsecure or "+vars.Plain+")")
		return nil
	}
	if insecure {
		return letAllIn()
	}
	addrs := append([]string{elsewhere, j.Root, j.listen, j.advertise}, j.Peers...)
	if len(j.selected) > 0 && !slices.ContainsFunc(j.selected, netip.Addr.IsLoopback) {
		addrs = append(addrs, j.selected[0].String())
	}
	for _, a := range addrs {
		switch {
		case a == "" || isLoopback(a):
		case j.Plain:
			return letAllIn()
		default:
			return refuse(j.Rank, "the job has no secret, so it stays on loopback, but %s is beyond it: "+
				"give all ranks the same %s (or %s), written with (umask 077; openssl rand -hex 16 > FILE), or use 127.0.0.1 when all ranks run on this host, or let anybody in with %s=1 on all ranks or comm.WithInsecure",
				a, vars.SecretFile, vars.Secret, vars.Plain)
		}
	}
	j.Loopback = true
	j.selected = slices.DeleteFunc(j.selected, func(a netip.Addr) bool { return !a.IsLoopback() })
	j.Warnings = append(j.Warnings, fmt.Sprintf("no secret: listening on loopback only, where every user of this host can join; set %s or %s",
		vars.SecretFile, vars.Secret))
	return nil
}

// host returns this machine's name, for messages. The result is never empty. It is not used as an
// address, because the name need not resolve.
func (f *finder) host() string {
	if h, err := f.hostname(); err == nil && h != "" {
		return h
	}
	return "localhost"
}
