package bootstrap

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/route"
	"github.com/tutti-go/tutti/internal/vars"
)

// lookupPause is the pause before a name is looked up again. In Kubernetes the name of a pod
// appears some time after the pod starts, and all ranks of a job start at the same time.
const lookupPause = 250 * time.Millisecond

// Listen opens this process's one TCP listener, at an address that the other ranks can dial. It
// uses the first of these addresses that applies:
//
//   - the address of the descriptor that rank 0 inherited (Listen sets close-on-exec on it);
//   - the host of TUTTI_LISTEN;
//   - an address that TUTTI_INTERFACE selects. The ranks expect rank 0 at Root, so rank 0 listens
//     on all interfaces if Root is another address;
//   - all interfaces, if TUTTI_LISTEN has only ports;
//   - this rank's own address: Root for rank 0, or Peers[Rank] for any rank;
//   - loopback, for a job that stays on loopback;
//   - the address of this machine from which Root is reached.
//
// The port is that of TUTTI_LISTEN, or else the port in this rank's address, or else a port that
// the system chooses. In a range of ports, Listen uses the first free one. If the job's addresses
// determine this rank's port, a range has no effect.
//
// The listener's Addr is the address at which the other ranks reach this rank. If TUTTI_ADVERTISE
// is set, it is that address.
//
// The names in TUTTI_LISTEN and in Root may not resolve yet. Listen looks them up again until they
// have an address, or until ctx ends. Errors are *fault.Error: Refused (address in use, not
// allowed), Timeout, Canceled.
func (j *Job) Listen(ctx context.Context) (net.Listener, error) {
	if l := j.listening(); l != nil {
		return l, nil
	}
	l, err := j.open(ctx)
	if err == nil && j.advertise != "" {
		l = advertise(l, j.advertise)
	}
	return l, err
}

// open opens the listener of Listen, without regard to TUTTI_ADVERTISE.
func (j *Job) open(ctx context.Context) (net.Listener, error) {
	own := j.ownAddr()
	if j.listenFD >= 0 {
		if l, err := adoptFD(j.listenFD, own); err == nil {
			return l, nil
		}
		// This process has adopted the descriptor before, or it is a child of rank 0 that did not
		// inherit it. The attempt to listen on the address distinguishes the cases: the address is free
		// in the first, and in use in the second.
	}
	host, ports, err := splitListen(j.listen)
	if err != nil {
		return nil, j.badListen()
	}
	ownHost, known, err := net.SplitHostPort(own)
	if err == nil && (ports == "" || strings.Contains(ports, "-")) {
		ports = known
	}
	switch {
	case host != "":
		return j.bindHost(ctx, host, ports)
	case len(j.selected) > 0 && !isLoopback(own):
		if host, err = j.selectedHost(ctx); err != nil {
			return nil, err
		}
		if own == "" || host == ownHost {
			return j.bindPorts(ctx, host, ports)
		}
		l, err := j.bindPorts(ctx, "", ports)
		if err != nil {
			return nil, err
		}
		return advertise(l, host), nil
	case j.listen != "":
		return j.bindPorts(ctx, "", ports)
	case own != "":
		return j.bindOwn(ctx, own)
	case j.everywhere:
		return j.bind(ctx, ":0")
	case j.Loopback, j.Size == 1, isLoopback(j.Root):
		return j.bindLoopback(ctx)
	}
	at, err := addrTowards(ctx, j.Root)
	if err != nil {
		return nil, j.lookupError(ctx, err)
	}
	if at.IsLoopback() {
		// On this host Root's name is loopback, but ranks on other hosts need another address.
		if outward, err := route.Default(ctx); err == nil {
			at = outward
		}
	}
	return j.bind(ctx, netip.AddrPortFrom(at, 0).String())
}

// badListen returns the error of a job that cannot use the value of TUTTI_LISTEN.
func (j *Job) badListen() error {
	return badVariable(j.Rank, vars.Listen, j.listen, "is no address",
		"give host, host:port, or ports alone, such as 10.0.0.7, 10.0.0.7:7000, 10.0.0.7:7000-7099, or :7000-7099")
}

// ownAddr returns the address at which the other ranks expect this rank, or "" if this rank may
// listen anywhere. If the job has only Root, all ranks except 0 may listen anywhere, because they
// send their addresses to rank 0.
func (j *Job) ownAddr() string {
	switch {
	case len(j.Peers) > 0:
		return j.Peers[j.Rank]
	case j.Rank == 0:
		return j.Root
	}
	return ""
}

// bindHost listens on the host of TUTTI_LISTEN. It waits until a name has an address.
func (j *Job) bindHost(ctx context.Context, host, ports string) (net.Listener, error) {
	for {
		l, err := j.bindPorts(ctx, host, ports)
		var dns *net.DNSError
		switch {
		case errors.Is(err, syscall.EADDRNOTAVAIL):
			all, _ := netInterfaces()
			return nil, badVariable(j.Rank, vars.Listen, j.listen, "is no address of this machine",
				"choose from "+describe(all)+"; an address of a gateway belongs in "+vars.Advertise)
		case !errors.As(err, &dns):
			return l, err
		case !pause(ctx):
			return nil, fault.New(fault.ContextKind(ctx.Err()), op, j.Rank, "%s=%q: %w (%w); check the name", vars.Listen, j.listen, dns, context.Cause(ctx))
		}
	}
}

// bindPorts listens on a port, on the first free port of a range, or, if ports is "", on a port
// that the system chooses. Ranks other than 0 skip the port of Root, because rank 0 may be on the
// same host.
func (j *Job) bindPorts(ctx context.Context, host, ports string) (net.Listener, error) {
	first, last, err := portRange(cmp.Or(ports, "0"))
	if err != nil {
		return nil, j.badListen()
	}
	_, root, _ := net.SplitHostPort(j.Root)
	for port := first; port <= last; port++ {
		if first < last && itoa(port) == root {
			continue
		}
		l, err := j.bind(ctx, net.JoinHostPort(host, itoa(port)))
		if first == last || !errors.Is(err, syscall.EADDRINUSE) {
			return l, err
		}
	}
	return nil, badVariable(j.Rank, vars.Listen, j.listen, "is used up: other processes listen on its ports",
		"end them, or give more ports: each rank of a host needs one, and the port of rank 0's address is for rank 0")
}

// bindOwn listens on a given address. In three cases it listens on the same port of all interfaces
// instead: the ranks have met while rank 0 listened there, the host is not an address of this
// machine (but of a service or a forwarder), or the name is loopback on this machine only, as in
// Debian's hosts file. It never does so for a job that must stay on loopback.
func (j *Job) bindOwn(ctx context.Context, own string) (net.Listener, error) {
	_, port, _ := net.SplitHostPort(own)
	if j.everywhere && !j.Loopback {
		return j.bind(ctx, net.JoinHostPort("", port))
	}
	l, err := j.bind(ctx, own)
	if j.Loopback || isLoopback(own) {
		return l, err
	}
	if err == nil && isLoopback(l.Addr().String()) {
		l.Close()
		return j.bind(ctx, net.JoinHostPort("", port))
	}
	var dns *net.DNSError
	if errors.Is(err, syscall.EADDRNOTAVAIL) || errors.As(err, &dns) {
		return j.bind(ctx, net.JoinHostPort("", port))
	}
	return l, err
}

// bindLoopback listens on loopback. It prefers the address family of Root, so that rank 0 and this
// rank can reach each other, then IPv4, then any family that is available.
func (j *Job) bindLoopback(ctx context.Context) (net.Listener, error) {
	if host, _, err := net.SplitHostPort(j.Root); err == nil && host != "localhost" && isLoopback(j.Root) {
		return j.bind(ctx, net.JoinHostPort(host, "0"))
	}
	l, err := j.bind(ctx, "127.0.0.1:0")
	if err != nil {
		if l6, err6 := j.bind(ctx, "[::1]:0"); err6 == nil {
			return l6, nil
		}
	}
	return l, err
}

// bind listens on addr. If the address is in use, the error lists the usual reasons: a rank that
// was started twice, an earlier Init, or a job that has not ended.
func (j *Job) bind(ctx context.Context, addr string) (net.Listener, error) {
	var config net.ListenConfig
	// Multipath TCP would change what the transports can do with the sockets.
	config.SetMultipathTCP(false)
	l, err := config.Listen(ctx, "tcp", addr)
	if err == nil {
		return l, nil
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, refuse(j.Rank, "%w: another process listens there (a second rank %d, a second Init of this process, or an earlier job that has not ended?); end it, or choose another port",
			err, j.Rank)
	}
	return nil, refuse(j.Rank, "cannot listen: %w; set %s to the address to use", err, vars.Listen)
}

// addrTowards returns the address of this machine from which root is reached. If root's name does
// not resolve, it retries until ctx ends.
func addrTowards(ctx context.Context, root string) (netip.Addr, error) {
	for {
		addr, err := route.To(ctx, root)
		if err == nil || !pause(ctx) {
			return addr, err
		}
	}
}

// pause waits for lookupPause. It returns false if ctx ends first.
func pause(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(lookupPause):
		return true
	}
}

// lookupError returns the error of a look-up that did not succeed in time.
func (j *Job) lookupError(ctx context.Context, err error) error {
	return fault.New(fault.ContextKind(ctx.Err()), op, j.Rank, "cannot find a route to rank 0 at %s: %w (%w); check the name", j.Root, err, context.Cause(ctx))
}
