package jobca

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// A Name says which rank of which job a certificate belongs to.
type Name struct {
	Job         string // the hash of the job's name, in hex
	Incarnation uint32
	Rank        int
}

// NewName returns the Name of a rank of the job with the given name.
func NewName(job string, incarnation uint32, rank int) Name {
	return Name{Job: hashOf(job), Incarnation: incarnation, Rank: rank}
}

// scheme is the scheme of the URI in a certificate.
const scheme = "tutti"

// String returns the URI.
func (n Name) String() string { return n.uri().String() }

// uri returns the URI of the certificate.
func (n Name) uri() *url.URL {
	return &url.URL{Scheme: scheme, Opaque: fmt.Sprintf("%s/%d/%d", n.Job, n.Incarnation, n.Rank)}
}

// nameIn returns the Name in a certificate. A valid certificate has exactly one Name, spelled as
// String spells it, so that equal names have equal texts.
func nameIn(cert *x509.Certificate) (Name, error) {
	if len(cert.URIs) != 1 {
		return Name{}, fmt.Errorf("certificate: got %d URIs, want one, %s:JOB/INCARNATION/RANK", len(cert.URIs), scheme)
	}
	uri := cert.URIs[0]
	wrong := fmt.Errorf("certificate: got the URI %.80q, want %s:JOB/INCARNATION/RANK", uri, scheme)
	parts := strings.Split(uri.Opaque, "/")
	if len(parts) != 3 {
		return Name{}, wrong
	}
	incarnation, err1 := strconv.ParseUint(parts[1], 10, 32)
	rank, err2 := strconv.ParseUint(parts[2], 10, 31)
	n := Name{Job: parts[0], Incarnation: uint32(incarnation), Rank: int(rank)}
	if err1 != nil || err2 != nil || n.String() != uri.String() {
		return Name{}, wrong
	}
	return n, nil
}

// Credentials prove a rank's identity: its private key, its certificate and the certificate of the
// CA. They are immutable, and any goroutine may use them.
type Credentials struct {
	name  Name
	own   tls.Certificate
	ca    *x509.Certificate
	roots *x509.CertPool
}

// newCredentials returns the Credentials of a certificate. The CA must have signed the certificate,
// which must match the key.
func newCredentials(own tls.Certificate, ca *x509.Certificate) (*Credentials, error) {
	leaf, err := x509.ParseCertificate(own.Certificate[0])
	if err != nil {
		return nil, err
	}
	own.Leaf = leaf
	c := &Credentials{own: own, ca: ca, roots: x509.NewCertPool()}
	c.roots.AddCert(ca)
	if c.name, err = nameIn(leaf); err != nil {
		return nil, err
	}
	if err := leaf.CheckSignatureFrom(ca); err != nil {
		return nil, fmt.Errorf("certificate of %v: %w", c.name, err)
	}
	return c, nil
}

// Name returns the name in the certificate.
func (c *Credentials) Name() Name { return c.name }

// Config returns the configuration of mutual TLS 1.3 with other ranks of the job, for either side.
// The parameter protos holds the ALPN names. Each side demands that the CA has signed the peer's
// certificate, and that Check accepts it. There are no session tickets, so that each connection
// proves both identities again.
func (c *Credentials) Config(protos ...string) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{c.own},
		RootCAs:                c.roots,
		ClientCAs:              c.roots,
		ServerName:             Host,
		ClientAuth:             tls.RequireAndVerifyClientCert,
		VerifyConnection:       c.Check,
		NextProtos:             protos,
		SessionTicketsDisabled: true,
		// Ranks send large bodies from the start, so small first records would cost more time than
		// they save.
		DynamicRecordSizingDisabled: true,
	}
}

// Check returns an error unless the peer's certificate belongs to this job and this incarnation;
// crypto/tls has verified its chain before. For an older incarnation the error is an ordinary one,
// because that process will end, and the next dial may find its successor. For all other
// differences it is a *tls.CertificateVerificationError, because they remain.
func (c *Credentials) Check(state tls.ConnectionState) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("certificate: got none from the peer, want one")
	}
	peer, err := nameIn(state.PeerCertificates[0])
	if err == nil {
		err = c.compare(peer)
	}
	if err == nil || peer.Job == c.name.Job && peer.Incarnation < c.name.Incarnation {
		return err
	}
	return &tls.CertificateVerificationError{UnverifiedCertificates: state.PeerCertificates, Err: err}
}

// compare compares the peer's job and incarnation with this rank's.
func (c *Credentials) compare(peer Name) error {
	switch {
	case peer.Job != c.name.Job:
		return fmt.Errorf("job: got a certificate of job %.8s…, want %.8s…: set the same TUTTI_JOB on all ranks", peer.Job, c.name.Job)
	case peer.Incarnation != c.name.Incarnation:
		return fmt.Errorf("incarnation: got a certificate of incarnation %d, want %d: the process belongs to another start of the job", peer.Incarnation, c.name.Incarnation)
	}
	return nil
}

// PeerName returns the URI in the peer's certificate. Before the end of the handshake it returns
// "".
func PeerName(state tls.ConnectionState) string {
	if !state.HandshakeComplete || len(state.PeerCertificates) == 0 {
		return ""
	}
	n, err := nameIn(state.PeerCertificates[0])
	if err != nil {
		return ""
	}
	return n.String()
}

// NameOf returns the URI that another rank of this job and incarnation has in its certificate.
func (c *Credentials) NameOf(rank int) string {
	n := c.name
	n.Rank = rank
	return n.String()
}

// Explain adds advice for the user to an error of a TLS handshake. If it has no advice, it returns
// the error unchanged.
func (c *Credentials) Explain(err error) error {
	var refused *tls.CertificateVerificationError
	var invalid x509.CertificateInvalidError
	var unknown x509.UnknownAuthorityError
	var plain tls.RecordHeaderError
	var remote *net.OpError
	switch {
	case errors.As(err, &plain):
		return fmt.Errorf("%w (the peer does not speak TLS: set TUTTI_INSECURE_PLAIN on all ranks or on none)", err)
	// crypto/tls has no type for this error.
	case errors.As(err, &remote) && remote.Op == "remote error":
		return fmt.Errorf("%w (the peer does not accept this rank's certificate: compare secret, TUTTI_JOB and TUTTI_INCARNATION of both ranks, and the clocks of both hosts)", err)
	case !errors.As(err, &refused):
		return err
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("%w (compare the clocks of both hosts: a certificate is valid from %v before it was made)", err, skew)
	case errors.As(err, &unknown):
		// The certificate is not verified, but its claims help to find the mistake.
		if peer, no := nameIn(refused.UnverifiedCertificates[0]); no == nil && peer.Job != c.name.Job {
			return fmt.Errorf("%w (%w)", err, c.compare(peer))
		}
		return fmt.Errorf("%w (the ranks have different secrets, or were started by different launchers: set one secret on all ranks, or start all of them by one tuttirun)", err)
	}
	return err
}
