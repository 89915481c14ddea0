package driver

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/csikit/csikit/examples/blockdriver/storage"
	"github.com/csikit/csikit/registration"
	"github.com/csikit/csikit/topology"
)

// config is the settings of the driver itself. Every setting is a flag and an
// environment variable; the flag wins.
type config struct {
	endpoint           string
	register, registry string
	mode               string
	nodeID, driverName string
	topology           topology.Segments
	maxVolumes         int64
	sharedDirs         []string
	startupTaint       string
	drainTimeout       time.Duration
	http               string
	logLevel           slog.Level
	logFormat          string
}

const program = "blockdriver"

// defaultName is written into every PersistentVolume, and cannot be changed later.
const defaultName = "block.csikit.dev"

const usage = program + ` serves CSI for block storage.

Usage:
  ` + program + ` -endpoint unix:///run/csi/csi.sock ...

Every flag is also an environment variable, which the flag overrides:
`

// envName is the variable of a flag. Names that begin with CSI_ belong to the
// spec, and the endpoint's is the only one that it defines for drivers.
func envName(flagName string) string {
	if flagName == "endpoint" {
		return "CSI_ENDPOINT"
	}
	return "CSIKIT_" + strings.ToUpper(strings.ReplaceAll(flagName, "-", "_"))
}

// parseConfig reads the settings, also those of the storage. Its error is one line that
// names the setting; flag.ErrHelp says that -h was answered on out.
func parseConfig(p storage.Provider, args []string, getenv func(string) string, out io.Writer) (config, error) {
	var c config
	fs := flag.NewFlagSet(program, flag.ContinueOnError)
	fs.SetOutput(io.Discard) // errors are printed once, by main
	fs.StringVar(&c.endpoint, "endpoint", "", "`address` to serve CSI on: unix:///path/to/csi.sock (required)")
	fs.StringVar(&c.register, "register", "", "register with kubelet, without node-driver-registrar: the `path` of the endpoint's socket as kubelet sees it")
	fs.StringVar(&c.registry, "registration-dir", registration.DefaultDir, "`directory` where -register meets kubelet: its plugins_registry, as this process sees it")
	fs.StringVar(&c.mode, "mode", "all", "what this process is: controller, node or all")
	fs.Var(&c.topology, "topology", "`segments` of this node: segment=value,...")
	fs.StringVar(&c.nodeID, "node-id", "", "`name` of this node (default: the host's name)")
	fs.StringVar(&c.driverName, "driver-name", defaultName, "`name` of the driver, as in StorageClass.provisioner")
	fs.Int64Var(&c.maxVolumes, "max-volumes", 0, "volumes that this node takes at most; 0: the CO decides")
	fs.Func("shared-dirs", "`directories` with kubelet's target paths, separated by commas: do not start if mounts below them would not reach the host",
		func(s string) error { c.sharedDirs = strings.Split(s, ","); return nil })
	fs.StringVar(&c.startupTaint, "startup-taint", "", "`key` of a taint to remove from the node -node-id once kubelet has registered the driver, such as "+defaultName+"/agent-not-ready")
	fs.DurationVar(&c.drainTimeout, "drain-timeout", 20*time.Second, "how long calls in flight may take to end after SIGTERM")
	fs.StringVar(&c.http, "http", "", "`address` of /healthz, /readyz, /debug and /metrics, such as 127.0.0.1:9808 (default: none)")
	fs.TextVar(&c.logLevel, "log-level", slog.LevelInfo, "debug, info, warn or error; debug shows every request, secrets removed")
	fs.StringVar(&c.logFormat, "log-format", "text", "text or json")
	p.Flags(fs)

	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(out, usage)
		fs.VisitAll(func(f *flag.Flag) {
			arg, text := flag.UnquoteUsage(f)
			fmt.Fprintf(out, "  -%s %s\n        %s", f.Name, arg, text)
			if f.DefValue != "" && f.DefValue != "0" {
				fmt.Fprintf(out, " (default: %s)", f.DefValue)
			}
			fmt.Fprintf(out, " [$%s]\n", envName(f.Name))
		})
		if c, ok := p.(storage.Commander); ok {
			fmt.Fprint(out, c.CommandUsage())
		}
		return c, err
	} else if err != nil {
		return c, err
	}
	given := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { given[f.Name] = true })
	var bad error
	fs.VisitAll(func(f *flag.Flag) {
		v := getenv(envName(f.Name))
		if v == "" || given[f.Name] || bad != nil {
			return
		}
		if err := fs.Set(f.Name, v); err != nil {
			bad = fmt.Errorf("%s=%q: %w", envName(f.Name), v, err)
		}
	})
	if bad != nil {
		return c, bad
	}
	if rest := fs.Args(); len(rest) > 0 {
		return c, fmt.Errorf("unexpected argument %q: settings are flags, see -h", rest[0])
	}
	if err := c.check(); err != nil {
		return c, err
	}
	return c, p.Check()
}

func (c *config) check() error {
	if c.endpoint == "" {
		return errors.New("-endpoint (or CSI_ENDPOINT) is required, for instance -endpoint unix:///run/csi/csi.sock")
	}
	if err := topology.Validate(c.topology); err != nil {
		return fmt.Errorf("-topology: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	if !slices.Contains([]string{"all", "controller", "node"}, c.mode) {
		return fmt.Errorf("-mode %q: want controller, node or all", c.mode)
	}
	if !slices.Contains([]string{"text", "json"}, c.logFormat) {
		return fmt.Errorf("-log-format %q: want text or json", c.logFormat)
	}
	if c.maxVolumes < 0 {
		return fmt.Errorf("-max-volumes %d: want 0 or more", c.maxVolumes)
	}
	if c.drainTimeout <= 0 {
		return fmt.Errorf("-drain-timeout %v: want more than 0", c.drainTimeout)
	}
	if c.nodeID == "" && c.mode != "controller" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("-node-id is not set and the host's name cannot be read: %w", err)
		}
		c.nodeID = host
	}
	if len(c.nodeID) > 256 {
		return fmt.Errorf("-node-id has %d bytes; CSI allows 256", len(c.nodeID))
	}
	return nil
}
