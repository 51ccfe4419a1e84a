package bootstrap

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/jobca"
	"github.com/tutti-go/tutti/internal/pmi"
	"github.com/tutti-go/tutti/internal/route"
)

// A launcherStore is this process's connection to the key-value store of a launcher. One goroutine
// uses it.
type launcherStore interface {
	// Layout returns this process's rank, the number of ranks, the index of this rank among the
	// ranks of this host, and their number. The last two are -1 if the launcher does not say.
	Layout() (rank, size, localRank, localSize int)

	// Exchange publishes rank 0's value, waits until all ranks have called Exchange, and returns the
	// value on every rank. Other ranks pass "". It fails when ctx ends, and when the launcher ends.
	// ctx has a deadline, unless the user wants to wait without a limit.
	Exchange(ctx context.Context, value string) (string, error)

	// Close closes the connection. If Exchange has succeeded, Close first tells the launcher that
	// this process no longer needs it. Without this message the launcher would regard this process as
	// failed, and end the job. Close waits at most two seconds. A second Close only returns an error.
	Close() error
}

// A meeting completes a job through a launcher's key-value store. Rank 0 publishes where it
// listens, the job's name, and the job's secret if the ranks have none.
type meeting struct {
	source  string // the name of the source
	private bool   // the store may carry the secret; see the package comment
	trusted bool   // as far as this package knows, others cannot read what passes through the store
	again   bool   // dial works more than once
	dial    func(context.Context) (launcherStore, error)
	finder  *finder
	options Options

	// otherwise returns a job of the same rank and size that needs no store, or nil. It is used if
	// dial cannot connect. The field itself is nil if the source has no alternative.
	otherwise func() *Job
}

// meetingLimit bounds a meeting if the context has no deadline and the job has no Timeout. A bound
// is needed, because some launchers do not notice that a rank has ended before it called Init.
const meetingLimit = 5 * time.Minute

// pmi1 finds a launcher that speaks PMI-1. If PMI_FD is an open socket, the launcher is the parent
// of this process, so the connection is private. PMI_PORT is not private: any process of the same
// host, or of the network, may connect to it.
func (f *finder) pmi1() (*Job, error) {
	from, private := "PMI-1 at PMI_FD", pmi.Inherited(f.lookup)
	if !private {
		from = "PMI-1 at PMI_PORT"
		if !pmi.Listening(f.lookup) {
			return f.metBefore("pmi1")
		}
	}
	return f.meetBy("pmi1", from, private, func(ctx context.Context) (launcherStore, error) {
		return pmi.Dial(ctx, f.lookup)
	})
}

// metBefore returns the job of an earlier meeting of this process by the same source, or nil. A
// connection to a launcher can be used only once, so after a failed meeting metBefore returns an
// error.
func (f *finder) metBefore(source string) (*Job, error) {
	inherited.mu.Lock()
	defer inherited.mu.Unlock()
	switch {
	case !f.own || inherited.metBy != source:
		return nil, nil
	case inherited.met == nil:
		return nil, refuse(unknown, "an earlier Init of this process has failed while its launcher waited for all ranks: end this process, and start the job again")
	}
	j := *inherited.met
	return &j, nil
}

// meetBy returns a job that Join completes by the function dial, or the job of an earlier meeting.
// The parameter from is a text for users that names the origin of the job.
func (f *finder) meetBy(source, from string, private bool, dial func(context.Context) (launcherStore, error)) (*Job, error) {
	if j, err := f.metBefore(source); j != nil || err != nil {
		return j, err
	}
	j := newJob(from)
	j.Rank, j.Size = unknown, 0
	j.meeting = &meeting{source: source, private: private, dial: dial, finder: f}
	return j, nil
}

// meet completes the job through the launcher's store. The connection stays open until Finalize,
// even if meet or a later step of Init fails. If it were closed, the launcher would end the job,
// and this process, before the process could print the error.
func (j *Job) meet(ctx context.Context) (*Job, error) {
	limit := meetingLimit
	if j.TimeoutSet {
		limit = j.Timeout
	}
	if _, limited := ctx.Deadline(); !limited && limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	m, next := j.meeting, *j
	next.meeting = nil
	store, err := m.dial(ctx)
	if err != nil {
		return m.meetOtherwise(ctx, &next, err)
	}
	next.store = store
	next.Rank, next.Size, next.LocalRank, next.LocalSize = store.Layout()
	if err := m.enter(ctx, &next, store); err != nil {
		next.Close()
		m.keep(nil, store)
		return nil, err
	}
	kept := next
	kept.listener, kept.Warnings = nil, nil
	m.keep(&kept, store)
	return &next, nil
}

// Finalize tells the launcher that this process no longer needs it, if the launcher has a key-value
// store. After that, the launcher does not end the other ranks when this process ends. So call
// Finalize only when no rank waits for this rank any more. Finalize waits at most two seconds.
func (j *Job) Finalize() {
	if j.store != nil {
		j.store.Close() // an error here changes nothing
	}
}

// keep keeps the result of the meeting for a later Find: the job, or nil if the meeting has failed.
// It also keeps the connection, because the garbage collector would close it. If dial works more
// than once, a later Find meets again.
func (m *meeting) keep(met *Job, store launcherStore) {
	if !m.finder.own || m.again {
		if met == nil {
			store.Close()
		}
		return
	}
	inherited.mu.Lock()
	defer inherited.mu.Unlock()
	inherited.metBy, inherited.met, inherited.store = m.source, met, store
}

// enter decides what protects the job, opens rank 0's listener, and exchanges rank 0's invitation.
func (m *meeting) enter(ctx context.Context, j *Job, store launcherStore) error {
	if err := m.finder.checkAlone(j); err != nil {
		return err
	}
	oneHost := j.Size == 1 || j.LocalSize == j.Size
	elsewhere := ""
	if !oneHost {
		elsewhere = "a rank that may run on another host"
	}
	if err := m.finder.protect(j, m.options, m.private, elsewhere); err != nil {
		return err
	}
	j.Loopback = j.Loopback || oneHost && j.listen == ""
	own := ""
	var in invitation
	if j.Rank == 0 {
		var err error
		if in, err = m.invite(ctx, j); err != nil {
			return err
		}
		own = in.String()
	}
	text, err := store.Exchange(ctx, own)
	if err != nil {
		return j.meetingError(ctx, err)
	}
	if j.Rank == 0 && text != own {
		return refuse(0, "%s: got back %d bytes of the value that was put, want %d: the launcher changes values", j.Source, len(text), len(own))
	}
	if in, err = parseInvitation(text); err != nil {
		return refuse(j.Rank, "%s: rank 0's value is malformed (%w): start all ranks from the same program", j.Source, err)
	}
	if err := j.accept(ctx, in); err != nil {
		return err
	}
	j.Name = m.source + "." + in.token
	if j.Rank == 0 && in.secret != nil && j.Size > 1 && !m.trusted {
		j.Warnings = append(j.Warnings, "the job's secret has passed through the launcher, which may hand it to other users of these hosts, and may not encrypt it between hosts: an attacker who learns it can join the job; set TUTTI_SECRET_FILE for all ranks if others share the hosts or the network")
	}
	if online, err := os.ReadFile("/sys/devices/system/cpu/online"); j.Rank == 0 && err == nil && boundToOneCore(runtime.NumCPU(), string(online)) {
		j.Warnings = append(j.Warnings, "this process may use only one core of its host: if the launcher has bound it, mpirun --bind-to none or srun --cpu-bind=none gives each rank all cores")
	}
	return m.finder.identity(j)
}

// boundToOneCore reports whether a process may use only one core of a host that has more. The
// parameter online is Linux's list of cores, such as 0-3. Such a process runs only one goroutine at
// a time, and launchers bind ranks to cores by default.
func boundToOneCore(usable int, online string) bool {
	return usable == 1 && strings.ContainsAny(online, ",-")
}

// protect gives the job the secret of its environment or of the program. If there is none, rank 0
// publishes a secret if the store may carry it; otherwise the job must stay on loopback. See
// confineToLoopback for the parameter elsewhere.
func (f *finder) protect(j *Job, o Options, private bool, elsewhere string) error {
	err := f.secretOf(j, o)
	if err != nil || private && len(j.Secret) == 0 {
		return err
	}
	return j.confineToLoopback(o.Insecure, elsewhere)
}

// invite opens rank 0's listener, and returns the invitation for the other ranks.
func (m *meeting) invite(ctx context.Context, j *Job) (in invitation, err error) {
	j.everywhere = j.listen == "" && !j.Loopback // each other rank chooses one of rank 0's addresses
	if j.listener, err = j.Listen(ctx); err != nil {
		return in, err
	}
	random := make([]byte, 16+32)
	rand.Read(random)
	in.token = hex.EncodeToString(random[:16])
	if m.private && len(j.Secret) == 0 {
		in.secret = random[16:]
	}
	in.guarded = len(j.Secret) > 0
	host, port, err := net.SplitHostPort(j.listener.Addr().String())
	if err != nil {
		return in, err
	}
	in.port = port
	in.hosts = []string{host}
	if a, err := netip.ParseAddr(host); err == nil && a.IsUnspecified() {
		in.hosts = m.finder.reachableHosts(ctx)
	}
	return in, nil
}

// reachableHosts returns the addresses of this machine that other hosts may reach, and its name.
// The address of the default route comes first. Loopback and link-local addresses are left out,
// because other hosts cannot reach this machine by them.
func (f *finder) reachableHosts(ctx context.Context) []string {
	var hosts []string
	add := func(host string) {
		if !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	if addr, err := route.Default(ctx); err == nil && f.own {
		add(addr.String())
	}
	for _, a := range f.ownAddrs() {
		if a.IsGlobalUnicast() {
			add(a.String())
		}
	}
	hosts = hosts[:min(len(hosts), maxHosts-1)]
	if name := f.host(); checkAddr(net.JoinHostPort(name, "1")) == nil && len(name) <= 64 {
		add(name)
	}
	return hosts
}

// accept completes the job by rank 0's invitation.
func (j *Job) accept(ctx context.Context, in invitation) error {
	const remedy = "set TUTTI_SECRET_FILE to the same file for all ranks, or for none (mpirun passes it to other hosts only by -x TUTTI_SECRET_FILE)"
	switch {
	case in.secret != nil && len(j.Secret) > 0:
		return refuse(j.Rank, "this rank has a secret of its own, and rank 0 has none: %s", remedy)
	case in.guarded && len(j.Secret) == 0:
		return refuse(j.Rank, "rank 0 has a secret of its own, and this rank has none: %s", remedy)
	case in.secret != nil:
		j.Secret = in.secret
	}
	addrs := in.addrs()
	j.Root = addrs[0]
	if j.Rank != 0 && len(addrs) > 1 {
		j.Root = firstThatAccepts(ctx, addrs)
	}
	return nil
}

// acceptLimit bounds how long one of rank 0's addresses may take to accept a connection.
const acceptLimit = 2 * time.Second

// firstThatAccepts returns the first address that accepts a connection. Rank 0 already listens on
// its port. Some addresses, such as that of a container bridge, exist on every host, but only rank
// 0 listens on the port. If no address accepts a connection, firstThatAccepts returns the first
// address. The address exchange then goes on trying it, and reports the error.
func firstThatAccepts(ctx context.Context, addrs []string) string {
	for _, a := range addrs {
		limited, cancel := context.WithTimeout(ctx, acceptLimit)
		c, err := new(net.Dialer).DialContext(limited, "tcp", a)
		cancel()
		if err == nil {
			c.Close()
			return a
		}
	}
	return addrs[0]
}

// meetingError returns the error of the launcher's store, with a remedy. It returns a *fault.Error
// unchanged, because that contains its remedy.
func (j *Job) meetingError(ctx context.Context, err error) error {
	var f *fault.Error
	if errors.As(err, &f) {
		return err
	}
	if ctx.Err() != nil {
		return fault.New(fault.ContextKind(ctx.Err()), op, j.Rank, "%s: %w: not all ranks have called Init", j.Source, err)
	}
	return refuse(j.Rank, "%s: %w: let the launcher start each rank, without a script that starts two in turn, or use tuttirun", j.Source, err)
}

// An invitation is the value that rank 0 publishes: how the other ranks reach it. Its text has at
// most maxInvitation bytes, and none that a launcher's protocol treats in a special way:
//
//	1,TOKEN,SECRET,PORT,HOST[,HOST...]
//
// TOKEN and SECRET are hex. SECRET is "" if the job has none, and "-" if each rank has it already.
type invitation struct {
	token   string // 128 random bits, which become part of the job's name
	secret  []byte
	guarded bool // rank 0 has a secret, which is not published
	port    string
	hosts   []string
}

const (
	// maxInvitation is below what launchers store: Slurm's PMI-1 limits the whole request to about
	// 1024 bytes, and Hydra 4.0 truncates values at 1023 bytes.
	maxInvitation = 512
	maxHosts      = 8
	tokenDigits   = 32
)

// String returns the text of the invitation. It leaves out the last hosts if the text would be too
// long.
func (in invitation) String() string {
	secret := hex.EncodeToString(in.secret)
	if in.guarded {
		secret = "-"
	}
	text := strings.Join([]string{"1", in.token, secret, in.port}, ",")
	for _, h := range in.hosts {
		if len(text)+1+len(h) <= maxInvitation {
			text += "," + h
		}
	}
	return text
}

// addrs returns the addresses of rank 0.
func (in invitation) addrs() []string {
	addrs := make([]string, len(in.hosts))
	for i, h := range in.hosts {
		addrs[i] = net.JoinHostPort(h, in.port)
	}
	return addrs
}

// parseInvitation parses the text of an invitation.
func parseInvitation(text string) (in invitation, err error) {
	if len(text) > maxInvitation {
		return in, fmt.Errorf("got %d bytes, want at most %d", len(text), maxInvitation)
	}
	fields := strings.Split(text, ",")
	if len(fields) < 5 || fields[0] != "1" {
		return in, errors.New("want the form of this version")
	}
	in.token = fields[1]
	if len(in.token) != tokenDigits || strings.Trim(in.token, "0123456789abcdef") != "" {
		return in, fmt.Errorf("token: want %d hexadecimal digits in lower case", tokenDigits)
	}
	switch fields[2] {
	case "":
	case "-":
		in.guarded = true
	default:
		if in.secret, err = hex.DecodeString(fields[2]); err != nil || len(in.secret) < jobca.MinSecret {
			return in, fmt.Errorf("secret: want at least %d bytes in hexadecimal digits", jobca.MinSecret) // must not show the secret
		}
	}
	in.port, in.hosts = fields[3], fields[4:]
	if len(in.hosts) > maxHosts {
		return in, fmt.Errorf("got %d hosts, want at most %d", len(in.hosts), maxHosts)
	}
	for _, a := range in.addrs() {
		if err := checkAddr(a); err != nil {
			return in, fmt.Errorf("address %.80q %w", a, err)
		}
	}
	return in, nil
}
