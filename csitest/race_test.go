//go:build race

package csitest

func init() { underRace = true }
