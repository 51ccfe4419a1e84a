package timeline

import (
	"cmp"
	"os"
	"sync"
)

// MaxRecords is the maximum number of records in a Ring.
const MaxRecords = 1 << 16

// A Ring keeps the last MaxRecords records of what a part will show. Any goroutine may call its
// methods. The zero value is ready for use.
type Ring[T any] struct {
	mu      sync.Mutex // guards the rest
	records []T
	next    int // the oldest record once the ring is full
	dropped uint64
}

// Add adds a record. When the ring is full, the new record replaces the oldest one.
func (r *Ring[T]) Add(v T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.records) < MaxRecords {
		r.records = append(r.records, v)
		return
	}
	r.records[r.next] = v
	r.next = (r.next + 1) % MaxRecords
	r.dropped++
}

// All returns the records, the oldest first, and the number of those that were replaced.
func (r *Ring[T]) All() (records []T, dropped uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	records = append(records, r.records[r.next:]...)
	return append(records, r.records[:r.next]...), r.dropped
}

// FromEnvironment returns the file name that the environment gives, or "". Horovod's value DYNAMIC
// means that the program will start a timeline.
func FromEnvironment() string {
	file := cmp.Or(os.Getenv("TUTTI_TIMELINE"), os.Getenv("HOROVOD_TIMELINE"))
	if file == "DYNAMIC" {
		return ""
	}
	return file
}

// WritePart writes a part to a temporary file next to the part's file, and renames it when it is
// complete. So a rank that is killed leaves an empty part, never a truncated one. The number of the
// first thread keeps the threads of one rank's parts apart.
func WritePart(file string, about Info, firstThread int, spans func(*Writer)) error {
	f, err := CreateExclusive(file + ".new")
	if err != nil {
		return err
	}
	w := NewWriter(f, about)
	w.firstThread = firstThread
	spans(w)
	err = w.Close()
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}
