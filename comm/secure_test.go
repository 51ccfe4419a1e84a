package comm

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/bootstrap"
	"github.com/tutti-go/tutti/fault"
)

func TestProtectionOfConnectionsBetweenHosts(t *testing.T) {
	secret := []byte("what only these ranks know")
	here, there := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)}, &net.TCPAddr{IP: net.IPv4(10, 0, 0, 2)}
	for _, tc := range []struct {
		name    string
		opts    []Option
		secret  []byte
		plain   bool // the environment variable disables TLS
		tls     bool // connections between hosts use TLS
		inHost  bool // connections within a host use TLS, too
		sums    bool
		warning string
	}{
		{"a secret", nil, secret, false, true, false, false, ""},
		{"no secret", nil, nil, false, false, false, false, ""},
		{"plain by the option", []Option{WithInsecurePlain()}, secret, false, false, false, true, "INSECURE: connections between hosts are not encrypted"},
		{"plain by the variable", nil, secret, true, false, false, true, "INSECURE: connections between hosts are not encrypted"},
		{"the program's files", []Option{WithTLS(TLS{CertFile: "c", KeyFile: "k"})}, secret, false, true, true, false, ""},
		{"RDMA by name", []Option{WithTransportName("tcp+verbs")}, secret, false, true, false, false, "read and change what passes by RDMA"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var log bytes.Buffer
			o := newOptions(append(tc.opts, WithLogger(slog.New(slog.NewTextHandler(&log, nil)))))
			if err := o.secure(&bootstrap.Job{Rank: 1, Size: 2, Name: "train", Secret: tc.secret, Plain: tc.plain}); err != nil {
				t.Fatal(err)
			}
			if got, in := o.tls.Secures(here, there), o.tls.Secures(here, here); got != tc.tls || in != tc.inHost {
				t.Errorf("TLS between hosts: %v, within one: %v; want %v and %v", got, in, tc.tls, tc.inHost)
			}
			if o.params.Checksums != tc.sums {
				t.Errorf("checksums: %v, want %v", o.params.Checksums, tc.sums)
			}
			if text := log.String(); (text != "") != (tc.warning != "") || !strings.Contains(text, tc.warning) {
				t.Errorf("logged %q, want %q", text, tc.warning)
			}
			if strings.Contains(log.String(), string(tc.secret)) && tc.secret != nil {
				t.Error("the log shows the secret")
			}
		})
	}
	o := newOptions([]Option{WithInsecurePlain(), WithTLS(TLS{CertFile: "c", KeyFile: "k"})})
	if err := o.secure(&bootstrap.Job{Size: 2, Secret: secret}); !errors.Is(err, fault.Misuse) {
		t.Errorf("WithTLS and WithInsecurePlain: got %v, want %v", err, fault.Misuse)
	}
}
