package tensor

import (
	"flag"
	"math"
	"testing"
)

var all = flag.Bool("all", false, "narrow every float32, not one in 641: minutes")

// A shortFormat is a short float format as the standard describes it. The tests compute with it
// in float64, without bit tricks.
type shortFormat struct {
	name     string
	expBits  int
	fracBits int
	nan      uint16
	widen    func(uint16) float32
	narrow   func(float32) uint16
}

func shortFormats() []shortFormat {
	return []shortFormat{
		{
			"float16", 5, 10, 0x7e00,
			func(u uint16) float32 { return Float16FromBits(u).Float32() },
			func(f float32) uint16 { return Float16From(f).Bits() },
		},
		{
			"bfloat16", 8, 7, 0x7fc0,
			func(u uint16) float32 { return BFloat16FromBits(u).Float32() },
			func(f float32) uint16 { return BFloat16From(f).Bits() },
		},
	}
}

func (s shortFormat) infinity() uint16 { return uint16(1<<s.expBits-1) << s.fracBits }
func (s shortFormat) bias() int        { return 1<<(s.expBits-1) - 1 }

// value returns the number that u encodes, according to the definition of the format.
func (s shortFormat) value(u uint16) float64 {
	sign := 1.0
	if u&0x8000 != 0 {
		sign = -1
	}
	exp := int(u&0x7fff) >> s.fracBits
	frac := float64(u & (1<<s.fracBits - 1))
	switch {
	case exp == 1<<s.expBits-1 && frac != 0:
		return math.NaN()
	case exp == 1<<s.expBits-1:
		return math.Inf(int(sign))
	case exp == 0:
		return math.Copysign(math.Ldexp(frac, 1-s.bias()-s.fracBits), sign)
	}
	return sign * math.Ldexp(frac+float64(int(1)<<s.fracBits), exp-s.bias()-s.fracBits)
}

// exponent returns the exponent that the format uses for a number near x.
func (s shortFormat) exponent(x float64) int {
	if x == 0 {
		return 1 - s.bias()
	}
	_, exp := math.Frexp(x) // x is in [2^(exp-1), 2^exp)
	return max(exp-1, 1-s.bias())
}

// nearest returns the encoding of the number nearest to f, according to the definition of rounding.
func (s shortFormat) nearest(f float32) uint16 {
	x := math.Abs(float64(f))
	var sign uint16
	if math.Signbit(float64(f)) {
		sign = 0x8000
	}
	if x != x {
		return s.nan
	}
	unit := s.exponent(x) - s.fracBits
	rounded := math.Ldexp(math.RoundToEven(math.Ldexp(x, -unit)), unit)
	if largest := s.value(s.infinity() - 1); rounded > largest {
		return sign | s.infinity()
	}
	exp := s.exponent(rounded)
	// count is the number of units, including the leading one.
	count := uint16(math.Ldexp(rounded, s.fracBits-exp))
	return sign | (uint16(exp+s.bias()-1)<<s.fracBits + count)
}

func TestWideningEveryShortFloatIsExact(t *testing.T) {
	for _, s := range shortFormats() {
		for u := range 1 << 16 {
			got, want := s.widen(uint16(u)), s.value(uint16(u))
			if math.IsNaN(want) {
				if got == got {
					t.Errorf("%s %#04x widens to %v, want NaN", s.name, u, got)
				}
				continue
			}
			if float64(got) != want || math.Signbit(float64(got)) != math.Signbit(want) {
				t.Errorf("%s %#04x widens to %v, want %v", s.name, u, got, want)
			}
		}
	}
}

func TestEveryShortFloatComesBack(t *testing.T) {
	for _, s := range shortFormats() {
		for u := range 1 << 16 {
			want := uint16(u)
			if want&0x7fff > s.infinity() {
				want = s.nan
			}
			if got := s.narrow(s.widen(uint16(u))); got != want {
				t.Errorf("%s %#04x comes back as %#04x, want %#04x", s.name, u, got, want)
			}
		}
	}
}

// Between any two neighbours there is one point at which the rounding changes. This test checks all
// such points: from below, at the tie, and from above.
func TestNarrowingTurnsHalfWayBetweenNeighboursAndTiesToEven(t *testing.T) {
	for _, s := range shortFormats() {
		for low := range s.infinity() {
			high := low + 1
			above := s.value(high)
			if high == s.infinity() {
				above = math.Ldexp(1, s.bias()+1) // the next number, if the range were larger
			}
			tie := float32((s.value(low) + above) / 2) // exact in float32
			even := low + low&1
			for _, c := range []struct {
				f    float32
				want uint16
			}{
				{math.Nextafter32(tie, 0), low},
				{tie, even},
				{math.Nextafter32(tie, math.MaxFloat32), high},
			} {
				if got := s.narrow(c.f); got != c.want {
					t.Fatalf("%s of %v is %#04x, want %#04x", s.name, c.f, got, c.want)
				}
				if got := s.narrow(-c.f); got != c.want|0x8000 {
					t.Fatalf("%s of %v is %#04x, want %#04x", s.name, -c.f, got, c.want|0x8000)
				}
			}
		}
	}
}

func TestNarrowingIsTheNearest(t *testing.T) {
	step := uint64(641) // a prime that divides 2^32+1, so no bit pattern is favoured
	if *all {
		step = 1
	}
	for _, s := range shortFormats() {
		for u := uint64(0); u < 1<<32; u += step {
			f := math.Float32frombits(uint32(u))
			if got, want := s.narrow(f), s.nearest(f); got != want {
				t.Fatalf("%s of %v (%#08x) is %#04x, want %#04x", s.name, f, u, got, want)
			}
		}
	}
}

func TestNarrowingSpecials(t *testing.T) {
	inf := float32(math.Inf(1))
	for _, c := range []struct {
		f         float32
		half, big uint16
	}{
		{0, 0, 0},
		{float32(math.Copysign(0, -1)), 0x8000, 0x8000},
		{1, 0x3c00, 0x3f80},
		{-2, 0xc000, 0xc000},
		{inf, 0x7c00, 0x7f80},
		{-inf, 0xfc00, 0xff80},
		{math.MaxFloat32, 0x7c00, 0x7f80},
		{-math.MaxFloat32, 0xfc00, 0xff80},
		{65504, 0x7bff, 0x4780},
		{65519.996, 0x7bff, 0x4780},
		{65520, 0x7c00, 0x4780},
		{0x1p-24, 1, 0x3380},
		{0x1p-25, 0, 0x3300},
		{0x1.8p-25, 1, 0x3340},
		{math.SmallestNonzeroFloat32, 0, 0},
		{0x1p-133, 0, 1},
		{math.Float32frombits(0x7f800001), 0x7e00, 0x7fc0},
		{math.Float32frombits(0xffffffff), 0x7e00, 0x7fc0},
	} {
		if got := Float16From(c.f).Bits(); got != c.half {
			t.Errorf("float16 of %v is %#04x, want %#04x", c.f, got, c.half)
		}
		if got := BFloat16From(c.f).Bits(); got != c.big {
			t.Errorf("bfloat16 of %v is %#04x, want %#04x", c.f, got, c.big)
		}
	}
}

func TestShortFloatsPrintAsNumbers(t *testing.T) {
	if got, want := Float16From(0.5).String()+" "+BFloat16From(-3).String(), "0.5 -3"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func BenchmarkNarrow(b *testing.B) {
	in := make([]float32, 1024)
	for i := range in {
		in[i] = float32(i) * 0.37
	}
	b.Run("float16", func(b *testing.B) {
		out := make([]Float16, len(in))
		for b.Loop() {
			for i, f := range in {
				out[i] = Float16From(f)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(in)), "ns/elem")
	})
	b.Run("bfloat16", func(b *testing.B) {
		out := make([]BFloat16, len(in))
		for b.Loop() {
			for i, f := range in {
				out[i] = BFloat16From(f)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(in)), "ns/elem")
	})
}
