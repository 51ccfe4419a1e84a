package doctor

import (
	"net/netip"
	"time"
)

// An Examination is the result of Examine. Its JSON form is stable, for users' programs.
type Examination struct {
	Hosts  []*HostReport `json:"hosts"`
	Pairs  []*Pair       `json:"pairs"`
	Notes  []string      `json:"notes,omitempty"`
	Faults []Finding     `json:"faults"`
}

// A HostReport is what the doctor knows of one host.
type HostReport struct {
	Name     string `json:"name"`                // as the user gave it
	LookedUp string `json:"looked_up,omitempty"` // the name by which other hosts look it up; "" if they cannot
	Slots    int    `json:"slots"`               // how many ranks it is meant to have; 0: one per core
	Stage    string `json:"stage,omitempty"`     // what has failed, if Error is set
	Error    string `json:"error,omitempty"`

	Facts     *Facts     `json:"facts,omitempty"`     // nil if the probe has not answered
	Clock     *Clock     `json:"clock,omitempty"`     // nil if not compared
	Listening *Listening `json:"listening,omitempty"` // nil if the probe has no listener
}

// The stages of an examination of a host.
const (
	stageStart   = "start"
	stageFacts   = "facts"
	stageClock   = "clock"
	stageListen  = "listen"
	stageDial    = "dial"
	stageMeasure = "measure"
)

// A Clock compares a host's clock with the doctor's.
type Clock struct {
	Offset time.Duration `json:"offset_ns"` // positive if the host's clock is ahead
	Within time.Duration `json:"within_ns"` // how wrong Offset may be
}

// Facts are what a probe reports of its host. What the system does not report is nil or empty.
type Facts struct {
	Hostname   string      `json:"hostname"`
	Version    string      `json:"version"` // the version of tuttirun
	Commit     string      `json:"commit"`
	Platform   string      `json:"platform"`
	Interfaces []Interface `json:"interfaces"`
	Lookups    []Lookup    `json:"lookups"`

	LockedMemory *int64 `json:"locked_memory,omitempty"` // in bytes; -1: unlimited
	OpenFiles    *int64 `json:"open_files,omitempty"`    // -1: unlimited
	Shm          *Shm   `json:"shm,omitempty"`

	OnlineCores int        `json:"online_cores"`           // how many cores of the host are online
	UsableCores []int      `json:"usable_cores,omitempty"` // the cores that the affinity of the probe allows
	Quota       float64    `json:"quota,omitempty"`        // processors by the control groups' quota; 0: none
	Devices     []RDMAPort `json:"devices,omitempty"`
}

// An Interface is a network interface that is up.
type Interface struct {
	Name     string         `json:"name"`
	MTU      int            `json:"mtu"`
	Speed    int            `json:"speed_mbps,omitempty"` // 0: not known
	Prefixes []netip.Prefix `json:"addresses"`            // without link-local addresses of IPv6
}

// A Lookup is what a host finds for a name.
type Lookup struct {
	Name  string       `json:"name"`
	Addrs []netip.Addr `json:"addresses,omitempty"`
	Error string       `json:"error,omitempty"`
}

// Shm is the state of /dev/shm.
type Shm struct {
	Error string `json:"error,omitempty"` // why no file can be made there
	Size  int64  `json:"size"`            // in bytes
	Free  int64  `json:"free"`
}

// A RDMAPort is a port of an RDMA device.
type RDMAPort struct {
	Name    string   `json:"name"`
	Port    int      `json:"port"`
	State   string   `json:"state"` // as the kernel prints it, without its number
	Rate    string   `json:"rate"`  // the same
	Network string   `json:"layer"` // Ethernet or InfiniBand
	GIDs    []string `json:"gids"`  // index, address and type
}

// Listening says where other hosts can dial the listener of a probe, and so the listener of a rank
// on this host.
type Listening struct {
	Address   string `json:"address"` // host:port for the other hosts
	Interface string `json:"interface,omitempty"`
	MTU       int    `json:"mtu,omitempty"`
	Speed     int    `json:"speed_mbps,omitempty"`
	Why       string `json:"why"` // why this interface
}

// A Pair is what one host finds when it dials another.
type Pair struct {
	From    string `json:"from"`
	To      string `json:"to"`
	Address string `json:"address"` // that From has dialled
	Trouble string `json:"trouble,omitempty"`
	Error   string `json:"error,omitempty"`

	PathMTU   int           `json:"path_mtu,omitempty"`
	Latency   time.Duration `json:"latency_ns,omitempty"`            // half of a round trip, the median; 0: not measured
	Bandwidth float64       `json:"bandwidth_bytes_per_s,omitempty"` // 0: not measured
	Speed     int           `json:"speed_mbps,omitempty"`            // that of the slower interface; 0: not known
}

// The troubles of a Pair, in the order in which a dialling host can meet them.
const (
	troubleLookup  = "lookup"  // the name has no address
	troubleRoute   = "route"   // there is no route, or the host does not answer in its network
	troubleDenied  = "denied"  // this host does not let the connection out
	troubleRefused = "refused" // the host answers that nobody listens
	troubleSilent  = "silent"  // nothing answers
	troubleOther   = "other"   // something else listens there, or ends the connection
	troubleLarge   = "large"   // small packets get through, and large ones do not
)

// A Finding is something that keeps ranks from running, or from running well.
type Finding struct {
	Kind   string `json:"kind"`
	Host   string `json:"host"`
	Peer   string `json:"peer,omitempty"`
	What   string `json:"what"`
	Remedy string `json:"remedy"`
}
