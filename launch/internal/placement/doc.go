// Package placement decides on which host, and on which processors, each rank of a job runs.
//
// A Host has a name and slots. Hosts come from lists such as n1:2,n2:2 (ParseList) and from host
// files (ParseFile). A Policy says how ranks are mapped to hosts and bound to processors. Assign
// combines hosts, programs and policy into an Assignment for each rank.
//
// Two families of launchers differ in what happens when a job has more ranks than slots. Open MPI
// refuses the job, unless the user allows more ranks. MPICH's Hydra begins again with the first
// host. For hosts a with two slots and b with one slot, and five ranks:
//
//	Refuse   an error that names the remedy
//	Allow    ranks 0, 1 and 2 on a, ranks 3 and 4 on b: numbered host by host, as Open MPI does
//	Wrap     ranks 0, 1, 3 and 4 on a, rank 2 on b: as Hydra does
//
// The package is pure: it starts nothing, and reads nothing except the io.Reader that it is given.
// It does not know how a host is reached, or whether it exists.
package placement
