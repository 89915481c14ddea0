// Command csicheck checks a running CSI driver, written in any language. csicheck -h
// explains how.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"github.com/csikit/csikit/csitest"
)

const usage = `csicheck checks a CSI driver, by calling it as Kubernetes does.

Usage:
  csicheck -endpoint unix:///run/csi/csi.sock            check a running driver
  csicheck -endpoint … -start './driver -endpoint …'     run the driver too; it is killed and started again
  csicheck -list                                         print the rules
  csicheck -rules spec:ListVolumes-Errors -list          print those that check sentences of the specification: a part of
                                                         their words, or of their keys, which explain prints
  csicheck explain RULE                                  what a rule demands, and why
  csicheck compare A.json B.json                         what changed between two reports of -json
  csicheck -endpoint … call RPC '{"volume_id": …}'       call any RPC of CSI, with protojson
  csicheck -endpoint … walk [ext4 xfs block …]           take a volume of each kind from CreateVolume to two pods
                                                         and back, and print how long each step took
  csicheck -endpoint … load [-volumes 100] [-clients 10] create, publish and delete many volumes, and print rates and latencies
  csicheck -endpoint … -start … torture [-duration 1m] [-kills N] [-seed N] [-workers 4]
                                                         kill -9 the driver at random moments under a mix of
                                                         all RPCs, and check its answers and the data

Volumes are created, written and deleted: use storage without data that matters.
Everything created has a name that begins with -prefix, and is removed in the end, also
after Ctrl-C. Rules that check mounts run as root on the driver's node.

Safety for the host: hostile IDs and paths lead to canaries below -dir, and a canary
that is removed or changed is the finding. What a bad driver does to its own storage is
not contained. A driver of -start runs in a mount namespace of csicheck's own, if
csicheck may make one: its mounts do not show in others.

Exit status: 0 if no rule of level MUST failed (with -strict: nor one of level SHOULD), 1
if one did or something was left behind, 2 if the driver could not be checked. What failed
in the report of -baseline does not count.

Flags:
`

func main() {
	isolate(os.Args[1:])
	// The first signal cleans up and reports, the second one kills.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	// A reader of the output that ends, as head does, is like the first signal: no write may
	// kill before the driver's volumes are cleaned up. The signal itself comes from sockets
	// as well, so it is only caught.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ok, err := run(ctx, os.Args[1:], &output{os.Stdout, cancel}, &output{os.Stderr, cancel})
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "csicheck:", strings.TrimPrefix(err.Error(), "csitest: "))
		os.Exit(2)
	case !ok:
		os.Exit(1)
	}
}

// output cancels when it cannot be written.
type output struct {
	to     *os.File
	cancel context.CancelFunc
}

func (o *output) Stat() (os.FileInfo, error) { return o.to.Stat() }

func (o *output) Write(p []byte) (int, error) {
	n, err := o.to.Write(p)
	if err != nil {
		o.cancel()
	}
	return n, err
}

// options are the flags.
type options struct {
	target                                      csitest.Target
	cfg                                         csitest.Config
	start, startController, restart, inventory  string
	rules, json, junit, html, format, baseline  string
	secrets, parameters, mutable, place, kernel string
	list                                        bool
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (ok bool, err error) {
	defer func() {
		var foreign *csitest.ForeignVolumesError
		if errors.As(err, &foreign) {
			err = fmt.Errorf("%w, or give -foreign-volumes", err)
		}
	}()
	var o options
	fs := flag.NewFlagSet("csicheck", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // errors are printed once, by main
	o.define(fs)
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, usage)
		fs.SetOutput(stdout)
		fs.PrintDefaults()
		return true, err
	} else if err != nil {
		return false, fmt.Errorf("%w; see csicheck -h", err)
	}
	if o.rules != "" {
		o.cfg.Rules = strings.Split(o.rules, ",")
		if len(csitest.Rules(o.cfg.Rules...)) == 0 {
			return false, fmt.Errorf("-rules %s selects no rule; csicheck -list prints them", o.rules)
		}
	}
	rest := fs.Args()
	switch {
	case len(rest) > 0 && rest[0] == "explain":
		err := explain(stdout, rest[1:])
		return err == nil, err
	case len(rest) > 0 && rest[0] == "compare":
		return compare(stdout, rest[1:])
	case o.list:
		list(stdout, o.cfg.Rules)
		return true, nil
	}
	if err := o.finish(fs); err != nil {
		return false, err
	}
	switch {
	case len(rest) == 0:
		return o.check(ctx, stdout, stderr)
	case rest[0] == "walk":
		return o.walk(ctx, rest[1:], stdout)
	case rest[0] == "torture":
		return o.torture(ctx, rest[1:], stdout, stderr)
	case rest[0] == "load":
		return o.load(ctx, rest[1:], stdout, stderr)
	case rest[0] == "call":
		return call(ctx, o.target, o.cfg.Secrets, rest[1:], stdout)
	}
	return false, fmt.Errorf("unknown command %q; see csicheck -h", rest[0])
}

func (o *options) define(fs *flag.FlagSet) {
	t, c := &o.target, &o.cfg
	fs.StringVar(&t.Endpoint, "endpoint", "", "`address` of the driver, or of its node plugin: unix:///run/csi/csi.sock (required)")
	fs.StringVar(&t.ControllerEndpoint, "controller-endpoint", "", "`address` of the controller plugin, if that is another process")
	fs.StringVar(&o.start, "start", "", "`command` that runs the driver; its output is its log, and it is killed with -9 and started again")
	fs.StringVar(&o.startController, "controller-start", "", "`command` that runs the controller plugin, if that is another process; -start runs the node plugin then")
	fs.StringVar(&o.restart, "restart", "", "`command` that kills the running driver with -9 and starts it again")
	fs.StringVar(&o.inventory, "inventory", "", "`command` that prints what is on the storage, a line for each thing: find /pool, for instance. It is the same before and after a run, and after the driver was killed, or something was left")
	fs.StringVar(&t.Log, "log", "", "`file` to which the running driver writes its log")
	fs.StringVar(&t.SecondNode, "second-node", "", "`id` of another node, for rules about several nodes")
	fs.StringVar(&o.place, "second-topology", "", "`segment=value,…` of a place other than the node's where volumes can be created")
	fs.StringVar(&o.rules, "rules", "", "`ids` of the rules to run, with commas: node.publish.mounts, or an area as node., or a glob, or those of sentences of the specification, as spec:limit_bytes (default: all)")
	fs.StringVar(&o.json, "json", "", "`file` for the report as JSON")
	fs.StringVar(&o.junit, "junit", "", "`file` for the report as JUnit XML")
	fs.StringVar(&o.html, "html", "", "`file` for the report as a page of HTML, with a timeline of the calls for each volume")
	fs.StringVar(&o.format, "format", "text", "`text`, json, junit, tap or github: how the report is printed")
	fs.StringVar(&o.baseline, "baseline", "", "`file` of an earlier report (-json): what failed there is reported and does not count")
	fs.BoolVar(&c.Strict, "strict", false, "a rule of level SHOULD that fails counts as one of level MUST")
	fs.BoolVar(&c.FailFast, "fail-fast", false, "end with the first rule that fails and counts")
	fs.BoolVar(&o.list, "list", false, "print the rules, those of -rules if there are any")
	fs.BoolVar(&c.DryRun, "dry-run", false, "only read the capabilities of the driver, and list the rules that would run")
	fs.BoolVar(&c.ForeignVolumes, "foreign-volumes", false, "check a driver that already has volumes")
	fs.StringVar(&c.Prefix, "prefix", "", "`text` that names of volumes and snapshots begin with (default: csicheck- and random letters)")
	fs.StringVar(&c.Dir, "dir", "", "`directory` for staging and target paths and canaries, which the driver sees under the same path (default: a temporary one)")
	fs.Int64Var(&c.Size, "size", 1<<30, "`bytes` of a volume")
	fs.StringVar(&c.FSType, "fs-type", "", "`name` of the file system of volumes (default: the driver's)")
	fs.StringVar(&o.parameters, "parameters", "", "`key=value,…` for CreateVolume, as in a StorageClass")
	fs.StringVar(&o.mutable, "mutable-parameters", "", "`key=value,…` that ControllerModifyVolume takes, as in a VolumeAttributesClass")
	fs.StringVar(&o.secrets, "secrets", "", "`file` of JSON with the secrets for every RPC: {\"key\": \"value\"}")
	fs.StringVar(&o.kernel, "kernel", "auto", "check mounts: `yes`, no, or auto, which is yes for root and a unix socket on Linux")
}

// finish turns the flags into a target and a config.
func (o *options) finish(fs *flag.FlagSet) (err error) {
	if o.target.Endpoint == "" {
		return errors.New("-endpoint is required, for instance -endpoint unix:///run/csi/csi.sock; see csicheck -h")
	}
	if o.start != "" && o.restart != "" {
		return errors.New("-start runs the driver, -restart is for one that is already running: use one of them")
	}
	if o.start != "" {
		o.target.Start = func() *exec.Cmd { return exec.Command("/bin/sh", "-c", o.start) }
	}
	if o.startController != "" {
		if o.start == "" || o.target.ControllerEndpoint == "" {
			return errors.New("-controller-start runs the controller plugin of a driver with two processes: give -start for the node plugin, and -controller-endpoint")
		}
		o.target.StartController = func() *exec.Cmd { return exec.Command("/bin/sh", "-c", o.startController) }
	}
	if o.restart != "" {
		o.target.Restart = func(ctx context.Context) error {
			out, err := exec.CommandContext(ctx, "/bin/sh", "-c", o.restart).CombinedOutput()
			if err != nil {
				return fmt.Errorf("-restart: %w: %s", err, out)
			}
			return nil
		}
	}
	if o.inventory != "" {
		o.target.Inventory = func(ctx context.Context) ([]string, error) {
			out, err := exec.CommandContext(ctx, "/bin/sh", "-c", o.inventory).Output()
			if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
				err = fmt.Errorf("%w: %s", err, exit.Stderr)
			}
			if err != nil {
				return nil, fmt.Errorf("-inventory: %w", err)
			}
			return strings.Split(strings.TrimSpace(string(out)), "\n"), nil
		}
	}
	if printers[o.format] == nil {
		return fmt.Errorf("-format %q: want text, json, junit, tap or github", o.format)
	}
	if o.baseline != "" {
		before, err := readReport(o.baseline)
		if err != nil {
			return fmt.Errorf("-baseline: %w", err)
		}
		o.cfg.KnownFailures = before.failed()
	}
	switch o.kernel {
	case "yes":
		o.cfg.CheckMounts = true
	case "auto":
		o.cfg.CheckMounts = runtime.GOOS == "linux" && os.Geteuid() == 0 && strings.HasPrefix(o.target.Endpoint, "unix:")
	case "no":
	default:
		return fmt.Errorf("-kernel %q: want yes, no or auto", o.kernel)
	}
	if o.cfg.Parameters, err = pairs("parameters", o.parameters); err != nil {
		return err
	}
	if o.target.SecondTopology, err = pairs("second-topology", o.place); err != nil {
		return err
	}
	if o.cfg.MutableParameters, err = pairs("mutable-parameters", o.mutable); err != nil {
		return err
	}
	if o.secrets != "" {
		if o.cfg.Secrets, err = readSecrets(o.secrets); err != nil {
			return err
		}
	}
	o.cfg.ReproduceCommand = "csicheck"
	fs.Visit(func(f *flag.Flag) {
		switch f.Name {
		case "rules", "json", "junit", "html", "format", "baseline", "strict", "fail-fast", "prefix", "dry-run":
		default:
			o.cfg.ReproduceCommand += " -" + f.Name + " " + quote(f.Value.String())
		}
	})
	return nil
}

func pairs(name, text string) (map[string]string, error) {
	if text == "" {
		return nil, nil
	}
	m := map[string]string{}
	for p := range strings.SplitSeq(text, ",") {
		k, v, found := strings.Cut(p, "=")
		if !found {
			return nil, fmt.Errorf("-%s: %q is not key=value", name, p)
		}
		m[k] = v
	}
	return m, nil
}

// quote makes one word of s for a shell.
func quote(s string) string {
	if s != "" && !strings.ContainsAny(s, " \t\n'\"\\$`*?[]{}()<>|&;#~!") {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
