package csitest

import (
	"context"
	"os/exec"
	"time"
)

// A Target is the driver to check.
type Target struct {
	// Endpoint is where the driver serves: unix:///path/csi.sock, or any target of
	// grpc. With ControllerEndpoint it is that of the node plugin.
	Endpoint string
	// ControllerEndpoint is where the controller plugin serves, if that is another
	// process.
	ControllerEndpoint string
	// Start returns the command that runs the driver. It is called for every start,
	// and its output is read, unless Stdout and Stderr are set; the process is
	// killed with -9 by some rules and started again. Nil if the driver is already running.
	Start func() *exec.Cmd
	// StartController returns the command that runs the controller plugin, for a
	// target with a ControllerEndpoint whose processes are both started here.
	StartController func() *exec.Cmd
	// Restart kills a driver that is already running with -9 and starts it again. It need
	// not wait until the driver is ready.
	Restart func(context.Context) error
	// Log is the file to which a driver that is already running writes its log.
	Log string
	// Inventory lists what is on the driver's storage, in any words, an entry for each thing that
	// a driver could leave there. It is the same whenever the storage has the same: without
	// free space, times and the like. What differs before and after a run is a failure.
	Inventory func(context.Context) ([]string, error)
	// SecondNode is the ID of another node that exists for the driver.
	SecondNode string
	// SecondTopology are the segments of a topology other than the node's, where
	// volumes can be created.
	SecondTopology map[string]string
}

// A Config configures a run. The zero value runs every rule that can run.
type Config struct {
	// Rules selects rules, as for func Rules. Empty: all.
	Rules []string
	// Prefix is prepended to every name that is sent to the driver. Default: csicheck- and
	// random letters.
	Prefix string
	// Dir is where a directory for the staging and target paths and for the canaries is
	// created. The driver must see it under the same path. Default: the directory for
	// temporary files.
	Dir string
	// Parameters are sent in CreateVolume, as those of a StorageClass.
	Parameters map[string]string
	// MutableParameters are parameters that the driver accepts in ControllerModifyVolume.
	MutableParameters map[string]string
	// Secrets go into every request that has a field for them.
	Secrets map[string]string
	// FSType is the file system type of mounted volumes. Default: the driver's.
	FSType string
	// Size is the volume size in bytes. Default: 1 GiB.
	Size int64
	// CheckMounts means that mounts of the driver are visible to this process, which
	// may read and write them.
	CheckMounts bool
	// ForeignVolumes allows a driver that already has volumes.
	ForeignVolumes bool
	// Strict makes a rule of level SHOULD that fails count as one of level MUST, in
	// Report.OK and in Run.
	Strict bool
	// FailFast ends the run with the first rule that keeps Report.OK from being true, or that
	// leaves something behind; the other rules are reported as not run.
	FailFast bool
	// KnownFailures are the IDs of rules that may fail: their failures are in the report and
	// do not count in Report.OK and in Run.
	KnownFailures []string
	// DryRun only asks the driver what it can do; the report lists the rules that
	// would run.
	DryRun bool
	// CleanupTimeout limits cleaning up after one rule. Default: a
	// minute.
	CleanupTimeout time.Duration
	// ReproduceCommand is the beginning of every command in the report that reproduces a failure. Default: csicheck with
	// the endpoint.
	ReproduceCommand string
	// Progress is called, from one goroutine at a time, when a rule begins and
	// when it has ended.
	Progress func(Progress)

	listTimeout time.Duration // of tests, in place of the constant
}

// A Progress is the state of a run.
type Progress struct {
	Done, Total int
	Rule        Rule
	Result      *Result // nil when the rule begins
	Calls       int     // so far
	Elapsed     time.Duration
}
