package main

import "syscall"

// free returns the free space of the file system in bytes.
func free(path string) (int64, error) {
	var st syscall.Statfs_t
	err := syscall.Statfs(path, &st)
	return int64(st.Bavail) * st.Bsize, err
}
