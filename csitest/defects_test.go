package csitest

// elsewhere has the rules whose defect needs what the reference driver is not.
var elsewhere = map[string]string{
	"node.publish.block-device": "a real block device: examples/blockdriver",
}

var defects = []defect{}
