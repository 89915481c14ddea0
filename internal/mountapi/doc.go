// Package mountapi is the only user of the mount system calls in csikit: it
// reads the mount table and attaches, verifies and detaches mounts without
// starting a program.
//
// It needs Linux 5.12 (open_tree, move_mount and fsopen are 5.2, mount_setattr
// is 5.12) and CAP_SYS_ADMIN in the mount namespace's user namespace.
// Everywhere else the functions that would call the kernel return
// errors.ErrUnsupported; the parsers work on every system.
package mountapi
