// Command bench measures csikit beside what drivers use today, on the machine that it runs on:
//
//	make bench                  # everything, at most 10 minutes: bench/RESULTS.md and plots
//	make bench BENCH=publish    # one part
//	make bench-check            # the short form, against the floors in bench/floors.json
//
// All figures are ratios within one run: the programs and functions that are compared take turns
// in rounds, and each ratio is the median of those of the rounds. It needs root, on Linux, and
// mounts in mount namespaces of its own alone.
//
// It is a module of its own so that the packages that it compares with reach no importer.
package main
