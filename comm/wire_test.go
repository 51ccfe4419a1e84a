package comm

import "testing"

// Tuning rules must name RDMA "verbs", whichever transport sets it up.
func TestTuningRulesKnowATransportByOneName(t *testing.T) {
	for name, want := range map[string]string{
		"memory": "memory", "shm": "shm", "tcp": "tcp", "grpc": "grpc",
		"verbs": "verbs", "grpc+verbs": "verbs", "tcp+verbs": "verbs", "memory+verbs": "verbs",
		"unixsock": "other", "tcp+mine": "other", "": "other",
	} {
		if got := tuningName(name); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}
