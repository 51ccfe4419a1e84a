// Package spin is for loops that look at memory until another core has changed it.
package spin
