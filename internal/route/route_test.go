package route_test

import (
	"net/netip"
	"testing"

	"github.com/tutti-go/tutti/internal/route"
)

func TestTheRouteToAnOwnAddressBeginsThere(t *testing.T) {
	for address, want := range map[string]string{
		"127.0.0.1:9":          "127.0.0.1",
		"[::ffff:127.0.0.1]:9": "127.0.0.1",
	} {
		if got, err := route.To(t.Context(), address); err != nil || got != netip.MustParseAddr(want) {
			t.Errorf("%s: got %v, %v, want %s", address, got, err, want)
		}
	}
}

func TestANameWithoutAddressHasNoRoute(t *testing.T) {
	if got, err := route.To(t.Context(), "no..host:9"); err == nil || got.IsValid() {
		t.Errorf("got %v, want an error", got)
	}
}
