// Package autotune finds the settings under which something runs fastest, by
// trying few of them.
//
// It is a pure decision: Ask for settings, try them, Tell how well they did. The
// scores tried so far are taken for samples of a Gaussian process, which says of
// every other point how well it may do and how little is known of it; the next one
// to be tried is that of the greatest expected improvement. When nothing is
// expected to improve by much any more, or enough has been tried, the Tuner is
// settled, and always answers with the best.
//
// A Tuner knows no clock and no coordinator, and draws its random numbers from a
// seed: the same scores lead to the same questions. The cost of Ask is some
// milliseconds with the samples of the default options.
//
// Sources: Mockus, Tiesis and Zilinskas, "The application of Bayesian methods for
// seeking the extremum", 1978, for the expected improvement; Rasmussen and
// Williams, "Gaussian Processes for Machine Learning", MIT Press 2006, algorithm
// 2.1 for the process and chapter 4 for its Matérn kernel; Snoek, Larochelle and
// Adams, "Practical Bayesian Optimization of Machine Learning Algorithms", NeurIPS
// 2012. Horovod's parameter manager does the same for the same settings.
package autotune
