package mesh

import (
	"context"
	"crypto/tls"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/jobca"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/internal/tlsopt"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/grpc"
	"github.com/tutti-go/tutti/transport/tcp"
)

// A testCA gives ranks of a test job certificates for TLS on loopback.
type testCA struct {
	t  *testing.T
	ca *jobca.Authority
}

func newTestCA(t *testing.T) testCA {
	t.Helper()
	ca, err := jobca.Derive([]byte("what the ranks of this job know"), "test")
	if err != nil {
		t.Fatal(err)
	}
	return testCA{t, ca}
}

// options returns the TLS options of a rank.
func (a testCA) options(rank int) *tlsopt.Options {
	a.t.Helper()
	c, err := a.ca.Issue(rank, 0)
	if err != nil {
		a.t.Fatal(err)
	}
	return tlsopt.ForJob(c).Everywhere()
}

// secure gives cfg a wire under TLS, with the certificate of a rank.
func (a testCA) secure(cfg *Config, wire string, rank int) {
	a.t.Helper()
	o := a.options(rank)
	conf, err := o.Server("tutti/1", "h2")
	if err != nil {
		a.t.Fatal(err)
	}
	cfg.TLS, cfg.Secures, cfg.NameOf, cfg.Transport = conf, o.Secures, o.NameOf, wireOver(wire, o)
}

// wireOver makes a transport by its name.
func wireOver(wire string, o *tlsopt.Options) transport.Transport {
	if wire == "grpc" {
		return grpc.New(grpc.Options{TLS: o})
	}
	return tcp.New(tcp.Options{TLS: o})
}

// dialAs dials a rank over the given wire. It claims to be the rank that the argument claimed
// names, and returns the error of the handshake.
func (w *wiredJob) dialAs(wire transport.Transport, claimed, to int) error {
	cfg := w.config(claimed)
	id := newIdentity(cfg)
	ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Second)
	defer cancel()
	c, err := wire.Dial(ctx, w.addrs[to])
	if err != nil {
		return err
	}
	defer c.Close()
	conn := newHandshakeConn(c)
	_, err = id.dial(ctx, conn, to, channelJoin, position{}, func() { conn.send(appendRecordHead(nil), record{instance: id.instance}.append(nil)) })
	return err
}

func TestRanksUnderTheJobsCAAcceptNoOneElse(t *testing.T) {
	for _, wire := range []string{"tcp", "grpc"} {
		t.Run(wire, func(t *testing.T) {
			leak.Check(t)
			ca := newTestCA(t)
			w := startWired(t, 3, func(i int, cfg *Config) { ca.secure(cfg, wire, i) })
			defer w.close()
			w.healthy()
			before := len(w.logs.all())

			// This peer has rank 2's certificate, but claims to be rank 1. It has the secret, and
			// its handshake is correct.
			posing := wireOver(wire, ca.options(2))
			defer posing.Close()
			var no *refusal
			if err := w.dialAs(posing, 1, 0); !errors.As(err, &no) || no.reason != reasonName {
				t.Errorf("rank 2 that poses as rank 1: got %v, want a refusal for its name", err)
			}
			eventually(t, "a line", func() bool { return len(w.logs.all()) > before })
			if got := w.logs.all()[before:]; len(got) != 1 || !strings.Contains(got[0], "certificate: got tutti:") {
				t.Errorf("logged %q, want one line about the certificate", got)
			}
			// With the same certificate, a peer that claims to be rank 2 must not be refused
			// because of its name.
			if err := w.dialAs(posing, 2, 0); errors.As(err, &no) && no.reason == reasonName {
				t.Errorf("rank 2 itself: got %v", err)
			}

			// This peer has the secret, but does not use TLS.
			plain := wireOver(wire, nil)
			defer plain.Close()
			if err := w.dialAs(plain, 1, 0); err == nil {
				t.Error("a connection without TLS: got no error")
			}
			w.healthy()
		})
	}
}

func TestARankChecksWhomItHasDialled(t *testing.T) {
	for _, wire := range []string{"tcp", "grpc"} {
		t.Run(wire, func(t *testing.T) {
			leak.Check(t)
			ca := newTestCA(t)
			w := startWired(t, 3, func(i int, cfg *Config) { ca.secure(cfg, wire, i) })
			defer w.close()
			for name, found := range map[string]int{"another rank": 2, "itself, as by an attacker who turns its connections around": 1} {
				c, err := w.meshes[1].cfg.Transport.Dial(t.Context(), w.addrs[found])
				if err != nil {
					t.Fatal(err)
				}
				_, err = w.meshes[1].handshake(t.Context(), newHandshakeConn(c), 0, channelData, nil)
				c.Close()
				var no *refusal
				if !errors.As(err, &no) || no.reason != reasonName || !strings.Contains(no.text, "of rank 0") {
					t.Errorf("rank 1 dials rank 0 and finds %s: got %v, want a refusal for its name", name, err)
				}
			}
		})
	}
}

// Connections within a host are plain. So on loopback the mux must refuse a TLS handshake, although
// the ranks have certificates.
func TestTheMuxDecidesByTheAddressesWhatMustBeUnderTLS(t *testing.T) {
	leak.Check(t)
	ca := newTestCA(t)
	w := startWired(t, 3, func(i int, cfg *Config) {
		c, err := ca.ca.Issue(i, 0)
		if err != nil {
			t.Error(err)
			return
		}
		o := tlsopt.ForJob(c) // loopback stays plain
		cfg.TLS, _ = o.Server("tutti/1")
		cfg.Secures, cfg.NameOf, cfg.Transport = o.Secures, o.NameOf, tcp.New(tcp.Options{TLS: o})
	})
	defer w.close()
	w.healthy()
	before := len(w.logs.all())
	nc := connect(t, w.addrs[1])
	tls.Client(nc, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"tutti/1"}}).Handshake()
	wantClosed(t, "TLS on a connection within the host", nc, 2*time.Second)
	w.logged(before, "TLS on a connection within the host", 1, "got a TLS handshake, want a connection without TLS")
	w.healthy()
}

func TestAStartWithAnotherJobsCAFailsAtOnce(t *testing.T) {
	leak.Check(t)
	ca := newTestCA(t)
	foreign, err := jobca.New("test")
	if err != nil {
		t.Fatal(err)
	}
	j := newTestJob(t, 2)
	defer j.close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	root, own := listen(t), listen(t)
	var rank0 sync.WaitGroup
	rank0.Go(func() {
		j.start(ctx, []int{0}, func(i int, cfg *Config) {
			cfg.Listener, cfg.Root = root, root.Addr().String()
			ca.secure(cfg, "tcp", i)
		})
	})
	j.start(ctx, []int{1}, func(i int, cfg *Config) {
		cfg.Listener, cfg.Root = own, root.Addr().String()
		testCA{t, foreign}.secure(cfg, "tcp", i)
	})
	if err := j.errs[1]; !errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), "different secrets, or were started by different launchers") {
		t.Errorf("got %v, want %v with the reason", err, fault.Refused)
	}
	cancel()
	rank0.Wait()
}

// Rank 0 refuses the certificate of rank 1, and rank 1 accepts that of rank 0. Rank 1 must log why
// it keeps retrying, and its error must contain the reason.
func TestARefusedCertificateIsNamedByItsRank(t *testing.T) {
	for _, wire := range []string{"tcp", "grpc"} {
		t.Run(wire, func(t *testing.T) {
			leak.Check(t)
			ca := newTestCA(t)
			foreign, err := jobca.New("test")
			if err != nil {
				t.Fatal(err)
			}
			own, err := foreign.Issue(1, 0)
			if err != nil {
				t.Fatal(err)
			}
			j := newTestJob(t, 2)
			defer j.close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			root := listen(t)
			var ranks sync.WaitGroup
			ranks.Go(func() {
				j.start(ctx, []int{0}, func(i int, cfg *Config) {
					cfg.Listener, cfg.Root = root, root.Addr().String()
					ca.secure(cfg, wire, i)
				})
			})
			ranks.Go(func() {
				j.start(ctx, []int{1}, func(i int, cfg *Config) {
					cfg.Listener, cfg.Root = listen(t), root.Addr().String()
					cfg.Transport = wireOver(wire, &tlsopt.Options{Config: &tls.Config{
						InsecureSkipVerify: true, Certificates: own.Config().Certificates,
					}})
				})
			})
			eventually(t, "rank 1 logs that it retries", func() bool { return j.logs.count("keeps retrying to join") > 0 })
			cancel()
			ranks.Wait()
			const want = "it does not accept the certificate of this rank"
			if err := j.errs[1]; err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q in it", err, want)
			}
			logged := strings.Join(j.logs.all(), "\n")
			if !strings.Contains(logged, "keeps retrying to join") || !strings.Contains(logged, want) {
				t.Errorf("logged %q, want %q in it", logged, want)
			}
		})
	}
}
