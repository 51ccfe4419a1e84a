// Package assign decides which servers hold which parts: when tensors are declared, and after the
// set of members has changed.
//
// It is pure: the result depends on the arguments only, so all ranks that know the same parts and
// the same members compute the same result. The order of members and parts does not matter. The
// package does not know tensors, values, connections or epochs. Package ps carries out the plans.
//
// # Shares
//
// A host that works has less of its network left for serving than a host that only serves. For n
// hosts with workers, and k hosts that only serve, BytePS (Jiang et al., OSDI 2020) derives the
// shares with which all hosts send and receive equally many bytes:
//
//	a host that only serves   2(n-1) / (n²+kn-2k)
//	a host with workers       (n-k) / (n²+kn-2k)
//
// If k >= n, each host that only serves has the share 1/k, and the hosts with workers have none. The
// servers of a host have equal parts of its share. If hosts with workers do not serve, the others
// have their shares in proportion. If all ranks are on one host, each rank counts as a host.
//
// # Copies
//
// Each part has a primary, which answers clients, and r-1 replicas. The copies of a part are on
// different servers, and on different hosts if there are enough hosts. If there are fewer than r
// servers, each server has a copy.
//
// # After a change of members
//
// NewPlan keeps copies on their servers. It takes these steps:
//
//  1. A part that no server holds is lost. It is never created again.
//  2. If the primary of a part is gone, the copy with the highest index of its log is promoted.
//  3. If copies are missing, or have a lower index than the primary, the part is transferred again.
//  4. Copies move to the servers that were added, until these have their shares.
//
// Step 4 is the only step that moves a copy. If no server was added, all copies stay.
package assign
