package ps

import "github.com/tutti-go/tutti/comm"

// PushAgain makes the next push to t a resend of the last one.
func PushAgain[T comm.Element](t *Tensor[T]) {
	for i := range t.d.parts {
		t.d.parts[i].seq--
	}
}

// Forget makes t a tensor that no server knows.
func Forget[T comm.Element](t *Tensor[T]) { t.d.id += 1000 }

// Ranges is the text of parts in errors.
var Ranges = ranges
