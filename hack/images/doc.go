// Package images makes the container images of the examples' drivers from their
// Dockerfiles, without Docker, root or a registry, and reproducibly: the same commit, with the
// same Go, gives the same bytes on every machine.
//
// An image on a Debian base gets, of the packages that its Dockerfile installs, the
// programs, their configuration and the shared libraries that they need. It has no shell,
// no interpreter and no package manager. The versions of the packages are in debian/.
//
// It runs the go command, apt and dpkg-deb, and changes nothing of the machine's apt or dpkg.
package images
