// Package autotune finds settings under which something runs faster than under those that it
// started with, by trying few of them.
//
// It is a pure decision: Ask for settings, try them, Tell how well they did. The search is a
// coordinate search (Hooke and Jeeves, "Direct search solution of numerical and statistical
// problems", Journal of the ACM 8, 1961): one setting at a time is moved by a step, up and down
// for numbers, to each other choice for choices. A gain is followed by another step the same way.
// When no step is a gain any more, steps become half as long; after the shortest the search ends.
// It finds the top of the hill that it starts on, not the highest of several.
//
// A search must not leave a job slower than it found it. So at the end what was found and the
// start are tried in turns, and the start stays unless it loses each time.
//
// A Tuner knows no clock, no coordinator and no random numbers: the same scores lead to the same
// questions.
package autotune
