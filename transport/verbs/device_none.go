//go:build !(verbs && linux && cgo)

package verbs

import "errors"

// Built reports whether this program was built with libibverbs.
const Built = false

// openDevice says how a program comes to have verbs.
func openDevice() (device, error) {
	return nil, errors.New("verbs is not built into this program: build it on Linux with cgo, libibverbs-dev and -tags verbs (make build VERBS=1)")
}
