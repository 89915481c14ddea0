package nodeops

import (
	"context"
	"fmt"

	"github.com/csikit/csikit/internal/mountapi"
)

// bind attaches a copy of the mount at source to target, after check has accepted it.
func (n *Node) bind(ctx context.Context, source, target string, attr mountapi.Attr, check func(*mountapi.Tree) error) (err error) {
	_, done := n.telemetry.step(ctx, "bind")
	defer func() { done(err) }()
	tree, err := mountapi.CloneTree(source, attr)
	if err != nil {
		return fmt.Errorf("%s: %w", source, err)
	}
	defer tree.Close()
	if err := check(tree); err != nil {
		return err
	}
	return attach(ctx, tree, target)
}
