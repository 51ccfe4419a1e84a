package tlsopt

import (
	"crypto/tls"
	"net"

	"github.com/tutti-go/tutti/internal/jobca"
)

// ForJob returns the Options of a rank under its job's CA. They need no files:
//
//	connection        protection
//	between hosts     mutual TLS 1.3; both ends check chain, job and incarnation
//	within one host   none: see Secures
func ForJob(c *jobca.Credentials) *Options { return &Options{job: c} }

// Everywhere returns a copy of o that also secures connections within one host. Tests use it to have
// TLS on loopback.
func (o *Options) Everywhere() *Options {
	all := *o
	all.everywhere = true
	return &all
}

// Secures reports whether a connection must be under TLS: every connection with the user's files;
// under the job's CA, a connection that leaves this host. Both ends of a connection see the same two
// addresses, so they agree. A nil *Options secures nothing.
//
// Within one host only root can read what passes between two processes, and root can read their
// memory as well.
func (o *Options) Secures(local, remote net.Addr) bool {
	switch {
	case o == nil:
		return false
	case o.job == nil || o.everywhere:
		return true
	}
	return !SameHost(local, remote)
}

// SameHost reports whether bytes between two addresses stay on this host: the addresses are equal,
// or both are loopback's.
func SameHost(local, remote net.Addr) bool {
	l, ok := local.(*net.TCPAddr)
	r, too := remote.(*net.TCPAddr)
	return ok && too && (l.IP.Equal(r.IP) || l.IP.IsLoopback() && r.IP.IsLoopback())
}

// NameOf returns what PeerName returns for a connection to a rank of this job; "" without the job's
// CA.
func (o *Options) NameOf(rank int) string {
	if o == nil || o.job == nil {
		return ""
	}
	return o.job.NameOf(rank)
}

// PeerName returns the name that the peer of a TLS connection has proven: the URI in its
// certificate. It is "" without the job's CA, on a plain connection, and before the handshake.
func (o *Options) PeerName(nc net.Conn) string {
	tc, ok := nc.(*tls.Conn)
	if !ok || o == nil || o.job == nil {
		return ""
	}
	return jobca.PeerName(tc.ConnectionState())
}

// Explain adds to an error of a TLS handshake what the user can do about it.
func (o *Options) Explain(err error) error {
	if o == nil || o.job == nil || err == nil {
		return err
	}
	return o.job.Explain(err)
}
