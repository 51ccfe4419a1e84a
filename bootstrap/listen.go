package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/vars"
)

// lookupLimit and lookupPause bound the wait for rank 0's name: in Kubernetes the name of a pod
// appears some time after the pod, and the ranks of a job are started together.
const (
	lookupLimit = 2 * time.Minute
	lookupPause = 250 * time.Millisecond
)

// Listen opens this process's one TCP listener, at an address that the other ranks can dial. It
// uses the first of these addresses that applies:
//
//   - the descriptor that rank 0 inherited (close-on-exec is set on it);
//   - TUTTI_LISTEN; without a port, the port that the job's addresses give this rank;
//   - this rank's own address: Root for rank 0, Peers[Rank] for any;
//   - loopback with a port of the system's choice, for a job that stays on loopback;
//   - the address of this machine that faces Root, with such a port.
//
// Only the last case waits, for the look-up of Root's name: at most two minutes, and no longer than
// ctx. Errors are *fault.Error: Refused (address in use, not allowed), Timeout, Canceled.
func (j *Job) Listen(ctx context.Context) (net.Listener, error) {
	own := j.ownAddr()
	if j.listenFD >= 0 {
		if l, err := adoptFD(j.listenFD, own); err == nil {
			return l, nil
		}
		// This process has adopted it before, or is a child of rank 0 that did not inherit it.
		// Listening on the address itself shows which: it is free, or in use.
	}
	if j.listen != "" {
		host, port, err := splitListen(j.listen)
		if err != nil {
			return nil, badVariable(j.Rank, vars.Listen, j.listen, "is no address", "give host or host:port")
		}
		if _, known, err := net.SplitHostPort(own); port == "" && err == nil {
			port = known
		}
		return j.bind(ctx, net.JoinHostPort(host, portOrZero(port)))
	}
	switch {
	case own != "":
		return j.bindOwn(ctx, own)
	case j.Loopback, j.Size == 1, isLoopback(j.Root):
		return j.bindLoopback(ctx)
	}
	host, err := addrTowards(ctx, j.Root)
	if err != nil {
		return nil, j.lookupError(ctx, err)
	}
	if isLoopback(host) {
		// Root's name is loopback on this host, and ranks elsewhere need another address.
		// TEST-NET-1 has no hosts, so the route to it is the default route.
		if outward, err := routeTo(ctx, "192.0.2.1:9"); err == nil {
			host = outward
		}
	}
	return j.bind(ctx, net.JoinHostPort(host, "0"))
}

// ownAddr returns the address at which the other ranks expect this rank, or "" if they expect none.
// With Root alone, all ranks but 0 may listen anywhere, since they send their addresses to rank 0.
func (j *Job) ownAddr() string {
	switch {
	case len(j.Peers) > 0:
		return j.Peers[j.Rank]
	case j.Rank == 0:
		return j.Root
	}
	return ""
}

// portOrZero returns the port, or "0" for one of the system's choice.
func portOrZero(port string) string {
	if port == "" {
		return "0"
	}
	return port
}

// bindOwn listens on a given address. It falls back to the port on all interfaces where the host is
// not of this machine (the address of a service, a forwarded one), and where the name is loopback
// on this machine only, as in Debian's hosts file. It never does so for a job that must stay on
// loopback.
func (j *Job) bindOwn(ctx context.Context, own string) (net.Listener, error) {
	l, err := j.bind(ctx, own)
	if j.Loopback || isLoopback(own) {
		return l, err
	}
	_, port, _ := net.SplitHostPort(own)
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

// bindLoopback listens on loopback: in the address family of Root, so that rank 0 and this rank can
// reach each other, else IPv4, else what there is.
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

// bind listens on addr. When the address is in use its error lists the usual owners: a rank that
// was started twice, an Init before this one, or a job that has not ended.
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
	return nil, refuse(j.Rank, "cannot listen: %w; %s says which address to use", err, vars.Listen)
}

// addrTowards returns the address of this machine from which root is reached. It retries while
// root's name cannot be resolved, up to lookupLimit.
func addrTowards(ctx context.Context, root string) (string, error) {
	ctx, stop := context.WithTimeout(ctx, lookupLimit)
	defer stop()
	for {
		host, err := routeTo(ctx, root)
		if err == nil {
			return host, nil
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("%w (%w)", err, ctx.Err())
		case <-time.After(lookupPause):
		}
	}
}

// routeTo connects a datagram socket, which asks the routing table for the local address and sends
// nothing.
func routeTo(ctx context.Context, addr string) (string, error) {
	c, err := new(net.Dialer).DialContext(ctx, "udp", addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	host, _, err := net.SplitHostPort(c.LocalAddr().String())
	return host, err
}

// lookupError returns the error of a look-up that did not succeed in time.
func (j *Job) lookupError(ctx context.Context, err error) error {
	kind := fault.Timeout
	if errors.Is(ctx.Err(), context.Canceled) {
		kind = fault.Canceled
	}
	return fault.New(kind, op, j.Rank, "cannot find the way to rank 0 at %s: %w; is the name right?", j.Root, err)
}
