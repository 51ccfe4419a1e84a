// Package tlstest makes certificates for tests.
//
// Each Identity is its own authority, is valid for an hour, and is valid for loopback. Two
// Identities do not trust each other, so a test of a refused peer makes two.
package tlstest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Name is a host name for which an Identity's certificate is valid, besides 127.0.0.1 and
// localhost.
const Name = "rank.test"

// An Identity names the PEM files of a rank's certificate, of its key, and of the authority that
// signed the certificate. The certificate is its own authority.
type Identity struct{ Cert, Key, CA string }

// New makes a new Identity, whose files are removed with the test.
func New(tb testing.TB) Identity {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	about := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "a rank"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IsCA:                  true,
		BasicConstraintsValid: true,
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		DNSNames:              []string{Name, "localhost"},
	}
	der, err := x509.CreateCertificate(rand.Reader, about, about, key.Public(), key)
	if err != nil {
		tb.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	cert := WritePEM(tb, "cert.pem", "CERTIFICATE", der)
	return Identity{Cert: cert, Key: WritePEM(tb, "key.pem", "PRIVATE KEY", secret), CA: cert}
}

// Load returns the certificate, and a pool that trusts it.
func (id Identity) Load(tb testing.TB) (tls.Certificate, *x509.CertPool) {
	tb.Helper()
	cert, err := tls.LoadX509KeyPair(id.Cert, id.Key)
	if err != nil {
		tb.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		tb.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return cert, pool
}

// WritePEM writes one block into a new file, which is removed when the test ends.
func WritePEM(tb testing.TB, name, kind string, der []byte) string {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), name)
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		tb.Fatal(err)
	}
	return file
}
