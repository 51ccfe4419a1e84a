package comm

import (
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/tutti-go/tutti/bootstrap"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/tlsopt"
	"github.com/tutti-go/tutti/topology"
)

// Defaults of Init's options.
const (
	defaultTimeout      = 10 * time.Minute
	defaultStallWarning = 30 * time.Second
)

// An Option changes how Init or Local sets up the job. If an option of Init is not given, an
// environment variable may take its place. Local reads no environment variables.
//
//	WithTransportName      TUTTI_TRANSPORT
//	WithTimeout            TUTTI_TIMEOUT
//	WithSecret             TUTTI_SECRET_FD, TUTTI_SECRET_FILE, TUTTI_SECRET
//	WithInsecurePlain      TUTTI_INSECURE_PLAIN
//	WithListen             TUTTI_LISTEN
//	WithAlgorithm          TUTTI_ALGORITHM, of rank 0
//	Parameters.Tuning      TUTTI_TUNING, of rank 0
//	Parameters.Topology    TUTTI_TOPOLOGY, of rank 0
//	Parameters.Rack        TUTTI_RACK
type Option func(*options)

// options holds what the caller gave to Init or Local, completed by the environment.
type options struct {
	wireOptions
	timeout      time.Duration
	timeoutSet   bool
	stallWarning time.Duration
	redial       time.Duration
	params       Parameters
	insecure     bool
	plain        bool
	secret       []byte
	listen       string
	stores       []bootstrap.Store
	tls          *tlsopt.Options
	algorithm    string
	report       bool
	role         string // the role of this process in the job, from the launcher; "" if it has none
	// exited reports whether a rank's process is known to have ended. It is nil if the job has no
	// record of its processes.
	exited     func(rank int) bool
	testPlaces func(rank int) topology.Place // for tests: the host and rack that ranks report
	log        *slog.Logger
	flagHook   func(rank int, set func()) // for tests: called for each flag in shared memory; calls set
	invalid    *fault.Error               // the error of a nil Option, or nil
}

// newOptions applies opts in order to the defaults.
func newOptions(opts []Option) *options {
	o := &options{
		timeout: defaultTimeout, stallWarning: defaultStallWarning,
		params: defaultParameters(),
	}
	for i, opt := range opts {
		if opt == nil {
			o.invalid = fault.New(fault.Misuse, "init", -1, "option with index %d of %d: got nil; omit it", i, len(opts))
			continue
		}
		opt(o)
	}
	if o.log == nil {
		o.log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	return o
}

// check refuses invalid options. Its errors name the given rank, or no rank if it is negative.
func (o *options) check(rank int) error {
	bad := func(format string, args ...any) error { return fault.New(fault.Misuse, "init", rank, format, args...) }
	switch {
	case o.invalid != nil:
		return o.invalid
	case slices.Contains(o.extra, nil):
		return bad("WithTransport: got nil, want a Transport")
	case slices.Contains(o.stores, nil):
		return bad("WithStore: got nil, want a Store")
	case o.timeout < 0:
		return bad("WithTimeout: got %v, want 0 (no limit) or more", o.timeout)
	case o.stallWarning < 0:
		return bad("WithStallWarning: got %v, want 0 (no warning) or more", o.stallWarning)
	case o.redial < 0:
		return bad("WithRedial: got %v, want 0 (no redial) or more", o.redial)
	}
	return o.params.check(rank)
}

// WithTimeout limits the wait of a call whose context has no deadline; 0 means no limit.
// The default is 10 minutes, or TUTTI_TIMEOUT.
func WithTimeout(d time.Duration) Option {
	return func(o *options) { o.timeout, o.timeoutSet = d, true }
}

// WithStallWarning sets how long a call, including Init, waits before it logs one line that names
// the missing ranks; 0 means never. The default is 30 seconds. The call goes on waiting. The line
// helps to find a hang before the Timeout ends the call.
func WithStallWarning(d time.Duration) Option { return func(o *options) { o.stallWarning = d } }

// WithRedial lets the ranks dial again, for the time d, when a data connection over tcp or grpc
// breaks and both its ranks are alive. Messages wait meanwhile, and none is lost or duplicated. If
// no connection comes up in this time, the ranks report fault.LinkLost. All ranks must set the
// option. The default is 0: fault.LinkLost at once. 10 s outlasts most failures of a network. If
// If all connections of a rank are reset at once, the rank is not lost. The option does not delay
// the report of a rank that is silent for too long, or of a dead rank whose host refuses
// connections. The host of a dead rank may not refuse them, for example if the rank was the main
// process of a container. Unless the launcher has seen the end of its process, such a rank is
// reported like a silent one.
//
// If a large message of a call is under way on the broken connection, the call returns only after
// the dials have ended, even if its context ends or another rank is lost. The option costs a copy
// of each small message, and a large send is complete only when the peer has acknowledged it. See
// docs/fault-tolerance.md.
func WithRedial(d time.Duration) Option { return func(o *options) { o.redial = d } }

// WithInsecure lets a job without a secret listen beyond loopback. Anybody who can reach a port of
// the job can then join the job and take part in its collectives. Without WithInsecure and
// TUTTI_INSECURE_PLAIN, Init refuses such a job.
func WithInsecure() Option { return func(o *options) { o.insecure = true } }

// WithInsecurePlain disables the encryption of connections between hosts. All ranks of the job must
// have this option. An attacker on the network path can then read and change the data. Ranks still
// prove that they know the job's secret. Bodies carry a checksum, as with Parameters.Checksums,
// which detects damage but no attack. Without this option, connections between hosts use mutual TLS
// 1.3 if the job has a secret.
func WithInsecurePlain() Option { return func(o *options) { o.plain = true } }

// WithSecret sets the job's secret, at least 16 bytes, in place of TUTTI_SECRET_FD,
// TUTTI_SECRET_FILE and TUTTI_SECRET. A peer that cannot prove that it has the secret is refused in
// the handshake. The ranks derive the job's CA from the secret.
func WithSecret(secret []byte) Option { return func(o *options) { o.secret = secret } }

// WithListen sets where this rank listens, in place of TUTTI_LISTEN: host, host:port, or with a
// range of ports, host:7000-7099. Other ranks must be able to reach it.
func WithListen(addr string) Option { return func(o *options) { o.listen = addr } }

// WithStore adds kinds of stores that TUTTI_STORE may name, such as etcd.New(etcd.Config{}) of
// package bootstrap/etcd. The ranks of a job without a launcher find each other there. A directory
// that all hosts share, TUTTI_STORE=file:///DIRECTORY, needs no option. Local ignores the option.
func WithStore(s ...bootstrap.Store) Option {
	return func(o *options) { o.stores = append(o.stores, s...) }
}

// TLS names the files for TLS between the ranks, for tcp and for grpc. If both sides have a CA,
// each proves its identity to the other (mutual TLS).
type TLS = tlsopt.Options

// WithTLS replaces the certificates of the job's own CA by certificates of the program. They apply
// to all connections, even within a host: data, control links and the handshake. A job needs
// WithTLS only if its connections pass a proxy that terminates TLS, or if the rules of a site
// require the site's own CA. The certificates do not say which rank a peer is. Shared memory and
// RDMA writes are not encrypted.
func WithTLS(t TLS) Option { return func(o *options) { o.tls = &t } }

// WithAlgorithm forces algorithms: "allreduce:ring,broadcast:binomial@256Ki". The number after @ is
// the segment size of the messages in bytes. Only rank 0's option counts, and it overrides rank 0's
// TUTTI_ALGORITHM.
func WithAlgorithm(list string) Option { return func(o *options) { o.algorithm = list } }

// WithLogger sets the library's logger. It gets warnings of stalls, refused connections and shared
// memory that cannot be mapped, and the order of the ranks at level Info. The default logger prints
// warnings on standard error.
func WithLogger(log *slog.Logger) Option { return func(o *options) { o.log = log } }
