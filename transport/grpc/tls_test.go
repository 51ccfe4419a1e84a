package grpc

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/internal/test/tlstest"
	"github.com/tutti-go/tutti/internal/tlsopt"
	"github.com/tutti-go/tutti/transport"
)

func TestTLSRefusesPeersThatDoNotFit(t *testing.T) {
	ours, others := tlstest.New(t), tlstest.New(t)
	good := tlsopt.Options{CAFile: ours.CA, CertFile: ours.Cert, KeyFile: ours.Key}
	mutual := good
	mutual.Mutual = true
	anonymous := tlsopt.Options{CAFile: ours.CA}
	other := tlsopt.Options{CAFile: ours.CA, CertFile: others.Cert, KeyFile: others.Key}
	distrustful := tlsopt.Options{CAFile: others.CA}
	misnamed := tlsopt.Options{CAFile: ours.CA, ServerName: "elsewhere"}
	for _, tc := range []struct {
		name           string
		server, client *tlsopt.Options
		want           string // a part of the error; empty: the connection works
	}{
		{"both sides are known", &mutual, &good, ""},
		{"the server alone is known", &good, &anonymous, ""},
		{"a client without a certificate", &mutual, &anonymous, "certificate required"},
		{"a client of another authority", &mutual, &other, "unknown certificate authority"},
		{"a server of another authority", &good, &distrustful, "unknown authority"},
		{"a server of another name", &good, &misnamed, "elsewhere"},
		{"a client without TLS", &good, nil, ""},
		{"a server without TLS", nil, &good, "TLS handshake"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			leak.Check(t)
			err := tryTLS(t, tc.server, tc.client)
			fits := tc.want == "" && (tc.server == nil) == (tc.client == nil)
			if fits != (err == nil) {
				t.Fatalf("Dial: %v", err)
			}
			if err != nil && (!errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("Dial: got %v, want %v with %q", err, fault.Refused, tc.want)
			}
		})
	}
}

func tryTLS(t *testing.T, server, client *tlsopt.Options) error {
	a, b := New(Options{TLS: server}), New(Options{TLS: client})
	defer a.Close()
	defer b.Close()
	addr, err := a.Serve(listen(t), func(transport.Conn) {})
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.Dial(context.Background(), addr)
	return err
}

// A tlsListener does the TLS handshake in Accept. Like the connections of mesh's mux, its
// connections replay the bytes already read, and NetConn returns the underlying connection.
type tlsListener struct {
	net.Listener
	config *tls.Config
	admits atomic.Int32
}

type tlsListenerConn struct {
	net.Conn // TLS
	mux      *tlsListener
}

func (f *tlsListener) Accept() (net.Conn, error) {
	c, err := f.Listener.Accept()
	if err != nil {
		return nil, err
	}
	secure := tls.Server(c, f.config)
	if err := secure.Handshake(); err != nil {
		return nil, err
	}
	return &tlsListenerConn{secure, f}, nil
}

func (c *tlsListenerConn) NetConn() net.Conn { return c.Conn }
func (c *tlsListenerConn) Admit()            { c.mux.admits.Add(1) }

func TestTLSMayHaveBeenDoneByTheListener(t *testing.T) {
	leak.Check(t)
	ca := tlstest.New(t)
	tlsOptions := &tlsopt.Options{CAFile: ca.CA, CertFile: ca.Cert, KeyFile: ca.Key}
	config, err := tlsOptions.Server("h2")
	if err != nil {
		t.Fatal(err)
	}
	tr := New(Options{TLS: tlsOptions})
	defer tr.Close()
	accepted := make(chan transport.Conn, 1)
	f := &tlsListener{Listener: listen(t), config: config}
	addr, err := tr.Serve(f, func(c transport.Conn) { accepted <- c })
	if err != nil {
		t.Fatal(err)
	}
	near, err := tr.Dial(context.Background(), addr)
	if err != nil {
		t.Fatal(err)
	}
	far := <-accepted
	if n := f.admits.Load(); n != 0 {
		t.Errorf("the listener heard of %d admissions before Admit", n)
	}
	far.(transport.Pending).Admit()
	if n := f.admits.Load(); n != 1 {
		t.Errorf("the listener heard of %d admissions, want 1", n)
	}
	exchange(t, near, far, make([]byte, 100<<10))
}
