package bootstrap

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tutti-go/tutti/internal/vars"
)

// A Store is a kind of store in which the ranks of a job can meet, such as that of package etcd.
// TUTTI_STORE names a store by a URL. Directories (file:///DIRECTORY) are part of every program; a
// program passes other Stores in Options. A Store value holds no resources. Any number of
// goroutines may use it.
type Store interface {
	// Scheme returns the scheme of the URLs, such as "etcd".
	Scheme() string

	// Open returns the entries of a job, as one of its ranks sees them. The name of the job is valid
	// as the name of a file. An error says what is wrong with the URL or the store, and does not name
	// TUTTI_STORE. ctx bounds Open only. Like the contexts of Entries, it has a deadline, unless the
	// user wants to wait without a limit.
	Open(ctx context.Context, url, job string, rank, size int) (Entries, error)
}

// Entries are texts by which the ranks of a job find rank 0. Each rank has one text, of one line.
// Rank 0 sees the texts of all ranks. Another rank sees its own and rank 0's. An earlier job may
// have left texts. Only one goroutine uses an Entries.
type Entries interface {
	// Next returns the texts, indexed by rank. It returns "" for a rank that has no text, or whose
	// text this rank does not see. The first call returns at once, and a later call when a text may
	// have changed. This rank's own text is the one that it has written last, unless that text was
	// replaced or removed since. The result is valid until the next call.
	Next(ctx context.Context) ([]string, error)

	// Write replaces this rank's text atomically.
	Write(ctx context.Context, text string) error

	// Remove removes the texts of some ranks.
	Remove(ctx context.Context, ranks ...int) error

	// Close ends the use of the entries. The texts stay. A second Close only returns an error.
	Close() error
}

// store reads TUTTI_STORE, which names the store in which the ranks of a job meet. Rank and size
// come from this module's variables, or from those of another launcher. Under tuttirun the variable
// is a leftover, so the source does not apply.
func (f *finder) store() (*Job, error) {
	at, ok := f.get(vars.Store)
	if !ok || f.has(vars.StoreFD) || f.has(vars.Root) {
		return nil, nil
	}
	s, err := f.storeOf(at)
	if err != nil {
		return nil, err
	}
	rankVar, sizeVar := vars.Rank, vars.Size
	if !f.has(rankVar) && !f.has(sizeVar) {
		if rankVar, sizeVar = f.rankNames(); rankVar == "" {
			return nil, refuse(unknown, "%s=%q, but %s and %s are not set: set both for each rank", vars.Store, at, vars.Rank, vars.Size)
		}
	}
	found, err := f.member(rankVar, sizeVar)
	if err != nil {
		return nil, err
	}
	j := newJob(vars.Store + ", " + found.Source)
	j.Rank, j.Size = unknown, 0
	_, private := s.(directories)
	open := storeConn{store: s, url: at, job: found}.open
	j.meeting = &meeting{source: "store", private: private && privateDirectories, trusted: true, again: true, dial: open, finder: f}
	return j, nil
}

// storeOf returns the Store of a URL.
func (f *finder) storeOf(url string) (Store, error) {
	scheme, _, _ := strings.Cut(url, ":")
	all := append([]Store{directories{}}, f.stores...)
	if i := slices.IndexFunc(all, func(s Store) bool { return s.Scheme() == scheme }); i >= 0 {
		return all[i], nil
	}
	if scheme == "etcd" {
		return nil, badVariable(unknown, vars.Store, url, "names a store that this program does not link",
			"import github.com/tutti-go/tutti/bootstrap/etcd and pass comm.WithStore(etcd.New(etcd.Config{})) to Init, or use file:///DIRECTORY")
	}
	return nil, badVariable(unknown, vars.Store, url, "is not file:///DIRECTORY", "give a directory that all hosts of the job share, or pass the store of this URL by comm.WithStore")
}

// A storeConn is a rank's part in a job that meets in a Store.
type storeConn struct {
	store   Store
	url     string
	job     *Job // rank, size, local rank, name and incarnation
	entries Entries
}

// open opens the entries of the job.
func (s storeConn) open(ctx context.Context) (_ launcherStore, err error) {
	s.entries, err = s.store.Open(ctx, s.url, s.name(), s.job.Rank, s.job.Size)
	if err != nil {
		return nil, s.refused(ctx, err)
	}
	return s, nil
}

// name returns the name of the job and its incarnation.
func (s storeConn) name() string { return s.job.Name + "." + itoa(int(s.job.Incarnation)) }

// refused returns the error of a store in which the ranks cannot meet. After the end of ctx it
// returns err itself, because the caller makes a Timeout of it.
func (s storeConn) refused(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	return refuse(s.job.Rank, "%s: %w", vars.Store, err)
}

// Layout implements launcherStore.
func (s storeConn) Layout() (rank, size, localRank, localSize int) {
	return s.job.Rank, s.job.Size, s.job.LocalRank, s.job.LocalSize
}

// Exchange implements launcherStore. It closes the entries, because nothing needs them later.
func (s storeConn) Exchange(ctx context.Context, value string) (string, error) {
	defer s.entries.Close()
	x := newExchange(fmt.Sprintf("job %s in %s", s.name(), s.url), s.job.Rank, s.job.Size, value)
	got, err := x.run(ctx, s.entries)
	if err != nil {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeLimit)
		defer cancel()
		x.withdraw(limited, s.entries)
		err = s.refused(ctx, err)
	}
	return got, err
}

// removeLimit bounds the removal of this rank's text after an error. The limit may be short,
// because a text that is not removed does not mislead the next job.
const removeLimit = 5 * time.Second

// Close implements launcherStore.
func (s storeConn) Close() error { return s.entries.Close() }
