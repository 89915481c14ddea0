package filepool

const (
	FIFREEZE = fiFreeze
	FITHAW   = fiThaw
)

var (
	MountPool       = mountPool
	BreakFilesystem = breakFilesystem
)
