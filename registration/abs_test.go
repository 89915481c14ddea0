//go:build !windows

package registration_test

const abs = "/"
