package flaky

import (
	"errors"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
)

func TestRuleReadsBackAsPrinted(t *testing.T) {
	for want, r := range map[string]Rule{
		"cut before 7":               Cut(Before, 7),
		"cut within 7 from 0 to 2":   Cut(Within, 7).From(0).To(2),
		"die after 3 from 1":         Die(After, 3).From(1),
		"delay 7 by 5ms":             Delay(7, 5*time.Millisecond),
		"delay 7 by 1m0s to 0":       Delay(7, time.Minute).To(0),
		"corrupt head 1":             CorruptHead(1),
		"corrupt body 12 from 3":     CorruptBody(12).From(3),
		"cut after 1000000 from -1":  Cut(After, 1000000).From(Unknown),
		"die within 1 to 0":          Die(Within, 1).To(0),
		"corrupt body 1 from 0 to 0": CorruptBody(1).From(0).To(0),
	} {
		if got := r.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if got, err := Parse(want); err != nil || got != r {
			t.Errorf("Parse(%q): got %v, %v", want, got, err)
		}
	}
}

func TestParseRefusesWhatIsNoRule(t *testing.T) {
	for _, line := range []string{
		"", "cut", "cut 7", "cut before", "cut before 0", "cut before x", "cut sideways 7", "cut before 7 from",
		"cut before 7 from x", "cut before 7 near 2", "delay 7", "delay 7 by 0s", "delay 7 by soon", "delay before 7",
		"cut before 7 by 5ms", "corrupt 7", "corrupt tail 7", "repair 7", "corrupt head 7 by 1s",
	} {
		if r, err := Parse(line); !errors.Is(err, fault.Misuse) {
			t.Errorf("Parse(%q): got %v, %v, want %v", line, r, err, fault.Misuse)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("cut within 7 from 0 to 2")
	f.Add("delay 7 by 5ms")
	f.Fuzz(func(t *testing.T, line string) {
		r, err := Parse(line)
		if err != nil {
			return
		}
		if again, err := Parse(r.String()); err != nil || again != r {
			t.Errorf("%q reads as %v, which reads as %v, %v", line, r, again, err)
		}
	})
}
