package remote

import (
	"encoding/json"
	"syscall"

	"github.com/tutti-go/tutti/internal/cpu"
)

// A Command is a message from the launcher to a host. Exactly one field is set; a Command without a
// field is a heartbeat.
type Command struct {
	Prepare *Prepare `json:",omitempty"`
	Start   *Start   `json:",omitempty"`
	Signal  *Signal  `json:",omitempty"`
	Exited  *Exited  `json:",omitempty"`
	Grow    *Grow    `json:",omitempty"`
	Pause   *Pause   `json:",omitempty"` // this package sends and handles it
}

// Prepare is the first command. The host answers with Prepared.
type Prepare struct {
	Job   string // the name by which this connection's processes are found; "" if the connection starts none
	Size  int    // the number of processes that begin
	Root  bool   // rank 0 runs here, so this host binds its listener
	Alone bool   // all ranks run here, so the listener is on loopback
	Ports string // the port or the range of ports of the listener, as in TUTTI_LISTEN; "" means any

	Programs []Preload `json:",omitempty"` // the programs that follow on the stream Programs of process 0
	TmpDir   Text      `json:",omitempty"` // where to store the programs; "" lets the host choose
}

// A Preload is a program that the launcher sends. The host answers Prepare when it has stored all
// programs.
type Preload struct {
	Name Text // the name of its file, without directories
	Size int64
	Sum  []byte // SHA-256
}

// Start starts one process. The host answers with Started or StartFailed.
type Start struct {
	Process     int // the number of the process in the job, from 0; no other process of the job ever has this number
	Args        Strings
	Dir         Text       // the working directory
	Env         Strings    // Args[0] is found by its PATH
	Credentials []byte     // what the rank reads once from its inherited file; nil means no file
	CPUs        []int      // the processors to which the process is bound; nil means all
	Streams     []StreamID // the streams that exist; a standard stream that is not listed is the null device
	Merge       bool       // standard error is the same stream as standard output
	Listener    bool       // the process inherits the root listener
	Program     int        // 1 + its index in Prepare.Programs; 0 means that the host looks up Args[0]
}

// Signal sends a signal to the process group of one process, or to all processes of the job.
type Signal struct {
	Process  int // -1: all
	Signal   syscall.Signal
	Detached bool // also signal processes that have left their groups but still have the job's name
}

// Exited names a rank that has died on another host, for the record of ended processes.
type Exited struct{ Process int }

// Grow makes room in the record of ended processes.
type Grow struct{ Size int }

// Pause says that the launcher is about to stop itself (Stopped), or that it runs again. A stopped
// launcher is silent; see Link.Pause. The host answers with Paused if Stopped is set.
type Pause struct{ Stopped bool }

// An Event is a message from a host to the launcher. Exactly one field is set; an Event without a
// field is a heartbeat.
type Event struct {
	Prepared    *Prepared    `json:",omitempty"`
	Started     *Started     `json:",omitempty"`
	StartFailed *StartFailed `json:",omitempty"`
	Init        *Init        `json:",omitempty"`
	Ended       *Ended       `json:",omitempty"`
	GroupGone   *GroupGone   `json:",omitempty"`
	Leftover    *Leftover    `json:",omitempty"`
	Empty       *Empty       `json:",omitempty"`
	Note        *Note        `json:",omitempty"`
	Paused      *Paused      `json:",omitempty"` // this package sends and handles it
}

// process returns the number of the process that the event concerns. It returns false if the event
// concerns no process.
func (e *Event) process() (int, bool) {
	switch {
	case e.Started != nil:
		return e.Started.Process, true
	case e.StartFailed != nil:
		return e.StartFailed.Process, true
	case e.Init != nil:
		return e.Init.Process, true
	case e.Ended != nil:
		return e.Ended.Process, true
	case e.GroupGone != nil:
		return e.GroupGone.Process, true
	}
	return 0, false
}

// clean makes the texts of an event printable, because they reach the user's terminal, and another
// user of the host may have chosen them. The name of a process is an example.
func (e *Event) clean() {
	switch {
	case e.Prepared != nil:
		e.Prepared.Failed = printable(e.Prepared.Failed)
	case e.StartFailed != nil:
		e.StartFailed.Text = printable(e.StartFailed.Text)
	case e.Leftover != nil:
		for i, name := range e.Leftover.Names {
			e.Leftover.Names[i] = printable(name)
		}
	case e.Note != nil:
		e.Note.Text = printable(e.Note.Text)
	}
}

// Prepared answers Prepare.
type Prepared struct {
	Host      string       // the name by which the host knows itself
	Addresses []string     // the addresses of the root listener, if Prepare.Alone
	Port      int          // the port of the root listener, or 0
	Reached   string       // the address to which ssh has connected, or ""
	CPUs      []cpu.Thread // the processors that ranks may use
	Failed    string       // why the host cannot run ranks, or ""
}

// Started reports that a process runs.
type Started struct {
	Process, PID int
	Program      Text
}

// StartFailed reports that a process could not be started.
type StartFailed struct {
	Process int
	Code    int    // the launcher's exit code: 126 or 127
	Text    string // what failed, without the host's name
}

// Init reports that a rank has read its credentials, and so has called Init.
type Init struct{ Process int }

// Ended reports the end of a process.
type Ended struct {
	Process int
	Status  uint32 // a syscall.WaitStatus
	Joined  bool   // the process that ended had joined as its rank, so the rank is dead
}

// GroupGone reports that a process has ended without Init, and its process group is empty.
type GroupGone struct{ Process int }

// Leftover names the processes of the job that are left on the host after all started processes
// have ended.
type Leftover struct{ Names Strings }

// Empty reports that no process of the job was left on the host when it had handled the given
// number of Start commands.
type Empty struct{ Starts int }

// Note is a line for the user.
type Note struct{ Text string }

// Paused answers Pause: the host now tolerates silence.
type Paused struct{}

// StreamID names a stream of a rank.
type StreamID int

// The streams of a rank. PMI and Store are connections of the rank to the launcher. Programs
// belongs to the host, not to a rank. It carries the programs of Prepare, one after the other.
const (
	Stdin StreamID = iota
	Stdout
	Stderr
	PMI
	Store
	Programs
	numStreams
)

// String returns the name of the stream.
func (id StreamID) String() string {
	if id < 0 || id >= numStreams {
		return "unknown"
	}
	return [...]string{"stdin", "stdout", "stderr", "PMI", "store", "programs"}[id]
}

// Text is a string that need not be UTF-8.
type Text string

// MarshalJSON encodes the bytes as base64.
func (t Text) MarshalJSON() ([]byte, error) { return json.Marshal([]byte(t)) }

// UnmarshalJSON decodes base64.
func (t *Text) UnmarshalJSON(data []byte) error {
	var b []byte
	err := json.Unmarshal(data, &b)
	*t = Text(b)
	return err
}

// Strings are strings that need not be UTF-8.
type Strings []string

// MarshalJSON encodes each string as base64.
func (s Strings) MarshalJSON() ([]byte, error) {
	raw := make([][]byte, len(s))
	for i := range s {
		raw[i] = []byte(s[i])
	}
	return json.Marshal(raw)
}

// UnmarshalJSON decodes a list of base64.
func (s *Strings) UnmarshalJSON(data []byte) error {
	var raw [][]byte
	err := json.Unmarshal(data, &raw)
	*s = make(Strings, len(raw))
	for i := range raw {
		(*s)[i] = string(raw[i])
	}
	return err
}
