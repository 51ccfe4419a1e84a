// Package tlsopt turns the TLS options that tcp, grpc and the front of mesh
// share into crypto/tls configurations, so that one set of options means the
// same on every wire. It does not know who dials, or what travels.
package tlsopt

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"

	"github.com/tutti-go/tutti/fault"
)

// Options says how TLS is done between ranks. It is read only; one value may
// serve any number of goroutines. A nil *Options means no TLS.
//
// A rank dials and is dialled, so it normally needs both a certificate of its
// own and the authority that has signed its peers'.
type Options struct {
	// CertFile and KeyFile are this rank's certificate chain and private key,
	// PEM. Both or neither are given. They are shown to whoever dials this rank,
	// and to whoever asks when it dials.
	CertFile, KeyFile string
	// CAFile holds the authorities, PEM, that peers' certificates are checked
	// against. Empty: the system's, for dialling; fault.Misuse with Mutual.
	CAFile string
	// ServerName is the name expected in the certificate of a rank that is
	// dialled. Empty: the host in the address that is dialled.
	ServerName string
	// Mutual asks whoever dials for a certificate, and refuses those without a
	// good one.
	Mutual bool
	// Config, when not nil, is what the fields above are added to. It is cloned,
	// never changed. Where it sets no MinVersion, TLS 1.3 is asked for.
	Config *tls.Config
}

// Client is the configuration of a rank that dials. proto is the one ALPN name
// it offers. Errors are of kind fault.Misuse: a file that cannot be read, a key
// that does not fit.
//
// ServerName may be empty in the result; then the caller fills in the host that
// it dials, in a clone.
func (o *Options) Client(proto string) (*tls.Config, error) {
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

// Server is the configuration of the side that is dialled. protos are the ALPN
// names it takes, the preferred one first. Errors are of kind fault.Misuse: as
// for Client, and no certificate at all, and Mutual without an authority.
func (o *Options) Server(protos ...string) (*tls.Config, error) {
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
			return nil, misuse("server", errors.New("option Mutual needs CAFile, to check the certificates of those who dial"))
		}
		cfg.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return cfg, nil
}

// base is what both sides have in common.
func (o *Options) base() (*tls.Config, error) {
	cfg := &tls.Config{}
	if o.Config != nil {
		cfg = o.Config.Clone()
	}
	if cfg.MinVersion == 0 {
		cfg.MinVersion = tls.VersionTLS13
	}
	if (o.CertFile == "") != (o.KeyFile == "") {
		return nil, misuse("certificate", errors.New("CertFile and KeyFile are given together or not at all"))
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

// misuse is this package's error. It does not know ranks: Rank is -1.
func misuse(op string, err error) error {
	return &fault.Error{Kind: fault.Misuse, Op: "tls: " + op, Rank: -1, Err: err}
}
