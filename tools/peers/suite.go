package main

// A row is one benchmark that record runs, with the ratios that tutti should reach.
type row struct {
	op    string
	wire  string
	np    int
	bands []band
}

// suite returns the benchmarks that record runs, and the ratio that each should reach on two cores.
// A ratio is the best peer's time divided by tutti's time. README quotes measured ratios, and not
// these.
func suite() []row {
	bands := func(tiny, small, middle, large float64) []band {
		return []band{{4, tiny}, {1 << 10, small}, {64 << 10, middle}, {4 << 20, large}}
	}
	all := []row{
		{"allreduce", "shm", 2, bands(1.3, 2.0, 1.6, 3.0)},
		{"allreduce", "tcp", 2, bands(1.0, 1.5, 1.25, 1.5)},
		{"allreduce", "shm", 4, bands(0.8, 1.3, 1.3, 2.3)},
		{"allreduce", "tcp", 4, bands(1.0, 1.1, 1.0, 1.3)},
	}
	for _, op := range []string{"broadcast", "allgather", "reduce_scatter", "alltoall", "pingpong"} {
		all = append(all, row{op, "shm", 2, bands(1.0, 1.2, 1.3, 1.5)})
	}
	return all
}
