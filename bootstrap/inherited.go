package bootstrap

import (
	"fmt"
	"os"
	"sync"

	"github.com/tutti-go/tutti/internal/jobca"
	"github.com/tutti-go/tutti/internal/vars"
)

// A proof holds a rank's secret and credentials, read from one source.
//
//	source                           secret  credentials
//	TUTTI_SECRET_FD                  set     set
//	TUTTI_SECRET, TUTTI_SECRET_FILE  set     nil
//	none                             nil     nil
type proof struct {
	secret      []byte
	credentials *jobca.Credentials
}

// inherited keeps what Find has hidden from children of this process. It is a package variable,
// because environment and descriptors belong to the whole process, too.
var inherited keeper

// A keeper keeps a secret, and the connection to the launcher, for a later Find whose environment
// has none.
type keeper struct {
	mu     sync.Mutex // guards the fields below
	secret []byte     // from TUTTI_SECRET
	bundle *jobca.Bundle

	members *membership // from TUTTI_STORE_FD

	// metBy is the name of the source by whose store a Join has completed a job, or "" before the
	// first Join. The field met is that job, or nil if Join has failed. The field store is the
	// connection.
	metBy string
	met   *Job
	store launcherStore
}

// proof reads the secret from the first source that is set: TUTTI_SECRET_FD, TUTTI_SECRET_FILE,
// TUTTI_SECRET, or else the keeper of an earlier Find.
//
// If the finder reads this process's own environment, proof closes the descriptor and removes the
// variable, so that no child inherits them. It keeps what it has read.
func (f *finder) proof(j *Job) (proof, error) {
	inherited.mu.Lock()
	defer inherited.mu.Unlock()
	if p, ok, err := f.bundle(j, &inherited); ok || err != nil {
		return p, err
	}
	secret, err := f.secret(j.Rank)
	switch {
	case err != nil || !f.own:
	case secret == nil:
		secret = inherited.secret
	case f.has(vars.Secret):
		inherited.secret = secret
		os.Unsetenv(vars.Secret)
	}
	return proof{secret: secret}, err
}

// bundle reads what the launcher has written to TUTTI_SECRET_FD, or what k has kept of it for this
// rank. If there is neither, ok is false.
func (f *finder) bundle(j *Job, k *keeper) (p proof, ok bool, err error) {
	name := jobca.NewName(j.Name, j.Incarnation, j.Rank)
	fd, set, err := f.number(j.Rank, vars.SecretFD, 3, 1<<20)
	switch {
	case err != nil:
		return proof{}, false, err
	case !set && f.own && k.bundle != nil && k.bundle.Credentials.Name() == name:
		return proof{k.bundle.Secret, k.bundle.Credentials}, true, nil
	case !set:
		return proof{}, false, nil
	}
	const remedy = "the launcher sets the variable for one process: unset it, or start the ranks with tuttirun"
	b, err := readBundle(fd)
	if err != nil {
		return proof{}, false, badVariable(j.Rank, vars.SecretFD, itoa(fd), "holds no credentials ("+err.Error()+")", remedy)
	}
	// The variables belong to one job and the descriptor to another, so they cannot be used
	// together.
	if got := b.Credentials.Name(); got != name {
		return proof{}, false, badVariable(j.Rank, vars.SecretFD, itoa(fd), fmt.Sprintf("holds the credentials of %v, not of %v", got, name), remedy)
	}
	if f.own {
		k.bundle = b
		markRead(fd)
		closeFD(fd)
		os.Unsetenv(vars.SecretFD)
		os.Unsetenv(vars.Secret) // the variable is not used, and may belong to another job
	}
	return proof{b.Secret, b.Credentials}, true, nil
}

// readBundle reads a Bundle from a descriptor.
func readBundle(fd int) (*jobca.Bundle, error) {
	text, err := readFD(fd, jobca.MaxBundle)
	if err != nil {
		return nil, err
	}
	return jobca.ParseBundle(text)
}

// Credentials returns the credentials by which this rank proves its identity under the job's CA.
// They come from the launcher, or else are derived from the secret. For a job without a secret the
// result is nil.
func (j *Job) Credentials() (*jobca.Credentials, error) {
	if j.credentials != nil || len(j.Secret) == 0 {
		return j.credentials, nil
	}
	ca, err := jobca.Derive(j.Secret, j.Name)
	if err != nil {
		return nil, err
	}
	return ca.Issue(j.Rank, j.Incarnation)
}
