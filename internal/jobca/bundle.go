package jobca

import (
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

// MaxBundle is an upper bound of the size of a Bundle in bytes.
const MaxBundle = 16 << 10

// A Bundle is what a launcher passes to a rank through a private channel: the job's secret, and the
// rank's own Credentials. It is encoded as a sequence of PEM blocks, in this order:
//
//	TUTTI SECRET  the secret
//	PRIVATE KEY   the rank's, in PKCS #8
//	CERTIFICATE   the rank's
//	CERTIFICATE   the CA's
type Bundle struct {
	Secret      []byte
	Credentials *Credentials
}

// blocks returns the types of the blocks, in order.
func blocks() [4]string {
	return [4]string{"TUTTI SECRET", "PRIVATE KEY", "CERTIFICATE", "CERTIFICATE"}
}

// Marshal encodes the Bundle as PEM blocks.
func (b *Bundle) Marshal() ([]byte, error) {
	c := b.Credentials
	key, err := x509.MarshalPKCS8PrivateKey(c.own.PrivateKey)
	if err != nil {
		return nil, err
	}
	var text []byte
	for i, content := range [4][]byte{b.Secret, key, c.own.Certificate[0], c.ca.Raw} {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: blocks()[i], Bytes: content})...)
	}
	return text, nil
}

// ParseBundle decodes PEM blocks. Its errors do not contain any of their content.
func ParseBundle(text []byte) (*Bundle, error) {
	var content [4][]byte
	for i, kind := range blocks() {
		block, rest := pem.Decode(text)
		if block == nil || block.Type != kind {
			return nil, fmt.Errorf("block %d: want a PEM block of type %q", i, kind)
		}
		content[i], text = block.Bytes, rest
	}
	key, err := x509.ParsePKCS8PrivateKey(content[1])
	if err != nil {
		return nil, errors.New("block 1: want a private key in PKCS #8")
	}
	ca, err := x509.ParseCertificate(content[3])
	if err != nil {
		return nil, fmt.Errorf("block 3: %w", err)
	}
	c, err := newCredentials(tls.Certificate{Certificate: [][]byte{content[2]}, PrivateKey: key}, ca)
	if err != nil {
		return nil, err
	}
	private, ok := key.(ed25519.PrivateKey)
	if public, isEd := c.own.Leaf.PublicKey.(ed25519.PublicKey); !ok || !isEd || !public.Equal(private.Public()) {
		return nil, errors.New("block 1: the private key does not match the certificate")
	}
	if len(content[0]) < MinSecret {
		return nil, fmt.Errorf("block 0: got a secret of %d bytes, want at least %d", len(content[0]), MinSecret)
	}
	return &Bundle{Secret: content[0], Credentials: c}, nil
}
