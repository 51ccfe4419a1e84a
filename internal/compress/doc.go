// Package compress encodes vectors in fewer bytes, for the coordinator and for parameter servers: as
// 16-bit floats, or as the elements of the largest magnitude. It does not know who adds up what it
// leaves out.
package compress
