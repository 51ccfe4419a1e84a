package tcp

import (
	"testing"

	"github.com/tutti-go/tutti/internal/test/tlstest"
)

// identity returns TLS options by which ranks on this host trust each other, in both directions,
// and no other peer.
func identity(tb testing.TB) *TLS {
	tb.Helper()
	id := tlstest.New(tb)
	return &TLS{CertFile: id.Cert, KeyFile: id.Key, CAFile: id.CA, Mutual: true}
}
