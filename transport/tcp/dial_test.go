package tcp

import (
	"errors"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
)

// A rank with "tcp" may get the addresses of ranks with "auto" or "shm". Dial must not ask a
// resolver for such an address, and the Kind of the error must say that a retry does not help.
func TestTheAddressOfAnotherTransportIsRefusedAtOnce(t *testing.T) {
	leak.Check(t)
	w := New(Options{})
	defer w.Close()
	for _, addr := range []string{"shm=1/n0/2/3/@tutti-4;tcp=127.0.0.1:5", "shm=1/n0/2/3/@tutti-4"} {
		_, err := w.Dial(t.Context(), addr)
		if !errors.Is(err, fault.Misuse) || !strings.Contains(err.Error(), "TUTTI_TRANSPORT") {
			t.Errorf("%s: got %v, want a misuse that names TUTTI_TRANSPORT", addr, err)
		}
	}
}
