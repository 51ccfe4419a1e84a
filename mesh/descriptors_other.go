//go:build !unix

package mesh

// descriptorLimit returns -1: this system has no such limit.
func descriptorLimit() int { return -1 }
