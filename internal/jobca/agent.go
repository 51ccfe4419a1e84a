package jobca

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
)

// agentLabel is the whole HKDF label of the CA of agents and launchers. No job's label begins with
// it, so one secret gives jobs and agents different CAs, and neither accepts a certificate of the
// other.
const agentLabel = "tutti/1 agent CA"

// AgentHost is the DNS name in the certificate of every agent.
const AgentHost = "agent.tutti.invalid"

// deriveKey derives the private key of a CA from a secret.
func deriveKey(secret []byte, label string) (ed25519.PrivateKey, error) {
	if len(secret) < MinSecret {
		return nil, fmt.Errorf("secret: got %d bytes, want at least %d", len(secret), MinSecret)
	}
	seed, err := hkdf.Key(sha256.New, secret, nil, label, ed25519.SeedSize)
	if err != nil {
		return nil, err
	}
	return ed25519.NewKeyFromSeed(seed), nil
}

// AgentConfig returns the configuration of mutual TLS 1.3 for an agent, which accepts launchers
// that have the same secret. Its certificate is for servers only, so it does not pass for a
// launcher's.
func AgentConfig(secret []byte, protos ...string) (*tls.Config, error) {
	return agentConfig(secret, protos, &x509.Certificate{
		DNSNames:    []string{AgentHost},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
}

// LauncherConfig returns the configuration of mutual TLS 1.3 for a launcher, which dials agents
// that have the same secret. The certificate is for clients only, so it does not pass for an
// agent's. The agent logs the name in it, which anyone with the secret can choose.
func LauncherConfig(secret []byte, name string, protos ...string) (*tls.Config, error) {
	return agentConfig(secret, protos, &x509.Certificate{
		Subject:     pkix.Name{CommonName: name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// agentConfig derives the CA, signs a certificate, and returns the configuration that uses both.
func agentConfig(secret []byte, protos []string, about *x509.Certificate) (*tls.Config, error) {
	key, err := deriveKey(secret, agentLabel)
	if err != nil {
		return nil, err
	}
	ca, err := newAuthority("tutti agent CA", "", key)
	if err != nil {
		return nil, err
	}
	own, err := ca.sign(about)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{own},
		RootCAs:                roots,
		ClientCAs:              roots,
		ServerName:             AgentHost,
		ClientAuth:             tls.RequireAndVerifyClientCert,
		NextProtos:             protos,
		SessionTicketsDisabled: true,
	}, nil
}
