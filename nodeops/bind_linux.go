package nodeops

import (
	"context"

	"github.com/csikit/csikit/internal/mountapi"
)

// bind attaches a copy of the source's mount to target.
func (n *Node) bind(ctx context.Context, source *mountapi.Source, target *mountapi.Point, attr mountapi.Attr) (err error) {
	_, done := n.telemetry.step(ctx, "bind")
	defer func() { done(err) }()
	tree, err := source.Clone(attr)
	if err != nil {
		return err
	}
	defer tree.Close()
	return attach(ctx, tree, target)
}
