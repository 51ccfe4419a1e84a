package comm_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/worldtest"
)

// certificate writes a self-signed certificate for loopback, which is its own
// authority, and its key.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "tutti test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, kind string, bytes []byte) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "PRIVATE KEY", raw)
}

func TestCollectivesRunUnderMutualTLS(t *testing.T) {
	cert, key := certificate(t)
	for _, wire := range []string{"tcp", "grpc"} {
		t.Run(wire, func(t *testing.T) {
			err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
				for _, count := range []int{1, 1000, 1_000_003} {
					for _, call := range worldtest.Collectives[float32]() {
						if err := call.Run(ctx, c, count/c.Size(), new(worldtest.Ledger)); err != nil {
							return err
						}
					}
				}
				return nil
			}, comm.WithTransport(wire), comm.WithTLS(comm.TLS{CertFile: cert, KeyFile: key, CAFile: cert, Mutual: true}))
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestARankWhoseCertificateNobodyKnowsIsRefused(t *testing.T) {
	cert, key := certificate(t)
	stranger, _ := certificate(t)
	for _, wire := range []string{"tcp", "grpc"} {
		t.Run(wire, func(t *testing.T) {
			err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error { return nil },
				comm.WithTransport(wire), comm.WithTLS(comm.TLS{CertFile: cert, KeyFile: key, CAFile: stranger, Mutual: true}))
			if err == nil {
				t.Fatal("the ranks met although neither knows the other's authority")
			}
			var f *fault.Error
			if !errors.As(err, &f) {
				t.Errorf("got %v, which is no fault", err)
			}
			t.Log(err)
		})
	}
}
