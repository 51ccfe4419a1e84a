package tlsopt

import (
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/tlstest"
)

// tcpPair returns both ends of a TCP connection. A net.Pipe would not do, because it has no buffer
// for the session tickets that a TLS server sends without a request.
func tcpPair(t *testing.T) (near, far net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if near, err = net.Dial("tcp", ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if far, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	return near, far
}

// runHandshake does one handshake over a connection and returns both sides' errors.
func runHandshake(t *testing.T, client, server *Options, name string) (*tls.ConnectionState, error, error) {
	t.Helper()
	cc, err := client.Client("tutti/1")
	if err != nil {
		t.Fatal(err)
	}
	sc, err := server.Server("h2", "tutti/1")
	if err != nil {
		t.Fatal(err)
	}
	if cc.ServerName == "" {
		cc.ServerName = name
	}
	near, far := tcpPair(t)
	defer near.Close()
	serverErr := make(chan error, 1)
	go func() {
		defer far.Close()
		srv := tls.Server(far, sc)
		err := srv.Handshake()
		if err == nil {
			_, err = srv.Write([]byte{1})
		}
		serverErr <- err
	}()
	dial := tls.Client(near, cc)
	err = dial.Handshake()
	if err == nil { // in TLS 1.3 a refused client gets the alert at its first read
		_, err = dial.Read(make([]byte, 1))
	}
	near.Close()
	state := dial.ConnectionState()
	return &state, err, <-serverErr
}

func TestBothSidesFromOneOptions(t *testing.T) {
	ours := tlstest.New(t)
	cert, key := ours.Cert, ours.Key
	both := &Options{CertFile: cert, KeyFile: key, CAFile: cert, Mutual: true}
	state, err, serverErr := runHandshake(t, both, both, "127.0.0.1")
	if err != nil || serverErr != nil {
		t.Fatalf("got %v and %v, want a handshake", err, serverErr)
	}
	if state.NegotiatedProtocol != "tutti/1" || state.Version != tls.VersionTLS13 {
		t.Errorf("got protocol %q, version %x; want tutti/1 over TLS 1.3", state.NegotiatedProtocol, state.Version)
	}
}

func TestHandshakeIsRefused(t *testing.T) {
	ours := tlstest.New(t)
	cert, key := ours.Cert, ours.Key
	others := tlstest.New(t)
	otherCert, otherKey := others.Cert, others.Key
	server := &Options{CertFile: cert, KeyFile: key, CAFile: cert, Mutual: true}
	for name, client := range map[string]*Options{
		"no certificate":    {CAFile: cert},
		"stranger's":        {CAFile: cert, CertFile: otherCert, KeyFile: otherKey},
		"unknown authority": {CAFile: otherCert, CertFile: cert, KeyFile: key},
		"another name":      {CAFile: cert, CertFile: cert, KeyFile: key, ServerName: "elsewhere.test"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err, serverErr := runHandshake(t, client, server, "127.0.0.1"); err == nil || serverErr == nil {
				t.Errorf("got %v and %v, want two errors", err, serverErr)
			}
		})
	}
}

func TestServerNameOverridesTheHost(t *testing.T) {
	ours := tlstest.New(t)
	cert, key := ours.Cert, ours.Key
	server := &Options{CertFile: cert, KeyFile: key}
	client := &Options{CAFile: cert, ServerName: tlstest.Name}
	if _, err, serverErr := runHandshake(t, client, server, "10.0.0.1"); err != nil || serverErr != nil {
		t.Errorf("got %v and %v, want a handshake", err, serverErr)
	}
}

func TestBadOptionsAreMisuse(t *testing.T) {
	ours := tlstest.New(t)
	cert, key := ours.Cert, ours.Key
	empty := tlstest.WritePEM(t, "empty.pem", "NOTHING", nil)
	for name, c := range map[string]struct {
		o    Options
		want string
	}{
		"no certificate":       {Options{}, "no certificate"},
		"key is missing":       {Options{CertFile: cert}, "together"},
		"no such file":         {Options{CertFile: cert + "x", KeyFile: key}, "no such file"},
		"key does not fit":     {Options{CertFile: cert, KeyFile: cert}, "cert.pem"},
		"authorities missing":  {Options{CertFile: cert, KeyFile: key, CAFile: cert + "x"}, "no such file"},
		"authorities empty":    {Options{CertFile: cert, KeyFile: key, CAFile: empty}, "no certificate in"},
		"mutual, no authority": {Options{CertFile: cert, KeyFile: key, Mutual: true}, "CAFile"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.o.Server("tutti/1")
			if !errors.Is(err, fault.Misuse) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want a misuse with %q", err, c.want)
			}
		})
	}
}

func TestGivenConfigIsKeptAndNotChanged(t *testing.T) {
	given := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: "kept.test"}
	o := &Options{Config: given}
	cfg, err := o.Client("tutti/1")
	if err != nil {
		t.Fatal(err)
	}
	if cfg.MinVersion != tls.VersionTLS12 || cfg.ServerName != "kept.test" {
		t.Errorf("got version %x and name %q, want those given", cfg.MinVersion, cfg.ServerName)
	}
	if given.NextProtos != nil {
		t.Errorf("the given Config was changed: %v", given.NextProtos)
	}
}
