//go:build unix

package agent

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/tutti-go/tutti/internal/jobca"
	"github.com/tutti-go/tutti/internal/pending"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/internal/test/tlstest"
)

// An authority signs certificates of agents and launchers, as a site's CA does.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	file string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "our CA"},
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, about, about, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{key, cert, tlstest.WritePEM(t, "ca.pem", "CERTIFICATE", der)}
}

// issue makes Keys with a certificate that is valid until the given time, for the host 127.0.0.1,
// for the given names of hosts, and for one use.
func (a *authority) issue(t *testing.T, name string, use x509.ExtKeyUsage, until time.Time, hosts ...string) Keys {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: until,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{use},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: hosts,
	}
	der, err := x509.CreateCertificate(rand.Reader, about, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return Keys{
		Cert: tlstest.WritePEM(t, "cert.pem", "CERTIFICATE", der), Key: tlstest.WritePEM(t, "key.pem", "PRIVATE KEY", secret), CA: a.file,
	}
}

// begun returns how many jobs an agent has begun.
func (a *agentUnderTest) begun() int { return strings.Count(a.logs.String(), `msg="a job begins"`) }

// forced makes a launcher send the first of certs, even if the agent does not list the CA of that
// certificate among the CAs that it accepts.
func forced(c *tls.Config, certs []tls.Certificate) {
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &certs[0], nil }
}

func TestLaunchersWithTheSecretOfAnAgentAreAloneAccepted(t *testing.T) {
	leak.Check(t)
	c := Keys{Secret: secretIn(t, ourSecret)}
	other := Keys{Secret: secretIn(t, "what somebody else knows")}
	a := serve(t, c, nil)
	// None of these launchers may begin a job. The function change alters the launcher's TLS, for
	// example so that only the agent checks a certificate.
	for name, tc := range map[string]struct {
		c      Keys
		change func(*tls.Config)
		want   string
	}{
		"another secret":                      {other, nil, "another secret, or a certificate of another CA"},
		"another secret, and no check of his": {other, func(c *tls.Config) { c.InsecureSkipVerify = true }, "does not trust this launcher's certificate"},
		"no certificate":                      {c, func(c *tls.Config) { c.Certificates = nil }, "it wants a certificate of its CA"},
		"an agent's certificate":              {c, func(c *tls.Config) { forced(c, a.config.Certificates) }, "does not accept this launcher's certificate"},
		"a rank's certificate, same secret": {c, func(c *tls.Config) {
			ca, err := jobca.Derive([]byte(ourSecret), "train")
			if err != nil {
				t.Fatal(err)
			}
			rank, err := ca.Issue(0, 0)
			if err != nil {
				t.Fatal(err)
			}
			forced(c, rank.Config().Certificates)
		}, "does not trust this launcher's certificate"},
		"another version":    {c, func(c *tls.Config) { c.NextProtos = []string{"tutti-agent/2"} }, "another version"},
		"TLS 1.2":            {c, func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 }, "protocol version"},
		"a rank as an agent": {c, func(c *tls.Config) { c.ServerName = jobca.Host }, "its certificate is for another host"},
	} {
		t.Run(name, func(t *testing.T) {
			d := a.dialer(t, tc.c)
			if tc.change != nil {
				tc.change(d.config)
			}
			_, err := d.Start(t.Context(), "127.0.0.1", "remote")
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want one line with %q", err, tc.want)
			}
		})
	}
	silent := a.dialer(t, c).config.Clone()
	silent.NextProtos = nil
	conn := tls.Client(connectTo(t, a, ""), silent)
	writeText(conn, "remote")
	if answer, err := io.ReadAll(conn); len(answer) > 0 {
		t.Errorf("a launcher that names no protocol: got %q, %v, want the end", answer, err)
	}
	if n := a.begun(); n != 0 {
		t.Errorf("the agent has begun %d jobs for unauthenticated peers", n)
	}
	begin(t, a.dialer(t, c), "remote")
}

func TestCertificatesOfASiteReplaceTheSecret(t *testing.T) {
	leak.Check(t)
	ca, foreign := newAuthority(t), newAuthority(t)
	later, before := time.Now().Add(time.Hour), time.Now().Add(-time.Hour)
	server := ca.issue(t, "the agent", x509.ExtKeyUsageServerAuth, later)
	launcher := ca.issue(t, "alice", x509.ExtKeyUsageClientAuth, later)
	a := serve(t, server, nil)
	begin(t, a.dialer(t, launcher), "remote")
	if !strings.Contains(a.logs.String(), "name=\"CN=alice\"") && !strings.Contains(a.logs.String(), "name=CN=alice") {
		t.Errorf("got the log\n%s\nwant alice in it", a.logs.String())
	}
	wrongCA := foreign.issue(t, "mallory", x509.ExtKeyUsageClientAuth, later)
	mallory := wrongCA
	mallory.CA = ca.file
	for name, tc := range map[string]struct {
		c    Keys
		want string
	}{
		"wrong CA, at the launcher":     {wrongCA, "a certificate of another CA"},
		"wrong CA, at the agent":        {mallory, "does not trust this launcher's certificate"},
		"the launcher's has expired":    {ca.issue(t, "alice", x509.ExtKeyUsageClientAuth, before), "this launcher's certificate has expired"},
		"the launcher's is for servers": {server, "does not accept this launcher's certificate"},
		"a secret in place of a CA":     {Keys{Secret: secretIn(t, ourSecret)}, "for another host, or only one"},
	} {
		if _, err := a.dialer(t, tc.c).Start(t.Context(), "127.0.0.1", "remote"); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
	}
	for name, tc := range map[string]struct {
		c    Keys
		want string
	}{
		"the agent's has expired":      {ca.issue(t, "agent", x509.ExtKeyUsageServerAuth, before), "its certificate has expired"},
		"the agent's is for launchers": {launcher, "incompatible key usage"},
	} {
		b := serve(t, tc.c, nil)
		if _, err := b.dialer(t, launcher).Start(t.Context(), "127.0.0.1", "remote"); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
	}
	if _, err := a.dialer(t, launcher).Start(t.Context(), "localhost", "remote"); err == nil || !strings.Contains(err.Error(), "for another host") {
		t.Errorf("a name that is not in the certificate: got %v", err)
	}
}

// The names in a certificate that nobody has verified must not reach the terminal unchanged.
func TestAnImpostorControlsNoTerminal(t *testing.T) {
	leak.Check(t)
	ca := newAuthority(t)
	names := []string{"\x1b]0;title\a\ntuttirun: all is well", strings.Repeat("n", 10000)}
	config, err := ca.issue(t, "mallory", x509.ExtKeyUsageServerAuth, time.Now().Add(time.Hour), names...).server()
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		nc, err := ln.Accept()
		if err == nil {
			tls.Server(nc, config).Handshake()
			nc.Close()
		}
	}()
	_, err = dialerTo(t, Keys{Secret: secretIn(t, ourSecret)}, ln.Addr()).Start(t.Context(), "127.0.0.1", "remote")
	ln.Close()
	<-over
	if err == nil || !strings.Contains(err.Error(), "title") || strings.ContainsFunc(err.Error(), unicode.IsControl) || len(err.Error()) > 2*maxError {
		t.Errorf("got %.1000q, want one printable line that quotes the certificate", err)
	}
}

// If somebody records what a launcher has sent, and sends it again over another connection, no job
// begins.
func TestReplayedBytesBeginNoJob(t *testing.T) {
	leak.Check(t)
	c := Keys{Secret: secretIn(t, ourSecret)}
	a := serve(t, c, nil)
	relay, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer relay.Close()
	var sent bytes.Buffer
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		from, err := relay.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		to, err := net.Dial("tcp", a.addr.String())
		if err != nil {
			t.Error(err)
			return
		}
		go func() {
			io.Copy(struct{ io.Writer }{from}, to) // without splice, whose pipes stay open
			from.Close()
		}()
		io.Copy(to, io.TeeReader(from, &sent))
		to.Close()
	}()
	conn, _ := begin(t, dialerTo(t, c, relay.Addr()), "remote")
	fmt.Fprintln(conn, "a line")
	if line, err := readLine(conn); err != nil || line != "a line" {
		t.Fatalf("got %q, %v, want the echo", line, err)
	}
	conn.NetConn().Close()
	<-copied

	again, err := net.Dial("tcp", a.addr.String())
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	again.SetDeadline(time.Now().Add(limit))
	again.Write(sent.Bytes())
	io.Copy(io.Discard, again) // until the agent closes it
	if n := a.begun(); n != 1 {
		t.Errorf("%d jobs have begun, want the one of the launcher", n)
	}
	a.waitFor(t, "a connection refused")
}

// connectTo connects to the agent and writes some bytes.
func connectTo(t *testing.T, a *agentUnderTest, bytes string) net.Conn {
	t.Helper()
	nc, err := net.Dial("tcp", a.addr.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	nc.SetDeadline(time.Now().Add(limit))
	io.WriteString(nc, bytes)
	return nc
}

func TestPlainTextIsRefused(t *testing.T) {
	leak.Check(t)
	c := Keys{Secret: secretIn(t, ourSecret)}
	a := serve(t, c, nil)
	for _, text := range []string{"GET / HTTP/1.1\r\n\r\n", "\x06remote", "SSH-2.0-OpenSSH\r\n", strings.Repeat("\x00", 64<<10)} {
		nc := connectTo(t, a, text)
		nc.(*net.TCPConn).CloseWrite()
		if answer, _ := io.ReadAll(nc); bytes.Contains(answer, []byte("refuse")) || len(answer) > 7 {
			t.Errorf("%.20q: got %q, want an alert of TLS at most", text, answer)
		}
	}
	if n := a.begun(); n != 0 {
		t.Errorf("%d jobs have begun", n)
	}
}

// Slow connections hold all slots. A launcher takes the slot of one of them.
func TestSlowConnectionsDoNotKeepALauncherOut(t *testing.T) {
	leak.Check(t)
	c := Keys{Secret: secretIn(t, ourSecret)}
	a := serve(t, c, nil)
	for i := range pendingSlots {
		connectTo(t, a, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc"[:i%9]) // a TLS handshake that never goes on
	}
	begin(t, a.dialer(t, c), "remote")
	a.waitFor(t, errEvicted.Error()) // a slow connection was evicted before its handshake timed out
}

func TestAThousandConnectionsAreBounded(t *testing.T) {
	leak.Check(t)
	c := Keys{Secret: secretIn(t, ourSecret)}
	// With the real time, the agent would serve 128 connections in a second.
	a := serve(t, c, func(s *Agent) { s.limits.hold = time.Millisecond })
	began := time.Now()
	most := 0
	for range 1000 {
		connectTo(t, a, "")
		a.mu.Lock()
		most = max(most, len(a.pending))
		a.mu.Unlock()
	}
	begin(t, a.dialer(t, c), "remote")
	if most > pendingSlots {
		t.Errorf("got %d pending connections, want at most %d", most, pendingSlots)
	}
	lines := strings.Count(a.logs.String(), "a connection refused")
	if bound := pending.Burst + int(time.Since(began)/pending.Interval) + 1; lines > bound {
		t.Errorf("got %d lines about refused connections, want at most %d", lines, bound)
	}
}

// A pipeListener accepts the connections of a channel.
type pipeListener chan net.Conn

func (l pipeListener) Accept() (net.Conn, error) {
	nc, ok := <-l
	if !ok {
		return nil, net.ErrClosed
	}
	return nc, nil
}
func (l pipeListener) Close() error   { return nil }
func (l pipeListener) Addr() net.Addr { return &net.UnixAddr{} }

// A fromConn is a connection that has the address of the given host.
type fromConn struct {
	net.Conn
	host byte
}

func (c fromConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, c.host)} }

// While some hosts hold all slots, a further connection from one of these hosts is closed at once.
// It does not wait for a slot, so that a launcher on another host does not have to wait behind it.
func TestHostsThatShareAllSlotsGetNoMore(t *testing.T) {
	config, err := Keys{Secret: secretIn(t, ourSecret)}.server()
	if err != nil {
		t.Fatal(err)
	}
	for _, hosts := range []int{1, 2, 3, pendingSlots} {
		synctest.Test(t, func(t *testing.T) {
			ln := make(pipeListener)
			var logs logBuffer
			s := New(config, program, nil, 1, slog.New(slog.NewTextHandler(&logs, nil)))
			var work sync.WaitGroup
			work.Go(func() { s.Serve(ln) })
			// lasts connects from a host, and checks for how long the agent keeps the connection.
			lasts := func(host int, want time.Duration) {
				here, there := net.Pipe()
				ln <- fromConn{there, byte(host)}
				began := time.Now()
				work.Go(func() {
					here.Read(make([]byte, 1))
					if got := time.Since(began); got != want {
						t.Errorf("%d hosts: a connection from host %d has lasted for %v, want %v", hosts, host, got, want)
					}
				})
			}
			lasts(0, slotHold) // its slot goes to the launcher
			// Reason: the first connection is the oldest, by the bubble's clock.
			time.Sleep(slotHold / 2)
			for i := 1; i < pendingSlots; i++ {
				lasts(i%hosts, handshakeTimeout)
			}
			lasts(0, 0)
			lasts(hosts-1, 0)
			lasts(hosts, slotHold/2+handshakeTimeout) // the launcher
			// Reason: all connections end within this time of the bubble's clock.
			time.Sleep(2 * handshakeTimeout)
			close(ln)
			work.Wait()
			if !strings.Contains(logs.String(), errShare.Error()) {
				t.Errorf("%d hosts: got the log\n%s\nwant %q in it", hosts, logs.String(), errShare)
			}
		})
	}
}

// A peer that sends nothing, or a byte each second, is disconnected after handshakeTimeout, even
// if there is room.
func TestASlowHandshakeEndsInTime(t *testing.T) {
	config, err := Keys{Secret: secretIn(t, ourSecret)}.server()
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		ln := make(pipeListener)
		s := New(config, program, nil, 1, slog.New(slog.DiscardHandler))
		over := make(chan struct{})
		go func() {
			defer close(over)
			s.Serve(ln)
		}()
		silent, silentEnd := net.Pipe()
		slow, slowEnd := net.Pipe()
		ln <- silentEnd
		ln <- slowEnd
		began := time.Now()
		hello := append([]byte{0x16, 3, 1, 2, 0}, make([]byte, 512)...)
		for i := 0; ; i++ {
			if _, err := slow.Write(hello[i : i+1]); err != nil {
				break
			}
			// Reason: the peer is slow; the bubble's clock passes the time at once.
			time.Sleep(time.Second)
		}
		if lasted := time.Since(began); lasted < handshakeTimeout-time.Second || lasted > handshakeTimeout+time.Second {
			t.Errorf("the slow peer was disconnected after %v, want %v", lasted, handshakeTimeout)
		}
		if n, err := silent.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("the silent peer got %d bytes, %v, want the end", n, err)
		}
		if lasted := time.Since(began); lasted > handshakeTimeout+time.Second {
			t.Errorf("the silent peer was disconnected after %v, want %v", lasted, handshakeTimeout)
		}
		close(ln)
		<-over
	})
}
