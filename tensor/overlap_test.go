package tensor

import "testing"

func TestOverlapIsInBytesInCommon(t *testing.T) {
	b := make([]byte, 100)
	for _, c := range []struct {
		name string
		a, b []byte
		want bool
	}{
		{"one and the same", b[10:20], b[10:20], true},
		{"one beginning", b[10:20], b[10:15], true},
		{"side by side", b[10:20], b[20:30], false},
		{"apart", b[0:10], b[50:60], false},
		{"one byte", b[10:20], b[19:30], true},
		{"within", b[10:90], b[40:41], true},
		{"an empty one within", b[10:90], b[40:40], false},
		{"empty ones at one place", b[40:40], b[40:40], false},
		{"none", nil, nil, false},
	} {
		if got := Overlap(c.a, c.b); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
		if got := Overlap(c.b, c.a); got != c.want {
			t.Errorf("%s, the other way round: got %v, want %v", c.name, got, c.want)
		}
	}
}
