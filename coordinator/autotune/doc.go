// Package autotune searches for settings with which a job runs faster than with its initial
// settings. It tries only a few settings.
//
// The package only makes decisions. The caller gets settings from Ask, tries them, and passes the
// measured score to Observe. The search is a coordinate search (Hooke and Jeeves, "Direct search
// solution of numerical and statistical problems", Journal of the ACM 8, 1961): it changes one
// setting at a time. A number is moved up and down by a step. A setting with choices is changed to
// each other choice. After a gain, the search makes another step in the same direction. When no
// step is a gain, steps become half as long. The search ends when the shortest steps give no gain.
// It finds a local maximum, which may differ from the global maximum.
//
// A search must not make a job slower. So at the end the best settings and the initial settings are
// tried in turns. The initial settings stay unless they lose every comparison.
//
// A Tuner uses no clock, no coordinator and no random numbers, so the same scores always lead to
// the same candidates.
package autotune
