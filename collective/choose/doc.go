// Package choose predicts the cost of algorithms, and turns measured times into the
// rules of a collective.Table.
//
// A Model holds α and β of each wire, and γ. To predict the time of an algorithm, each count of its
// Cost is multiplied by its factor, and the products are added. A TuningFile holds the results of
// `tuttibench tune` in one job: the model, the times, and the rules that follow from the times.
// Predictions are used only for explanations. Rules follow only from measured times.
//
// # From times to rules
//
// Rules turns measurements into bands of sizes. Suppose an allreduce on four ranks
// over tcp was measured as follows, in microseconds:
//
//	bytes    ring   recursive_doubling   default table
//	  1 Ki    90     60                   recursive_doubling
//	 64 Ki   400    700                   recursive_doubling
//	  1 Mi  2900   9000                   ring
//
// At 1 Ki the default table's choice is the fastest. At 64 Ki ring takes 0.57 of the time of the
// default choice. This is below MaxRatio, so ring replaces the default choice. At 1 Mi the default
// choice is ring, too. The first rule is recursive_doubling up to 8 Ki, which is the geometric mean
// of 1 and 64 Ki. The second rule is ring up to 8 Mi, because the choice of the default table
// changes at that size. The rules apply to 2 to 7 ranks. A number of ranks that was not measured
// uses the rules of the next larger number that was measured. There are no rules for twice the
// largest measured number of ranks, or more.
//
// For each band of sizes, the first rule names the fastest algorithm. The next rules name the
// fastest algorithm for calls that cannot use the first rule. For example, ring needs an operator
// that commutes, and other algorithms need shared memory. As in every collective.Table, a call
// follows the first rule that supports it.
//
// # The file
//
// A tuning file is one JSON object of at most MaxFile bytes. Unknown fields, and
// fields that occur twice, are refused.
//
//	tutti_tuning  the version of the format: 1
//	machine       where it was measured: processor, system, Go
//	commit        which tutti measured it
//	command       the command that measured it
//	taken         when it was measured, as in RFC 3339
//	gamma_us_per_MiB  the microseconds to fold a MiB
//	links         the time of a message, one entry per wire and size:
//	              wire, up_to_bytes (missing: any), alpha_us, beta_us_per_MiB;
//	              the wire "shared" is memory that ranks share
//	rules         which algorithm runs; a call follows the first rule that covers it:
//	              op, algorithm, and these where they set a limit: wire,
//	              min_ranks, max_ranks, up_to_bytes; segment, in bytes
//	times         what the rules follow from: op, algorithm, wire, ranks, bytes,
//	              segment, us
//
// The package does not use files, communicators, transports or clocks.
package choose
