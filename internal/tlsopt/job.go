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

// Everywhere returns a copy of o that also secures connections within one host. Tests use it to
// have TLS on loopback.
func (o *Options) Everywhere() *Options {
	all := *o
	all.everywhere = true
	return &all
}

// Secures reports whether a connection must be under TLS. With the user's files, every connection
// must. Under the job's CA, only a connection that leaves this host must. Both ends of a connection
// see the same two addresses, so they agree. A nil *Options secures nothing.
//
// A connection within one host needs no TLS, because only root can read its bytes, and root can
// read the memory of both processes as well.
func (o *Options) Secures(local, remote net.Addr) bool {
	switch {
	case o == nil:
		return false
	case o.job == nil || o.everywhere:
		return true
	}
	return !SameHost(local, remote)
}

// SameHost reports whether bytes between two addresses stay on this host. They do if the addresses
// are equal, or if both are loopback addresses.
func SameHost(local, remote net.Addr) bool {
	l, ok := local.(*net.TCPAddr)
	r, too := remote.(*net.TCPAddr)
	return ok && too && (l.IP.Equal(r.IP) || l.IP.IsLoopback() && r.IP.IsLoopback())
}

// NameOf returns the name that PeerName returns for a connection to a rank of this job. Without the
// job's CA it returns "".
func (o *Options) NameOf(rank int) string {
	if o == nil || o.job == nil {
		return ""
	}
	return o.job.NameOf(rank)
}

// A Named is a transport's Conn whose peer may have proven a name by a certificate, before the first
// frame. PeerName returns the name, or "" if the peer has proven no name. A Conn that is built on
// another Conn returns the name from that other Conn.
type Named interface{ PeerName() string }

// PeerName returns the name that the peer of a TLS connection has proven: the URI in its
// certificate. It is "" without the job's CA, on a plain connection, and before the handshake.
func (o *Options) PeerName(nc net.Conn) string {
	tc, ok := nc.(*tls.Conn)
	if !ok || o == nil || o.job == nil {
		return ""
	}
	return jobca.PeerName(tc.ConnectionState())
}

// Explain adds advice for the user to an error of a TLS handshake.
func (o *Options) Explain(err error) error {
	if o == nil || o.job == nil || err == nil {
		return err
	}
	return o.job.Explain(err)
}
