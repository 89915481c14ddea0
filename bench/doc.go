// Package bench measures csikit against what drivers use today, as ratios within one run:
//
//	make bench
//
// It is a module of its own so that the packages which it compares with reach no importer.
package bench
