package filepool

import (
	"os"
	"syscall"
)

// inheritOwner changes the owner of what root has created in dir to that of dir: node
// plugins are root, and the controller that shares their pool need not be.
func inheritOwner(dir *os.Root, name string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	info, err := dir.Stat(".")
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || owner.Uid == 0 {
		return nil
	}
	return dir.Lchown(name, int(owner.Uid), int(owner.Gid))
}
