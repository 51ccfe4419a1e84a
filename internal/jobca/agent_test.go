package jobca

import (
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"testing"
)

// configsOf returns the configurations of an agent and a launcher with one secret.
func configsOf(t *testing.T, secret []byte) (agent, launcher *tls.Config) {
	t.Helper()
	agent, err := AgentConfig(secret, "p")
	if err != nil {
		t.Fatal(err)
	}
	if launcher, err = LauncherConfig(secret, "alice@n1", "p"); err != nil {
		t.Fatal(err)
	}
	return agent, launcher
}

// verify checks a certificate as the other side of a connection does.
func verify(t *testing.T, own tls.Certificate, roots *x509.CertPool, host string, use x509.ExtKeyUsage) error {
	t.Helper()
	leaf, err := x509.ParseCertificate(own.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	_, err = leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: host, KeyUsages: []x509.ExtKeyUsage{use}})
	return err
}

func TestAnAgentAndALauncherAcceptEachOtherOnly(t *testing.T) {
	agent, launcher := configsOf(t, secret)
	const server, client = x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth
	if err := verify(t, agent.Certificates[0], launcher.RootCAs, launcher.ServerName, server); err != nil {
		t.Errorf("the launcher refuses the agent: %v", err)
	}
	if err := verify(t, launcher.Certificates[0], agent.ClientCAs, "", client); err != nil {
		t.Errorf("the agent refuses the launcher: %v", err)
	}
	for name, c := range map[string]*tls.Config{"agent": agent, "launcher": launcher} {
		if c.MinVersion != tls.VersionTLS13 || !c.SessionTicketsDisabled || c.ClientAuth != tls.RequireAndVerifyClientCert || c.InsecureSkipVerify {
			t.Errorf("%s: got version %x, tickets disabled: %v, client auth %v", name, c.MinVersion, c.SessionTicketsDisabled, c.ClientAuth)
		}
	}
	if verify(t, agent.Certificates[0], agent.ClientCAs, "", client) == nil {
		t.Error("an agent's certificate passes for a launcher's")
	}
	if verify(t, launcher.Certificates[0], launcher.RootCAs, "", server) == nil {
		t.Error("a launcher's certificate passes for an agent's")
	}
	other, _ := configsOf(t, []byte("another secret of theirs"))
	if verify(t, launcher.Certificates[0], other.ClientCAs, "", client) == nil {
		t.Error("an agent accepts a launcher with another secret")
	}
	// Certificates of ranks, also under the same secret, are of another CA.
	rank := issue(t, derive(t, secret, "train"), 0, 0)
	if verify(t, rank.own, agent.ClientCAs, "", client) == nil {
		t.Error("an agent accepts a rank")
	}
	if verify(t, rank.own, launcher.RootCAs, "", server) == nil {
		t.Error("a launcher accepts a rank as an agent")
	}
	if verify(t, launcher.Certificates[0], rank.roots, "", client) == nil || verify(t, agent.Certificates[0], rank.roots, "", server) == nil {
		t.Error("a rank accepts an agent or a launcher")
	}
}

func TestTheCAOfAgentsFollowsFromTheSecret(t *testing.T) {
	key, err := deriveKey(secret, agentLabel)
	if err != nil {
		t.Fatal(err)
	}
	// Computed with Python's hmac and cryptography: HKDF-SHA256, no salt, "tutti/1 agent CA".
	const want = "541a52ff2727a27cc3c9b5ae3685af83a859cd8d69c889b75a6dd844a7684f63"
	if got := hexOf(key.Public().(ed25519.PublicKey)); got != want {
		t.Errorf("got the public key %s, want %s", got, want)
	}
	if _, err := AgentConfig(make([]byte, MinSecret-1)); err == nil {
		t.Error("a short secret is accepted")
	}
}
