package launch

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tutti-go/tutti/internal/cpu"
)

// One thread starts all ranks. A rank that is not bound must not inherit the binding of an earlier
// rank.
func TestBindingARankDoesNotBindTheStarter(t *testing.T) {
	affinity := func() (set unix.CPUSet) {
		if err := unix.SchedGetaffinity(0, &set); err != nil {
			t.Fatal(err)
		}
		return set
	}
	s := newStarter()
	defer s.stop()
	s.do(func() {
		before := affinity()
		one := []int{cpu.Topology()[0].ID}
		if err := cpu.WithThreads(one, func() error {
			if set := affinity(); set.Count() != 1 || !set.IsSet(one[0]) {
				t.Errorf("got %d processors within WithThreads, want processor %d", set.Count(), one[0])
			}
			return os.ErrExist
		}); err != os.ErrExist {
			t.Errorf("got %v, want the error of the function", err)
		}
		if err := cpu.WithThreads([]int{1 << 15}, func() error { t.Error("called"); return nil }); err == nil {
			t.Error("got no error for a processor that does not exist")
		}
		if after := affinity(); after != before {
			t.Errorf("got %d processors afterwards, want %d", after.Count(), before.Count())
		}
	})
}
