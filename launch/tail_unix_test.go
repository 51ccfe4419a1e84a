//go:build unix

package launch

import (
	"bytes"
	"io"
	"os"
	"testing"
	"testing/iotest"
)

// A reader that comes at the moment of finish still gets all that the pipe holds.
func TestATailIsReadWhileItIsFinished(t *testing.T) {
	const size = 64
	for range 2000 {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		end := &tail{File: r}
		finished := make(chan struct{})
		go func() {
			defer close(finished)
			end.finish()
		}()
		var got bytes.Buffer
		if _, err := io.Copy(&got, iotest.OneByteReader(end)); err != nil {
			t.Fatal(err)
		}
		<-finished
		r.Close()
		w.Close()
		if got.Len() != size {
			t.Fatalf("got %d bytes, want %d", got.Len(), size)
		}
	}
}

// What the pipe holds is copied although finish comes before the copy.
func TestATailIsCopiedAfterFinish(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	defer r.Close()
	if _, err := w.WriteString("the end"); err != nil {
		t.Fatal(err)
	}
	end := &tail{File: r}
	end.finish()
	var got bytes.Buffer
	if _, err := io.Copy(&got, end); err != nil || got.String() != "the end" {
		t.Errorf("got %q and %v, want the end", got.String(), err)
	}
}
