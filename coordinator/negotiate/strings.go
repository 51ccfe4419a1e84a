package negotiate

import (
	"fmt"
	"strings"
)

// Transcripts show inputs and outputs as lines of text.

// String returns "responses" and the list.
func (o SendResponses) String() string { return "responses " + o.List.String() }

// String returns "warn" and the stalled tensors.
func (o Warn) String() string {
	var lines []string
	for _, s := range o.Stalls {
		lines = append(lines, s.String())
	}
	return "warn " + strings.Join(lines, "; ")
}

// String returns text such as "#3: entry 0 is allreduce w1 float32 [4] sum; run 0".
func (d *ResponseList) String() string {
	var parts []string
	for _, e := range d.Entries {
		s := fmt.Sprintf("entry %d is %s", e.ID, e.Spec.Call())
		if e.Rows != nil {
			s += fmt.Sprintf(" rows %v", e.Rows)
		}
		if e.Transient {
			s += ", transient"
		}
		parts = append(parts, s)
	}
	for i := range d.Responses {
		parts = append(parts, d.Responses[i].String())
	}
	for _, id := range d.Evicted {
		parts = append(parts, fmt.Sprintf("evict %d", id))
	}
	return fmt.Sprintf("#%d: %s", d.Seq, strings.Join(parts, "; "))
}

// String returns text such as "run 0-3 7 part 1 of 4 without ranks [2]".
func (it *Response) String() string {
	switch it.Kind {
	case ResponseRun:
		s := "run"
		for _, r := range it.IDs {
			s += fmt.Sprintf(" %d", r.First)
			if r.Count > 1 {
				s += fmt.Sprintf("-%d", r.First+r.Count-1)
			}
		}
		return s + of(it.Part, it.Parts) + without(it.Ranks)
	case ResponseFail:
		if len(it.Ranks) > 0 {
			return fmt.Sprintf("fail %v on ranks %v: %v", it.Failed, it.Ranks, it.Err)
		}
		return fmt.Sprintf("fail %v: %v", it.Failed, it.Err)
	case ResponseJoined:
		return fmt.Sprintf("joined, rank %d last", it.Rank)
	case ResponseAddSet:
		return fmt.Sprintf("set %d is %s of ranks %v", it.ID, it.Name, it.Ranks)
	case ResponseRemoveSet:
		return fmt.Sprintf("set %d, %s, is removed", it.ID, it.Name)
	case ResponseLocate:
		return fmt.Sprintf("locate ranks %v", it.Ranks)
	case ResponseAbort:
		return fmt.Sprintf("abort: %v", it.Err)
	case ResponseTune:
		return "tune: " + it.Tuning.String()
	case ResponseShutdown:
		return "shutdown"
	}
	return fmt.Sprintf("response %d", it.Kind)
}

// of returns the text for a part of a large tensor, or "" for a whole tensor.
func of(part, parts int) string {
	if parts == 1 {
		return ""
	}
	return fmt.Sprintf(" part %d of %d", part, parts)
}

// without returns the text for absent ranks, or "" if no rank is absent.
func without(ranks []int) string {
	if len(ranks) == 0 {
		return ""
	}
	return fmt.Sprintf(" without ranks %v", ranks)
}

// String returns text such as "ack 3, cached 0 1 2, allreduce w1 float32 [4] sum, joins".
func (m *RequestList) String() string {
	parts := []string{fmt.Sprintf("ack %d", m.Ack)}
	if !m.Cached.Empty() {
		s := "cached"
		for id := range m.Cached.All {
			s += fmt.Sprintf(" %d", id)
		}
		parts = append(parts, s)
	}
	for i := range m.Requests {
		q := &m.Requests[i]
		s := q.Call()
		if q.Operation == AllGather {
			s += fmt.Sprintf(" rows %d", q.Rows)
		}
		parts = append(parts, s)
	}
	if m.Refused != nil {
		parts = append(parts, fmt.Sprintf("refuses %v: %v", m.Refused.Tensors, m.Refused.Err))
	}
	if m.More {
		parts = append(parts, "goes on")
	}
	if m.HasLocation {
		parts = append(parts, "located at "+m.Location)
	}
	if m.Join {
		parts = append(parts, "joins")
	}
	if m.Shutdown {
		parts = append(parts, "shuts down")
	}
	if m.Fault != nil {
		parts = append(parts, fmt.Sprintf("fault: %v", m.Fault))
	}
	return strings.Join(parts, ", ")
}

// String returns "send" and the list.
func (o SendRequests) String() string { return "send " + o.List.String() }

// String returns text such as "run w1 w2".
func (o Run) String() string {
	b := o.Bucket
	if b.Outside {
		return "skip"
	}
	s := "run"
	for _, r := range b.Entries {
		s += " " + r.Spec.Name
		if r.Submission == 0 {
			s += " (absent)"
		}
	}
	return s + of(b.Part, b.Parts) + without(b.Absent)
}

// String returns "fail [1 2]:" and the error.
func (o Fail) String() string { return fmt.Sprintf("fail %v: %v", o.Submissions, o.Err) }

// String returns text such as "joined, rank 2 last".
func (o JoinDone) String() string { return fmt.Sprintf("joined, rank %d last", o.Last) }

// String returns text such as "set 1 evens [0 2]".
func (o SetChanged) String() string { return fmt.Sprintf("set %d %s %v", o.ID, o.Name, o.Ranks) }

// String returns "locate".
func (Locate) String() string { return "locate" }

// String returns "end", and the error if there is one.
func (o End) String() string {
	if o.Err == nil {
		return "end"
	}
	return fmt.Sprintf("end: %v", o.Err)
}
