//go:build !linux

package main

// lockable has nothing to say where there are no verbs.
func lockable() string { return "" }
