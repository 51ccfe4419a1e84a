//go:build !linux

package main

// lockable returns "", because this system has no verbs.
func lockable() string { return "" }
