package grpc

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/leak"
	"github.com/tutti-go/tutti/internal/tlsopt"
	"github.com/tutti-go/tutti/transport"
)

// An authority is a CA's file, and those of a certificate for 127.0.0.1 that it
// has signed.
type authority struct{ file, cert, key string }

func newAuthority(tb testing.TB) authority {
	tb.Helper()
	dir := tb.TempDir()
	caKey, leafKey := newKey(tb), newKey(tb)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "rank"},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	keyDER, err := x509.MarshalECPrivateKey(leafKey)
	if err != nil {
		tb.Fatal(err)
	}
	return authority{
		file: writePEM(tb, dir, "ca.pem", "CERTIFICATE", sign(tb, ca, ca, &caKey.PublicKey, caKey)),
		cert: writePEM(tb, dir, "cert.pem", "CERTIFICATE", sign(tb, leaf, ca, &leafKey.PublicKey, caKey)),
		key:  writePEM(tb, dir, "key.pem", "EC PRIVATE KEY", keyDER),
	}
}

func newKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return k
}

func sign(tb testing.TB, c, by *x509.Certificate, pub *ecdsa.PublicKey, key *ecdsa.PrivateKey) []byte {
	tb.Helper()
	der, err := x509.CreateCertificate(rand.Reader, c, by, pub, key)
	if err != nil {
		tb.Fatal(err)
	}
	return der
}

func writePEM(tb testing.TB, dir, name, kind string, der []byte) string {
	tb.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}

func TestTLSTurnsAwayWhoeverDoesNotFit(t *testing.T) {
	ours, others := newAuthority(t), newAuthority(t)
	good := tlsopt.Options{CAFile: ours.file, CertFile: ours.cert, KeyFile: ours.key}
	mutual := good
	mutual.Mutual = true
	anonymous := tlsopt.Options{CAFile: ours.file}
	stranger := tlsopt.Options{CAFile: ours.file, CertFile: others.cert, KeyFile: others.key}
	distrustful := tlsopt.Options{CAFile: others.file}
	misnamed := tlsopt.Options{CAFile: ours.file, ServerName: "elsewhere"}
	for _, tc := range []struct {
		name           string
		server, client *tlsopt.Options
		want           string // of the error; empty: it works
	}{
		{"both sides are known", &mutual, &good, ""},
		{"the server alone is known", &good, &anonymous, ""},
		{"a client without a certificate", &mutual, &anonymous, "certificate required"},
		{"a client of another authority", &mutual, &stranger, "unknown certificate authority"},
		{"a server of another authority", &good, &distrustful, "unknown authority"},
		{"a server of another name", &good, &misnamed, "elsewhere"},
		{"a client without TLS", &good, nil, ""},
		{"a server without TLS", nil, &good, "TLS handshake"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			leak.Check(t)
			err := tryTLS(t, tc.server, tc.client)
			fits := tc.want == "" && (tc.server == nil) == (tc.client == nil)
			if fits != (err == nil) {
				t.Fatalf("Dial: %v", err)
			}
			if err != nil && (!errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("Dial: got %v, want %v with %q", err, fault.Refused, tc.want)
			}
		})
	}
}

func tryTLS(t *testing.T, server, client *tlsopt.Options) error {
	a, b := New(Options{TLS: server}), New(Options{TLS: client})
	defer a.Close()
	defer b.Close()
	addr, err := a.Serve(listen(t), func(transport.Conn) {})
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.Dial(context.Background(), addr)
	return err
}

// A front has done the TLS handshake itself, and hands out what mesh does: a
// connection that replays what was read, and knows what lies below.
type front struct {
	net.Listener
	config *tls.Config
	admits atomic.Int32
}

type fronted struct {
	net.Conn // TLS
	front    *front
}

func (f *front) Accept() (net.Conn, error) {
	c, err := f.Listener.Accept()
	if err != nil {
		return nil, err
	}
	secure := tls.Server(c, f.config)
	if err := secure.Handshake(); err != nil {
		return nil, err
	}
	return &fronted{secure, f}, nil
}

func (c *fronted) NetConn() net.Conn { return c.Conn }
func (c *fronted) Admit()            { c.front.admits.Add(1) }

func TestTLSMayHaveBeenDoneByTheListener(t *testing.T) {
	leak.Check(t)
	ca := newAuthority(t)
	tlsOptions := &tlsopt.Options{CAFile: ca.file, CertFile: ca.cert, KeyFile: ca.key}
	config, err := tlsOptions.Server("h2")
	if err != nil {
		t.Fatal(err)
	}
	tr := New(Options{TLS: tlsOptions})
	defer tr.Close()
	accepted := make(chan transport.Conn, 1)
	f := &front{Listener: listen(t), config: config}
	addr, err := tr.Serve(f, func(c transport.Conn) { accepted <- c })
	if err != nil {
		t.Fatal(err)
	}
	near, err := tr.Dial(context.Background(), addr)
	if err != nil {
		t.Fatal(err)
	}
	far := <-accepted
	if n := f.admits.Load(); n != 0 {
		t.Errorf("the listener heard of %d admissions before Admit", n)
	}
	far.(transport.Guest).Admit()
	if n := f.admits.Load(); n != 1 {
		t.Errorf("the listener heard of %d admissions, want 1", n)
	}
	exchange(t, near, far, make([]byte, 100<<10))
}
