package starved

import (
	"testing"
	"time"
)

func TestTheTimeGrantedFollowsFromTheDelay(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"no message received for 4000ms": 0,
		"no message received for 5360ms, the limit for a rank that runs 85ms late; it did not answer within 1660ms": 2720 * time.Millisecond,
	} {
		if got := Granted(text, 4*time.Second, 250*time.Millisecond); got != want {
			t.Errorf("%q: got %v, want %v", text, got, want)
		}
	}
}
