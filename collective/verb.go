package collective

import "strings"

// A Verb is a collective operation. Its numbers are part of the wire format and never change.
type Verb uint8

// The collective operations. The verbs that end in V have a count per rank.
const (
	VerbAllReduce      Verb = 1
	VerbReduce         Verb = 2
	VerbBroadcast      Verb = 3
	VerbAllGather      Verb = 4
	VerbAllGatherV     Verb = 5
	VerbGather         Verb = 6
	VerbGatherV        Verb = 7
	VerbScatter        Verb = 8
	VerbScatterV       Verb = 9
	VerbReduceScatter  Verb = 10
	VerbReduceScatterV Verb = 11
	VerbAllToAll       Verb = 12
	VerbAllToAllV      Verb = 13
	VerbBarrier        Verb = 14
	VerbScan           Verb = 15
	VerbExScan         Verb = 16
)

// verbNames are the names of the verbs in programs, tables and TUTTI_ALGORITHM.
var verbNames = [...]string{
	VerbAllReduce:      "allreduce",
	VerbReduce:         "reduce",
	VerbBroadcast:      "broadcast",
	VerbAllGather:      "allgather",
	VerbAllGatherV:     "allgatherv",
	VerbGather:         "gather",
	VerbGatherV:        "gatherv",
	VerbScatter:        "scatter",
	VerbScatterV:       "scatterv",
	VerbReduceScatter:  "reduce_scatter",
	VerbReduceScatterV: "reduce_scatterv",
	VerbAllToAll:       "alltoall",
	VerbAllToAllV:      "alltoallv",
	VerbBarrier:        "barrier",
	VerbScan:           "scan",
	VerbExScan:         "exscan",
}

// Verbs lists every collective operation in the order of their numbers.
func Verbs() []Verb {
	var all []Verb
	for v := range verbNames {
		if v != 0 {
			all = append(all, Verb(v))
		}
	}
	return all
}

// String returns the verb's name, such as "reduce_scatter", or "" for an unknown Verb.
func (v Verb) String() string {
	if int(v) >= len(verbNames) {
		return ""
	}
	return verbNames[v]
}

// ParseVerb parses a name that String returns. For an unknown name it returns fault.Misuse.
func ParseVerb(name string) (Verb, error) {
	for _, v := range Verbs() {
		if v.String() == name {
			return v, nil
		}
	}
	return 0, misuse("collective.ParseVerb", "collective: got %q, want one of %s", name, strings.Join(verbNames[1:], ", "))
}
