package jobca

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"fmt"
	"time"
)

// Host is the DNS name in every certificate. A rank that dials expects it of any rank. Its reserved
// domain ensures that it differs from the names of real hosts.
const Host = "rank.tutti.invalid"

// MinSecret is the minimum number of bytes of a secret. A shorter secret could be guessed: a
// process that has seen one certificate of a derived CA can try secrets offline.
const MinSecret = 16

// label is the start of the HKDF label. A version that derives keys differently must use another
// label.
const label = "tutti/1 job CA"

// skew is how far a rank's clock may be behind the clock of the process that made the certificate.
const skew = 24 * time.Hour

// An Authority is a job's CA. It is immutable, and any goroutine may use it.
type Authority struct {
	job  string // the job's part of a Name
	key  ed25519.PrivateKey
	cert *x509.Certificate
}

// New makes a CA with a random key for the job with the given name.
func New(job string) (*Authority, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	return newAuthority(hashOf(job), key)
}

// Derive makes the CA that follows from a secret. All processes that have the secret make the same
// CA for a job.
func Derive(secret []byte, job string) (*Authority, error) {
	if len(secret) < MinSecret {
		return nil, fmt.Errorf("secret: got %d bytes, want at least %d", len(secret), MinSecret)
	}
	hash := hashOf(job)
	seed, err := hkdf.Key(sha256.New, secret, nil, label+"/"+hash, ed25519.SeedSize)
	if err != nil {
		return nil, err
	}
	return newAuthority(hash, ed25519.NewKeyFromSeed(seed))
}

// hashOf returns the job's part of a Name.
func hashOf(job string) string {
	sum := sha256.Sum256([]byte(job))
	return hex.EncodeToString(sum[:16])
}

// newAuthority makes the CA's own certificate, which a rank trusts and never sends.
func newAuthority(hash string, key ed25519.PrivateKey) (*Authority, error) {
	about := template()
	about.Subject = pkix.Name{CommonName: "tutti job CA"}
	about.IsCA, about.MaxPathLenZero = true, true
	about.KeyUsage = x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, about, about, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &Authority{job: hash, key: key, cert: cert}, err
}

// template returns what all certificates have in common.
func template() *x509.Certificate {
	return &x509.Certificate{
		NotBefore: time.Now().Add(-skew),
		// RFC 5280, section 4.1.2.5: this time means that there is no well-defined end.
		NotAfter:              time.Date(9999, time.December, 31, 23, 59, 59, 0, time.UTC),
		BasicConstraintsValid: true,
	}
}

// Issue makes the key and the certificate of a rank.
func (a *Authority) Issue(rank int, incarnation uint32) (*Credentials, error) {
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	name := Name{Job: a.job, Incarnation: incarnation, Rank: rank}
	about := template()
	about.KeyUsage = x509.KeyUsageDigitalSignature
	about.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	about.DNSNames = []string{Host}
	about.URIs = append(about.URIs, name.uri())
	der, err := x509.CreateCertificate(rand.Reader, about, a.cert, public, a.key)
	if err != nil {
		return nil, err
	}
	return newCredentials(tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, a.cert)
}
