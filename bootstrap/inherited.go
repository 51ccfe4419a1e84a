package bootstrap

import (
	"fmt"
	"os"
	"sync"

	"github.com/tutti-go/tutti/internal/jobca"
	"github.com/tutti-go/tutti/internal/vars"
)

// A proof is what a rank has of its job's secret, from one source.
//
//	source                           secret  credentials
//	TUTTI_SECRET_FD                  set     set
//	TUTTI_SECRET, TUTTI_SECRET_FILE  set     nil
//	none                             nil     nil
type proof struct {
	secret      []byte
	credentials *jobca.Credentials
}

// inherited is what Find has removed from where children would inherit it. It is a variable of the
// package, because the environment and the descriptors belong to the whole process.
var inherited keeper

// A keeper keeps a secret for a later Find, which takes it where its environment has none.
type keeper struct {
	mu     sync.Mutex // guards the rest
	secret []byte     // from TUTTI_SECRET
	bundle *jobca.Bundle
}

// proof reads the secret from the first source that is set: TUTTI_SECRET_FD, TUTTI_SECRET_FILE,
// TUTTI_SECRET, or else what an earlier Find has kept.
//
// If the finder reads this process's own environment, proof removes the descriptor and the variable,
// so that no child inherits them, and keeps what it has read.
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

// bundle reads what the launcher has put behind TUTTI_SECRET_FD, or what k has of it for this rank.
// ok is false if there is neither.
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
	// The variables of one job and the descriptor of another one do not fit together.
	if got := b.Credentials.Name(); got != name {
		return proof{}, false, badVariable(j.Rank, vars.SecretFD, itoa(fd), fmt.Sprintf("holds the credentials of %v, not of %v", got, name), remedy)
	}
	if f.own {
		k.bundle = b
		markRead(fd)
		closeFD(fd)
		os.Unsetenv(vars.SecretFD)
		os.Unsetenv(vars.Secret) // not used, and perhaps another job's
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

// Credentials returns what this rank proves its identity with under the job's CA: what the launcher
// has given it, or else what follows from the secret. It is nil for a job without a secret.
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
