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

// lookupLimit and lookupPause bound the wait for rank 0's name. In Kubernetes the name of a pod
// appears some time after the pod starts, and all ranks of a job start at the same time.
const (
	lookupLimit = 2 * time.Minute
	lookupPause = 250 * time.Millisecond
)

// Listen opens this process's one TCP listener, at an address that the other ranks can dial. It
// uses the first of these addresses that applies:
//
//   - the address of the descriptor that rank 0 inherited (Listen sets close-on-exec on it);
//   - TUTTI_LISTEN; without a port, the port that the job's addresses give this rank;
//   - this rank's own address: Root for rank 0, or Peers[Rank] for any rank;
//   - loopback with a port that the system chooses, for a job that stays on loopback;
//   - the address of this machine from which Root is reached, with a port that the system chooses.
//
// Only the last case retries, until Root's name has an address. It retries for at most two minutes,
// and ends when ctx ends. Errors are *fault.Error: Refused (address in use, not allowed), Timeout,
// Canceled.
func (j *Job) Listen(ctx context.Context) (net.Listener, error) {
	if l := j.listening(); l != nil {
		return l, nil
	}
	own := j.ownAddr()
	if j.listenFD >= 0 {
		if l, err := adoptFD(j.listenFD, own); err == nil {
			return l, nil
		}
		// This process has adopted the descriptor before, or it is a child of rank 0 that did not
		// inherit it. Listening on the address itself shows which case it is: the address is free,
		// or in use.
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

// ownAddr returns the address at which the other ranks expect this rank, or "" if this rank may
// listen anywhere. The latter holds for all ranks except 0 if the job has only Root, because they
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

// portOrZero returns the port, or "0", which lets the system choose a port.
func portOrZero(port string) string {
	if port == "" {
		return "0"
	}
	return port
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
// not resolve, it retries up to lookupLimit.
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

// routeTo returns the local address of the route to addr. It connects a datagram socket, which asks
// the routing table and sends nothing.
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
	return fault.New(kind, op, j.Rank, "cannot find a route to rank 0 at %s: %w; check the name", j.Root, err)
}
