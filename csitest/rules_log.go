package csitest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"
)

var logRules = []Rule{
	{
		ID: "log.standard-output", Level: Should, Spec: "Logging",
		Title: "the log goes to standard output and standard error, and to no file",
		Why: "kubectl logs shows nothing of a file, no collector reads it, and it grows until the node's disk is full. What is searched for is the ID of a volume that does not exist " +
			"in files that the driver has open and in the directories of kubelet and of the socket: what it stores has no such ID.",
		Needs: needs(driverProcess),
		check: func(c *ruleRun) {
			id := c.name()
			for _, r := range rpcs {
				f := r.request().ProtoReflect().Descriptor().Fields().ByName("volume_id")
				if req := r.request(); f != nil && r.promised(c) {
					c.filled(req).ProtoReflect().Set(f, protoreflect.ValueOfString(id))
					c.invoke(r.path(), req, r.response())
				}
			}
			output := c.run.outputs()
			for _, path := range c.run.written() {
				if text, err := os.ReadFile(path); err == nil && bytes.Contains(text, []byte(id)) && !slices.Contains(output, path) {
					c.error("no log in a file", "%s", path)
				}
			}
		},
	},
}

// outputs are the files, if they are any, that standard output and standard error of the
// driver's processes were redirected to.
func (r *run) outputs() (paths []string) {
	for pid := range r.family() {
		for fd := 1; fd <= 2; fd++ {
			if path, err := os.Readlink(filepath.Join("/proc", fmt.Sprint(pid), "fd", fmt.Sprint(fd))); err == nil {
				paths = append(paths, path)
			}
		}
	}
	return paths
}
