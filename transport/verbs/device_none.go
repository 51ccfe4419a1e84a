//go:build !(verbs && linux && cgo)

package verbs

import (
	"errors"

	"github.com/tutti-go/tutti/transport/verbs/internal/rdma"
)

// Built reports whether this program was built with libibverbs.
const Built = false

var errNotBuilt = errors.New("this program is built without verbs; build it on Linux with cgo, libibverbs-dev and -tags verbs (make build VERBS=1)")

// openDevice always fails. The error says how to build with verbs.
func openDevice(*config) (rdma.Device, error) { return nil, errNotBuilt }

func explainDevices(*config) ([]string, error) { return nil, errNotBuilt }
