//go:build !linux

package nodeops

import (
	"context"
	"errors"

	"github.com/csikit/csikit/internal/mountapi"
	"k8s.io/utils/exec"
)

func newRunner() exec.Interface { return exec.New() }

func (n *Node) stageFilesystem(context.Context, StageFilesystemRequest, resolvedPath, mountapi.Options) error {
	return errors.ErrUnsupported
}
func (n *Node) stageBlock(context.Context, Device) error { return errors.ErrUnsupported }
func (n *Node) unstage(context.Context, UnstageRequest, resolvedPath) error {
	return errors.ErrUnsupported
}
func (n *Node) publishFilesystem(context.Context, PublishFilesystemRequest, resolvedPath, mountapi.Attr) error {
	return errors.ErrUnsupported
}
func (n *Node) publishBlock(context.Context, PublishBlockRequest, resolvedPath) error {
	return errors.ErrUnsupported
}
func (n *Node) publishShare(context.Context, share, resolvedPath) error { return errors.ErrUnsupported }
func (n *Node) unpublish(context.Context, resolvedPath) error           { return errors.ErrUnsupported }
func (n *Node) expand(context.Context, ExpandRequest, resolvedPath) (int64, error) {
	return 0, errors.ErrUnsupported
}
func (n *Node) stats(resolvedPath) (Stats, error)      { return Stats{}, errors.ErrUnsupported }
func (n *Node) mountedDevice(Device) ([]string, error) { return nil, errors.ErrUnsupported }
func deviceAt(string) (MountedDevice, error)           { return MountedDevice{}, errors.ErrUnsupported }
func unmountWith(UnmountPolicy, string) error          { return errors.ErrUnsupported }
func corrupted(string) error                           { return nil }
func (n *Node) releasedDevice(Device) error            { return errors.ErrUnsupported }
func (n *Node) holders(Device) ([]Holder, error)       { return nil, errors.ErrUnsupported }
