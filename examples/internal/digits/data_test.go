package digits

import (
	"slices"
	"strings"
	"testing"
)

// mustLoad returns the real data.
func mustLoad(t *testing.T) Images {
	t.Helper()
	all, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestLoadReadsAllImages(t *testing.T) {
	all := mustLoad(t)
	if got, want := all.Len(), 1797; got != want {
		t.Errorf("got %d images, want %d", got, want)
	}
	if got, want := all.images.At(0, 2), 5.0/16; got != want {
		t.Errorf("third pixel is %v, want %v", got, want)
	}
	if got, want := all.Digits[:10], []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}; !slices.Equal(got, want) {
		t.Errorf("first digits are %v, want %v", got, want)
	}
}

func TestParseRefusesMalformedRows(t *testing.T) {
	row := func(digit string, pixel string) string {
		return strings.Repeat(pixel+",", Pixels) + digit + "\n"
	}
	for name, text := range map[string]string{
		"empty":           "",
		"short":           "1,2,3\n",
		"digit too large": row("10", "0"),
		"pixel too large": row("9", "17"),
		"negative":        row("9", "-1"),
		"no number":       row("x", "0"),
	} {
		if _, err := parse(strings.NewReader(text)); err == nil {
			t.Errorf("%s: got no error", name)
		}
	}
	if s, err := parse(strings.NewReader(row("9", "16"))); err != nil || s.Len() != 1 {
		t.Errorf("a good row: got %d images and %v", s.Len(), err)
	}
}

func TestSplitIsStratifiedAndDisjoint(t *testing.T) {
	all := mustLoad(t)
	train, test := Split(all.Digits, 1)

	rows := slices.Sorted(slices.Values(append(slices.Clone(train), test...)))
	for i, row := range rows {
		if i != row {
			t.Fatalf("row %d is in neither part, or in both", i)
		}
	}
	if len(rows) != all.Len() {
		t.Errorf("got %d rows in both parts, want %d", len(rows), all.Len())
	}
	for digit := range Classes {
		count := func(of []int) (n int) {
			for _, row := range of {
				if all.Digits[row] == digit {
					n++
				}
			}
			return n
		}
		tested, trained := count(test), count(train)
		if off := 5*tested - (tested + trained); off < -2 || off > 2 {
			t.Errorf("digit %d: %d images of %d are tested with, want a fifth", digit, tested, tested+trained)
		}
	}
}

func TestSplitIsFixedByTheSeed(t *testing.T) {
	all := mustLoad(t)
	train, test := Split(all.Digits, 1)
	again, testAgain := Split(all.Digits, 1)
	if !slices.Equal(train, again) || !slices.Equal(test, testAgain) {
		t.Error("the same seed gave another split")
	}
	if _, other := Split(all.Digits, 2); slices.Equal(test, other) {
		t.Error("another seed gave the same split")
	}
	// These rows were printed once. If the choice of rows changed, accuracies could not be compared
	// with earlier accuracies.
	if got, want := test[:5], []int{1703, 676, 140, 724, 571}; !slices.Equal(got, want) {
		t.Errorf("the first test rows are %v, want %v", got, want)
	}
}

func TestBatchesDealEachRowOnce(t *testing.T) {
	for _, c := range []struct{ rows, size int }{{1, 1}, {7, 3}, {9, 3}, {3, 9}, {1438, 50}} {
		var all []int
		for i, b := range Batches(c.rows, c.size, 1, 0) {
			if len(b) != c.size && i != (c.rows-1)/c.size {
				t.Errorf("%v: batch %d has %d rows", c, i, len(b))
			}
			all = append(all, b...)
		}
		slices.Sort(all)
		if len(all) != c.rows || all[0] != 0 || all[c.rows-1] != c.rows-1 || len(slices.Compact(all)) != c.rows {
			t.Errorf("%v: the batches do not hold each row once", c)
		}
	}
	if slices.Equal(Batches(50, 50, 1, 0)[0], Batches(50, 50, 1, 1)[0]) {
		t.Error("two epochs have the same order")
	}
}

func TestSharesPartitionTheBatchEvenly(t *testing.T) {
	for size := 1; size <= 9; size++ {
		for rows := range 21 {
			batch := Batches(rows+1, rows+1, 1, 0)[0][:rows]
			var joined []int
			for rank := range size {
				part := Share(batch, rank, size)
				if len(part) < rows/size || len(part) > (rows+size-1)/size {
					t.Errorf("%d rows, rank %d of %d: got %d rows", rows, rank, size, len(part))
				}
				joined = append(joined, part...)
			}
			if !slices.Equal(joined, batch) {
				t.Errorf("%d rows on %d ranks: got %v, want %v", rows, size, joined, batch)
			}
		}
	}
}
