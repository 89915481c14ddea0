package filepool_test

import "github.com/csikit/csikit/examples/blockdriver/filepool"

const (
	fiFreeze = filepool.FIFREEZE
	fiThaw   = filepool.FITHAW
)

var mountPool = filepool.MountPool
