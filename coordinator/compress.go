package coordinator

import (
	"github.com/tutti-go/tutti/coordinator/negotiate"
	"github.com/tutti-go/tutti/tensor"
)

// compresses reports whether the elements of a request can be converted to the wire type that the
// request asks for.
func compresses(q *negotiate.TensorRequest) bool {
	from := q.DType == tensor.Float32 || q.DType == tensor.Float64
	to := q.Wire == tensor.F16 || q.Wire == tensor.BF16
	return q.Operation == negotiate.AllReduce && from && to
}
