package store

import "time"

// The keys of the record of a job; see the package comment.
const (
	EpochKey       = "epoch"
	AddressesKey   = "addresses"
	CredentialsKey = own + "credentials"
	ReadyKey       = own + "ready"
)

// An Epoch is the membership of a job for some time. The launcher forms an epoch when every process
// that it has not seen end asks for it. The number of an epoch is the incarnation of its ranks.
type Epoch struct {
	Number  uint32
	Members []int  // for each rank, the entry of its process in the record of ended processes
	Hosts   []int  // for each rank, the number of its host
	Root    string // the address of rank 0's listener

	// Launcher is an address of the launcher, by which a process finds out at which of its own
	// addresses other hosts reach it. It is "" while all processes run on one host. They listen on
	// loopback then.
	Launcher string

	// StartLimit is how long the members may take from the forming of the epoch to its begin.
	StartLimit time.Duration

	Broken   bool   // the process of a member has failed, or a member has asked for the next epoch
	Finished bool   // the process of a member has exited with 0
	Waiting  bool   // a process that is no member asks for the next epoch
	Failed   string // the reason why there will be no next epoch; "" if there may be one
}
