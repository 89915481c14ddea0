//go:build race

package volumelock_test

func init() { raceDetector = true }
