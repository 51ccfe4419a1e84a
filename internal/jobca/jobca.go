package jobca

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"net/url"
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
	return newAuthority("tutti job CA", hashOf(job), key)
}

// Derive makes the CA that follows from a secret. All processes that have the secret make the same
// CA for a job.
func Derive(secret []byte, job string) (*Authority, error) {
	hash := hashOf(job)
	key, err := deriveKey(secret, label+"/"+hash)
	if err != nil {
		return nil, err
	}
	return newAuthority("tutti job CA", hash, key)
}

// hashOf returns the job's part of a Name.
func hashOf(job string) string {
	sum := sha256.Sum256([]byte(job))
	return hex.EncodeToString(sum[:16])
}

// newAuthority makes the CA's own certificate, which a process trusts and never sends.
func newAuthority(name, hash string, key ed25519.PrivateKey) (*Authority, error) {
	about := template()
	about.Subject = pkix.Name{CommonName: name}
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
	name := Name{Job: a.job, Incarnation: incarnation, Rank: rank}
	own, err := a.sign(&x509.Certificate{
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:    []string{Host},
		URIs:        []*url.URL{name.uri()},
	})
	if err != nil {
		return nil, err
	}
	return newCredentials(own, a.cert)
}

// sign makes a key, and the certificate of its owner. The parameter about holds what differs
// between owners, and sign adds the rest.
func (a *Authority) sign(about *x509.Certificate) (tls.Certificate, error) {
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	common := template()
	about.NotBefore, about.NotAfter, about.BasicConstraintsValid = common.NotBefore, common.NotAfter, common.BasicConstraintsValid
	about.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, about, a.cert, public, a.key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}
