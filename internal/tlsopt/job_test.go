package tlsopt

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/tutti-go/tutti/internal/jobca"
)

var jobSecret = []byte("what only the ranks of this job know")

// rankOf returns the Options of a rank of a job whose CA is derived from a secret.
func rankOf(t *testing.T, secret []byte, job string, rank int, incarnation uint32) *Options {
	t.Helper()
	ca, err := jobca.Derive(secret, job)
	if err != nil {
		t.Fatal(err)
	}
	c, err := ca.Issue(rank, incarnation)
	if err != nil {
		t.Fatal(err)
	}
	return ForJob(c)
}

// configs returns the configurations of both sides of a connection.
func configs(t *testing.T, client, server *Options) (cc, sc *tls.Config) {
	t.Helper()
	cc, err := client.Client("tutti/1")
	if err != nil {
		t.Fatal(err)
	}
	if sc, err = server.Server("tutti/1", "h2"); err != nil {
		t.Fatal(err)
	}
	return cc, sc
}

// meet does a handshake and passes a byte each way. It returns the errors of both sides.
func meet(t *testing.T, cc, sc *tls.Config) (client, server *tls.Conn, clientErr, serverErr error) {
	t.Helper()
	near, far := tcpPair(t)
	t.Cleanup(func() { near.Close(); far.Close() })
	client, server = tls.Client(near, cc), tls.Server(far, sc)
	done := make(chan error, 1)
	go func() { done <- passByte(server) }()
	if clientErr = passByte(client); clientErr != nil {
		near.Close()
	}
	return client, server, clientErr, <-done
}

// passByte does the handshake, sends a byte and reads one. In TLS 1.3 a client that is refused
// learns it at its first read.
func passByte(c *tls.Conn) error {
	c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := c.Write([]byte{1}); err != nil {
		c.NetConn().Close()
		return err
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		c.NetConn().Close()
		return err
	}
	return nil
}

func TestRanksOfAJobProveTheirNamesToEachOther(t *testing.T) {
	one, two := rankOf(t, jobSecret, "train", 1, 4), rankOf(t, jobSecret, "train", 2, 4)
	cc, sc := configs(t, one, two)
	cc.ClientSessionCache = tls.NewLRUClientSessionCache(4)
	for range 2 { // the second time a ticket could shorten the handshake
		client, server, err, serverErr := meet(t, cc, sc)
		if err != nil || serverErr != nil {
			t.Fatalf("got %v and %v, want a connection", err, serverErr)
		}
		state := client.ConnectionState()
		if state.Version != tls.VersionTLS13 || state.DidResume || state.NegotiatedProtocol != "tutti/1" {
			t.Errorf("got version %x, resumed: %v, protocol %q", state.Version, state.DidResume, state.NegotiatedProtocol)
		}
		if got, want := one.PeerName(client), one.NameOf(2); got != want || got == "" {
			t.Errorf("the dialled rank proves %q, want %q", got, want)
		}
		if got, want := two.PeerName(server), two.NameOf(1); got != want {
			t.Errorf("the dialling rank proves %q, want %q", got, want)
		}
	}
	near, far := tcpPair(t)
	defer near.Close()
	defer far.Close()
	if one.PeerName(near) != "" || one.PeerName(tls.Client(near, cc)) != "" {
		t.Error("a connection without a handshake proves a name")
	}
}

func TestPeersOfAnotherJobSecretOrIncarnationAreRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		peer      *Options
		want      string // part of the dialling side's error, explained
		permanent bool
	}{
		"another job, the same secret": {rankOf(t, jobSecret, "other", 2, 4), "set the same TUTTI_JOB", true},
		"another secret":               {rankOf(t, []byte("what another job's ranks know"), "train", 2, 4), "different secrets", true},
		"an evicted incarnation":       {rankOf(t, jobSecret, "train", 2, 3), "incarnation: got a certificate of incarnation 3, want 4", false},
		"a newer incarnation":          {rankOf(t, jobSecret, "train", 2, 5), "incarnation: got a certificate of incarnation 5, want 4", true},
	} {
		t.Run(name, func(t *testing.T) {
			me := rankOf(t, jobSecret, "train", 1, 4)
			cc, sc := configs(t, me, tc.peer)
			_, _, err, serverErr := meet(t, cc, sc)
			if err == nil || serverErr == nil {
				t.Fatalf("dialling: got %v and %v, want two errors", err, serverErr)
			}
			if text := me.Explain(err).Error(); !strings.Contains(text, tc.want) {
				t.Errorf("dialling: got %q, want %q in it", text, tc.want)
			}
			var cert *tls.CertificateVerificationError
			if errors.As(err, &cert) != tc.permanent {
				t.Errorf("dialling: got %T, want an error that ends retries: %v", err, tc.permanent)
			}
			// The accepting side must check the certificate even if the dialling side checks
			// nothing.
			cc, sc = configs(t, tc.peer, me)
			cc.InsecureSkipVerify, cc.VerifyConnection = true, nil
			if _, _, err, serverErr := meet(t, cc, sc); err == nil || serverErr == nil {
				t.Errorf("dialled: got %v and %v, want two errors", err, serverErr)
			}
			// The dialling side must check the certificate even if the accepting side accepts
			// everything.
			cc, sc = configs(t, me, tc.peer)
			sc.ClientAuth, sc.VerifyConnection = tls.NoClientCert, nil
			if _, _, err, _ := meet(t, cc, sc); err == nil {
				t.Error("dialling a peer that checks nothing: got no error")
			}
		})
	}
}

func TestAPeerWithoutACertificateOrWithOneThatNamesNoRankIsRefused(t *testing.T) {
	me := rankOf(t, jobSecret, "train", 1, 4)
	cc, sc := configs(t, rankOf(t, jobSecret, "train", 2, 4), me)
	cc.Certificates = nil
	if _, _, err, serverErr := meet(t, cc, sc); err == nil || serverErr == nil {
		t.Errorf("no certificate: got %v and %v, want two errors", err, serverErr)
	}
	// crypto/tls accepts the chain, but the certificate has no name.
	state := tls.ConnectionState{PeerCertificates: []*x509.Certificate{{}}}
	if err := sc.VerifyConnection(state); err == nil {
		t.Error("no name: got no error")
	}
}

func TestClocksMayDifferByAnHourButNotByADayAndMore(t *testing.T) {
	for _, tc := range []struct {
		off  time.Duration
		fits bool
	}{
		{-time.Hour, true}, {time.Hour, true}, {-23 * time.Hour, true}, {30 * 24 * time.Hour, true}, {-25 * time.Hour, false},
	} {
		clock := func() time.Time { return time.Now().Add(tc.off) }
		one, two := rankOf(t, jobSecret, "train", 1, 0), rankOf(t, jobSecret, "train", 2, 0)
		for _, side := range []string{"dialling", "dialled"} {
			cc, sc := configs(t, one, two)
			if side == "dialling" {
				cc.Time = clock
			} else {
				sc.Time = clock
			}
			_, _, err, serverErr := meet(t, cc, sc)
			if fits := err == nil && serverErr == nil; fits != tc.fits {
				t.Errorf("the clock of the %s side is %v off: got %v and %v, want success: %v", side, tc.off, err, serverErr, tc.fits)
			}
			if text := one.Explain(err); !tc.fits && !strings.Contains(text.Error(), "clocks") {
				t.Errorf("the clock of the %s side is %v off: got %q, want a word about clocks", side, tc.off, text)
			}
		}
	}
}

func TestNothingWeakerThanTLS13IsAgreedOn(t *testing.T) {
	one, two := rankOf(t, jobSecret, "train", 1, 0), rankOf(t, jobSecret, "train", 2, 0)
	for _, side := range []string{"dialling", "dialled"} {
		cc, sc := configs(t, one, two)
		weak := cc
		if side == "dialled" {
			weak = sc
		}
		weak.MinVersion, weak.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
		if _, _, err, serverErr := meet(t, cc, sc); err == nil || serverErr == nil {
			t.Errorf("the %s side speaks TLS 1.2 only: got %v and %v, want two errors", side, err, serverErr)
		}
	}
	// An attacker on the network path answers in clear, like a rank without TLS.
	cc, _ := configs(t, one, two)
	near, far := tcpPair(t)
	defer near.Close()
	defer far.Close()
	go io.WriteString(far, "welcome")
	if err := one.Explain(tls.Client(near, cc).Handshake()); err == nil || !strings.Contains(err.Error(), "TUTTI_INSECURE_PLAIN") {
		t.Errorf("a peer that speaks in clear: got %v, want an error that names the variable", err)
	}
}

func TestAConnectionThatIsReflectedOrReplayedIsRefused(t *testing.T) {
	one, two := rankOf(t, jobSecret, "train", 1, 0), rankOf(t, jobSecret, "train", 2, 0)
	cc, sc := configs(t, one, two)
	near, far := tcpPair(t)
	defer near.Close()
	defer far.Close()
	go io.Copy(far, far)
	if err := tls.Client(near, cc).Handshake(); err == nil {
		t.Error("what a rank sent came back to it, and it accepted that")
	}

	// An attacker sends all bytes of rank 1 on one connection again on another connection.
	dialled, relayed := tcpPair(t)
	accepted, behind := tcpPair(t)
	for _, nc := range []net.Conn{dialled, relayed, accepted, behind} {
		defer nc.Close()
	}
	var sent bytes.Buffer
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		io.Copy(behind, io.TeeReader(relayed, &sent))
	}()
	go io.Copy(relayed, behind)
	served := make(chan error, 1)
	go func() { served <- passByte(tls.Server(accepted, sc)) }()
	if err := errors.Join(passByte(tls.Client(dialled, cc)), <-served); err != nil {
		t.Fatal(err)
	}
	dialled.Close()
	<-copied
	near, far = tcpPair(t)
	defer near.Close()
	defer far.Close()
	go near.Write(sent.Bytes())
	server := tls.Server(far, sc)
	server.SetDeadline(time.Now().Add(20 * time.Second))
	if n, err := server.Read(make([]byte, 1)); err == nil || errors.Is(err, net.ErrClosed) || n > 0 {
		t.Errorf("a recorded connection sent again: got %d bytes and %v, want an error", n, err)
	}
}

func TestConnectionsBetweenHostsAreSecured(t *testing.T) {
	job, files := rankOf(t, jobSecret, "train", 1, 0), &Options{CertFile: "c", KeyFile: "k"}
	tcp := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 7} }
	for _, tc := range []struct {
		local, remote net.Addr
		job           bool
	}{
		{tcp("127.0.0.1"), tcp("127.0.0.1"), false},
		{tcp("127.0.0.1"), tcp("127.0.0.2"), false},
		{tcp("::1"), tcp("::1"), false},
		{tcp("10.0.0.1"), tcp("10.0.0.1"), false},
		{tcp("::ffff:10.0.0.1"), tcp("10.0.0.1"), false},
		{tcp("10.0.0.1"), tcp("10.0.0.2"), true},
		{tcp("127.0.0.1"), tcp("10.0.0.2"), true},
		{tcp("fe80::1"), tcp("fe80::2"), true},
		{&net.UnixAddr{Name: "a", Net: "unix"}, &net.UnixAddr{Name: "a", Net: "unix"}, true},
	} {
		if got := job.Secures(tc.local, tc.remote); got != tc.job {
			t.Errorf("%v to %v: secured: %v, want %v", tc.local, tc.remote, got, tc.job)
		}
		if !files.Secures(tc.local, tc.remote) || !job.Everywhere().Secures(tc.local, tc.remote) || (*Options)(nil).Secures(tc.local, tc.remote) {
			t.Errorf("%v to %v: want it secured with the program's files and everywhere, and not without options", tc.local, tc.remote)
		}
	}
}
