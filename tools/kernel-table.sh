#!/usr/bin/env bash
# Prints how fast the kernels of package reduce are, as a table in Markdown:
# GB/s of one share, folded into the earlier one, for each level of instructions
# that this machine has and four sizes; and of the division that finishes a mean, for
# which a fold is a sum. Of two short runs the faster counts,
# because whatever else runs can only make one slower.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
: "${GO:=go}"

# One type stands for those that share its loop, or differ in an instruction.
types='int8|int32|int64|float16|bfloat16|float32|float64|complex64|complex128'
ops='sum|prod|min|logical_and|bit_and|minloc'
locs='loc\[(int8|int32|uint64|float16|float32|float64)\]'

"$GO" test ./reduce -run '^$' -benchtime 4ms -count 2 \
	-bench "^(BenchmarkFold|BenchmarkFinish)\$/./^($ops|mean)\$/^($types|$locs)\$/." |
	awk '
	/^cpu:/ { sub(/^cpu: */, ""); print "On " $0 ":\n" }
	/ns\/op/ {
		sub(/-[0-9]+$/, "", $1)
		split($1, part, "/")
		level = part[2]; row = part[3] " " part[4]; size = part[5]
		if (part[1] == "BenchmarkFinish") row = "finish " row
		if (!(row in rows)) { rows[row]; order[++n] = row }
		if (!(level in levels)) { levels[level]; column[++m] = level }
		if (!(size in sizes)) { sizes[size]; each[++k] = size }
		if ($5 / 1000 > best[row, level, size]) best[row, level, size] = $5 / 1000
	}
	END {
		if (!n) exit 1
		head = "| GB/s |"; rule = "|---|"
		for (s = 1; s <= k; s++) for (l = 1; l <= m; l++) {
			head = head " " column[l] " " each[s] " |"; rule = rule "--:|"
		}
		print head "\n" rule
		for (r = 1; r <= n; r++) {
			line = "| " order[r] " |"
			for (s = 1; s <= k; s++) for (l = 1; l <= m; l++) {
				v = best[order[r], column[l], each[s]]
				line = line (v ? sprintf(" %.1f |", v) : " |")
			}
			print line
		}
	}'
