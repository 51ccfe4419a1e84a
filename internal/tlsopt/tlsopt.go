// Package tlsopt turns the TLS options that tcp, grpc and mesh's listener share into crypto/tls
// configurations, so that one set of options means the same on every transport. It does not know
// which rank dials, or what is sent.
//
// Options have one of two sources. ForJob makes them from a rank's credentials under the job's CA;
// this is the default. A program that sets the fields replaces the job's CA by its own
// certificates. Its connections may then pass a proxy that terminates TLS, which is impossible with
// certificates of the job's CA.
package tlsopt

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/jobca"
)

// Options configures TLS between ranks. It is read only; any number of goroutines may share one
// value. A nil *Options means no TLS.
//
// A rank dials and is dialled, so it normally needs both its own certificate and the authority that
// has signed its peers' certificates.
type Options struct {
	// CertFile and KeyFile are this rank's certificate chain and private key, in PEM. Both must be
	// set, or neither. The rank sends the certificate to peers that dial it, and to dialled peers
	// that require one.
	CertFile, KeyFile string
	// CAFile holds the authorities, in PEM, that verify peers' certificates. If it is "", a rank
	// that dials uses the system's authorities, and Mutual is fault.Misuse.
	CAFile string
	// ServerName is the name expected in the certificate of a dialled rank. If it is "", the host
	// in the rank's address is expected.
	ServerName string
	// Mutual requires a valid certificate from every peer that dials.
	Mutual bool
	// Config, if not nil, is the base to which the fields above are added. It is cloned, never
	// changed. If it sets no MinVersion, TLS 1.3 is required.
	Config *tls.Config

	job        *jobca.Credentials // set by ForJob; then the fields above are not used
	everywhere bool
}

// Client returns the configuration of a rank that dials. The parameter proto is the one ALPN name
// that the rank offers. Errors are of kind fault.Misuse: a file cannot be read, or a key does not
// match its certificate.
//
// ServerName may be empty in the result. The caller must then clone the result, and set ServerName
// to the host that it dials.
func (o *Options) Client(proto string) (*tls.Config, error) {
	if o.job != nil {
		return o.job.Config(proto), nil
	}
	cfg, err := o.base()
	if err != nil {
		return nil, err
	}
	cfg.NextProtos = []string{proto}
	if o.ServerName != "" {
		cfg.ServerName = o.ServerName
	}
	if o.CAFile != "" {
		if cfg.RootCAs, err = readPool(o.CAFile); err != nil {
			return nil, err
		}
	}
	return cfg, nil
}

// Server returns the configuration of the side that is dialled. The parameter protos lists the ALPN
// names that it accepts, the preferred name first. Errors are of kind fault.Misuse: the errors of
// Client, a missing certificate, or Mutual without CAFile.
func (o *Options) Server(protos ...string) (*tls.Config, error) {
	if o.job != nil {
		return o.job.Config(protos...), nil
	}
	cfg, err := o.base()
	if err != nil {
		return nil, err
	}
	cfg.NextProtos = protos
	if len(cfg.Certificates) == 0 && cfg.GetCertificate == nil && cfg.GetConfigForClient == nil {
		return nil, misuse("server", errors.New("no certificate: set CertFile and KeyFile"))
	}
	if o.CAFile != "" {
		if cfg.ClientCAs, err = readPool(o.CAFile); err != nil {
			return nil, err
		}
	}
	if o.Mutual {
		if cfg.ClientCAs == nil {
			return nil, misuse("server", errors.New("option Mutual: got no CAFile, want one, to check the certificates of ranks that dial"))
		}
		cfg.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return cfg, nil
}

// base returns the part of the configuration that both sides have in common.
func (o *Options) base() (*tls.Config, error) {
	cfg := &tls.Config{}
	if o.Config != nil {
		cfg = o.Config.Clone()
	}
	if cfg.MinVersion == 0 {
		cfg.MinVersion = tls.VersionTLS13
	}
	if (o.CertFile == "") != (o.KeyFile == "") {
		return nil, misuse("certificate", errors.New("CertFile and KeyFile: got only one of them, want both together or none"))
	}
	if o.CertFile == "" {
		return cfg, nil
	}
	pair, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
	if err != nil {
		return nil, misuse("certificate "+o.CertFile, err)
	}
	cfg.Certificates = []tls.Certificate{pair}
	return cfg, nil
}

// readPool reads the authorities in a PEM file.
func readPool(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, misuse("authorities", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, misuse("authorities "+file, errors.New("no certificate in this file"))
	}
	return pool, nil
}

// misuse returns this package's error. Rank is -1: the package does not know ranks.
func misuse(op string, err error) error {
	return &fault.Error{Kind: fault.Misuse, Op: "tls: " + op, Rank: -1, Err: err}
}
