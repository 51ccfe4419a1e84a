package jobca

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"net/url"
	"strings"
	"testing"
	"time"
)

var secret = []byte("sixteen bytes or more")

// issue returns the Credentials of a rank.
func issue(t *testing.T, a *Authority, rank int, incarnation uint32) *Credentials {
	t.Helper()
	c, err := a.Issue(rank, incarnation)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// derive returns the CA of a job that is derived from a secret.
func derive(t *testing.T, secret []byte, job string) *Authority {
	t.Helper()
	a, err := Derive(secret, job)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestASecretAndAJobGiveOneCA(t *testing.T) {
	a, again := derive(t, secret, "train"), derive(t, secret, "train")
	if !a.key.Equal(again.key) {
		t.Error("two ranks derived two CAs from one secret")
	}
	// Any program that derives keys as the package comment says must get this key.
	const want = "6686df5c" // the first bytes of the public key
	if got := a.key.Public().(ed25519.PublicKey); !strings.HasPrefix(hexOf(got), want) {
		t.Errorf("the public key begins with %.8s, want %s", hexOf(got), want)
	}
	if derive(t, secret, "test").key.Equal(a.key) {
		t.Error("two jobs have one CA")
	}
	if derive(t, []byte("another secret of theirs"), "train").key.Equal(a.key) {
		t.Error("two secrets give one CA")
	}
	if err := issue(t, again, 3, 0).own.Leaf.CheckSignatureFrom(a.cert); err != nil {
		t.Errorf("a rank does not accept another one's CA: %v", err)
	}
}

func hexOf(b []byte) string {
	const digits = "0123456789abcdef"
	var s strings.Builder
	for _, c := range b {
		s.WriteByte(digits[c>>4])
		s.WriteByte(digits[c&15])
	}
	return s.String()
}

func TestShortSecretsAreRefused(t *testing.T) {
	if _, err := Derive(make([]byte, MinSecret-1), "train"); err == nil || !strings.Contains(err.Error(), "got 15 bytes, want at least 16") {
		t.Errorf("got %v, want an error that names both lengths", err)
	}
	derive(t, make([]byte, MinSecret), "train")
}

func TestACertificateNamesItsRankAndNothingElse(t *testing.T) {
	c := issue(t, derive(t, secret, "train"), 5, 7)
	const want = "tutti:116f54c41d0405dbb10e7b04ebc31e26/7/5"
	leaf := c.own.Leaf
	if got := c.Name().String(); got != want || len(leaf.URIs) != 1 || leaf.URIs[0].String() != want {
		t.Errorf("got %s and %v, want %s", got, leaf.URIs, want)
	}
	if c.NameOf(6) != "tutti:116f54c41d0405dbb10e7b04ebc31e26/7/6" || c.Name() != NewName("train", 7, 5) {
		t.Errorf("got %s for rank 6, and %v for rank 5", c.NameOf(6), c.Name())
	}
	if leaf.IsCA || len(leaf.DNSNames) != 1 || leaf.DNSNames[0] != Host || leaf.Subject.String() != "" {
		t.Errorf("got a certificate of %q %q, CA: %v", leaf.Subject, leaf.DNSNames, leaf.IsCA)
	}
	if age := time.Since(leaf.NotBefore); age < 24*time.Hour || age > 25*time.Hour {
		t.Errorf("valid from %v ago, want a day", age)
	}
	if leaf.NotAfter.Year() != 9999 {
		t.Errorf("valid until %v, want no end", leaf.NotAfter)
	}
}

func TestOnlyOneSpellingOfANameIsRead(t *testing.T) {
	const job = "116f54c41d0405dbb10e7b04ebc31e26"
	for text, ok := range map[string]bool{
		"tutti:" + job + "/7/5":                   true,
		"tutti:" + job + "/07/5":                  false,
		"tutti:" + job + "/7/+5":                  false,
		"tutti:" + job + "/7/-5":                  false,
		"tutti:" + job + "/7":                     false,
		"tutti:" + job + "/7/5/1":                 false,
		"tutti:" + job + "/4294967296/5":          false,
		"tutti:" + job + "/7/5?x":                 false,
		"tutti:" + job + "/7/5#x":                 false,
		"tutti://" + job + "/7/5":                 false,
		"spiffe:" + job + "/7/5":                  false,
		"tutti:" + job + "/7/9223372036854775808": false,
	} {
		uri, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := nameIn(&x509.Certificate{URIs: []*url.URL{uri}}); ok != (err == nil) {
			t.Errorf("%s: got %v, want success: %v", text, err, ok)
		}
	}
	uri := &url.URL{Scheme: "tutti", Opaque: job + "/7/5"}
	if _, err := nameIn(&x509.Certificate{URIs: []*url.URL{uri, uri}}); err == nil {
		t.Error("a certificate with two names was read")
	}
}

func TestABundleComesBackAsItWas(t *testing.T) {
	a, err := New("train")
	if err != nil {
		t.Fatal(err)
	}
	c := issue(t, a, 2, 1)
	text, err := (&Bundle{Secret: secret, Credentials: c}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if len(text) > MaxBundle/4 {
		t.Errorf("a bundle has %d bytes, which leaves little of %d for a long secret", len(text), MaxBundle)
	}
	back, err := ParseBundle(text)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(back.Secret, secret) || back.Credentials.Name() != c.Name() || !back.Credentials.ca.Equal(a.cert) {
		t.Errorf("got %v with the secret %q", back.Credentials.Name(), back.Secret)
	}
	if bytes.Contains(text, a.key.Seed()) || bytes.Contains(text, pemOf(t, a.key)) {
		t.Error("the bundle holds the CA's private key")
	}
	if _, err := New("train"); err != nil {
		t.Fatal(err)
	}
	if other, _ := New("train"); other.key.Equal(a.key) {
		t.Error("two launchers made one CA")
	}
}

// pemOf returns the body of a key's PEM block.
func pemOf(t *testing.T, key ed25519.PrivateKey) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Split(pem.EncodeToMemory(&pem.Block{Type: "X", Bytes: der}), []byte("\n"))[1]
}

func TestDamagedBundlesAreRefusedAndNotShown(t *testing.T) {
	a, b := derive(t, secret, "train"), derive(t, secret, "other")
	c, other := issue(t, a, 2, 1), issue(t, b, 2, 1)
	mixed, short := *c, []byte("too short")
	mixed.ca = b.cert
	_, key, _ := ed25519.GenerateKey(rand.Reader)
	wrongKey := *c
	wrongKey.own.PrivateKey = key
	foreign := *c
	foreign.own.Certificate = other.own.Certificate
	for name, bundle := range map[string]*Bundle{
		"another CA": {secret, &mixed}, "another key": {secret, &wrongKey}, "another certificate": {secret, &foreign}, "a short secret": {short, c},
	} {
		text, err := bundle.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseBundle(text); err == nil {
			t.Errorf("%s: accepted", name)
		} else if strings.Contains(err.Error(), string(bundle.Secret)) {
			t.Errorf("%s: %v shows the secret", name, err)
		}
	}
	text, err := (&Bundle{secret, c}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for n := range len(text) - 1 {
		if _, err := ParseBundle(text[:n]); err == nil {
			t.Fatalf("the first %d of %d bytes are accepted", n, len(text))
		}
	}
}
