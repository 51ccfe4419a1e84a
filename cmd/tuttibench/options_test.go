package main

import (
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/tensor"
)

func TestSizesAreReadWithAndWithoutSuffix(t *testing.T) {
	for text, want := range map[string]int{
		"4": 4, "0": 0, "100B": 100, "4Ki": 4 << 10, "64Mi": 64 << 20, "1GiB": 1 << 30,
		"": -1, "Mi": -1, "4M": -1, "4mi": -1, "-4": -1, "1.5Ki": -1, "9223372036854775807Gi": -1, "9999999999999999999": -1,
	} {
		s := sizeFlag(-1)
		if err := s.Set(text); (err == nil) != (want >= 0) {
			t.Errorf("%q: got error %v", text, err)
		}
		if int(s) != want {
			t.Errorf("%q: got %d, want %d", text, s, want)
		}
	}
}

func TestFlagsThatMakeNoSenseAreRefused(t *testing.T) {
	for _, args := range []string{
		"-op sum", "-op allreduce more", "-dtype bool", "-dtype float31", "-min 0", "-min 8 -max 4", "-factor 1",
		"-time -1s", "-format xml", "-local -1", "-op pingpong -algorithm ring", "-op barrier -plot x.svg", "-max 64M", "-nonsense",
		"-servers 1", "-op pushpull -servers -1", "-op pushpull -dtype int8", "-op sparse -plot x.svg", "-op sparse -rows 0", "-op sparse -width 0",
		"-op sparse -indices 0",
		"-op coordinator -model gpt", "-op coordinator -dtype int8", "-op coordinator -algorithm ring",
	} {
		if _, err := parseFlags(strings.Fields(args), io.Discard); err == nil {
			t.Errorf("%s: got no error", args)
		}
	}
	o, err := parseFlags(nil, io.Discard)
	if err != nil || o.op != "allreduce" || o.dtype != tensor.Float32 || o.min != 4 || o.max != 64<<20 || o.factor != 4 || o.format != "table" {
		t.Errorf("got the defaults %+v, error %v", o, err)
	}
}

func TestSweepsRoundDownToWholeChunks(t *testing.T) {
	for _, tc := range []struct {
		args  string
		ranks int
		want  []int // elements
	}{
		{"-max 64Mi", 4, []int{1, 4, 16, 64, 256, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24}},
		{"-max 1000", 4, []int{1, 4, 16, 64}},
		{"-min 1 -max 1", 4, []int{1}},
		{"-min 100 -max 900 -factor 3", 2, []int{25, 75, 225}},
		{"-dtype float64 -max 64", 4, []int{1, 2, 8}},
		{"-op alltoall -max 256", 3, []int{3, 15, 63}},
		{"-op allgather -max 64", 4, []int{4, 16}},
		{"-op reduce_scatter -dtype uint8 -max 64", 5, []int{5, 15, 60}},
		{"-op barrier", 4, []int{1}},
	} {
		o, err := parseFlags(strings.Fields(tc.args), io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		if got := o.counts(tc.ranks); !slices.Equal(got, tc.want) {
			t.Errorf("%s on %d ranks: got %v, want %v", tc.args, tc.ranks, got, tc.want)
		}
	}
}

func TestTheLargestSizesDoNotOverflow(t *testing.T) {
	o := options{op: "allreduce", dtype: tensor.Int8, min: 1 << 60, max: sizeFlag(^uint(0) >> 1), factor: 1 << 40}
	if got := o.counts(2); len(got) != 1 {
		t.Errorf("got %v, want the smallest size alone", got)
	}
}
