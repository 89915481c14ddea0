package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/csikit/csikit/registration"
)

// config holds the driver's settings. Every setting is a flag and an environment
// variable; the flag takes precedence.
type config struct {
	endpoint      string
	register      string
	registry      string
	mode          string
	exports       []export
	inline        []export
	mountDir      string
	serverTimeout time.Duration
	nodeID        string
	driverName    string
	maxVolumes    int64
	drainTimeout  time.Duration
	http          string
	logLevel      slog.Level
	logFormat     string

	// Only tests set these two: the file system type of shares, and a directory that
	// replaces the exports in the controller.
	fsType string
	local  string
}

const usage = `nfsdriver is a CSI driver that creates a directory on an NFS export for each volume
and mounts it into pods. The StorageClass names the export.

Usage:
  nfsdriver -endpoint unix:///run/csi/csi.sock

Every flag can also be set by an environment variable; the flag takes precedence:
`

// envName returns the environment variable of a flag. The spec reserves names that begin
// with CSI_, and defines only CSI_ENDPOINT for drivers.
func envName(flagName string) string {
	if flagName == "endpoint" {
		return "CSI_ENDPOINT"
	}
	return "CSIKIT_" + strings.ToUpper(strings.ReplaceAll(flagName, "-", "_"))
}

// parseConfig reads the settings. Its error is one line that names the setting;
// flag.ErrHelp means that -h was given and the help was written to out.
func parseConfig(args []string, getenv func(string) string, out io.Writer) (config, error) {
	c := config{fsType: "nfs"}
	fs := flag.NewFlagSet("nfsdriver", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // errors are printed once, by main
	fs.StringVar(&c.endpoint, "endpoint", "", "`address` to serve CSI on: unix:///path/to/csi.sock (required)")
	fs.StringVar(&c.register, "register", "", "register with kubelet, without node-driver-registrar: the `path` of the endpoint's socket as kubelet sees it")
	fs.StringVar(&c.registry, "registration-dir", registration.DefaultDir, "`directory` for the registration socket: kubelet's plugins_registry, as this process sees it")
	fs.StringVar(&c.mode, "mode", "all", "services to run in this process: controller, node or all")
	fs.Func("exports", "the only `exports` that volumes may be on, as in \"nas:/srv/a nas:/srv/b,port=2050\"; enables the list RPCs, and interrupted deletions resume at start (default: any export, no list RPCs)", func(s string) (err error) {
		c.exports, err = parseExports(s)
		return err
	})
	fs.Func("inline-exports", "the `exports` that inline volumes of pods may name, in the form of -exports: the author of a pod may mount all of such an export (default: none)", func(s string) (err error) {
		c.inline, err = parseExports(s)
		return err
	})
	fs.StringVar(&c.mountDir, "mount-dir", "/run/nfsdriver", "`directory` where the controller mounts exports for its own work; no other process may use it")
	fs.DurationVar(&c.serverTimeout, "server-timeout", 30*time.Second, "how long to wait for a server before its circuit breaker opens")
	fs.StringVar(&c.nodeID, "node-id", "", "`name` of this node (default: the host's name)")
	fs.StringVar(&c.driverName, "driver-name", "nfs.csikit.dev", "`name` of the driver, the provisioner of a StorageClass")
	fs.Int64Var(&c.maxVolumes, "max-volumes", 0, "maximum number of volumes on this node; 0: the CO decides")
	fs.DurationVar(&c.drainTimeout, "drain-timeout", 20*time.Second, "how long to wait for calls in flight after SIGTERM")
	fs.StringVar(&c.http, "http", "", "`address` of /healthz, /readyz and /debug, such as 127.0.0.1:9808 (default: none)")
	fs.TextVar(&c.logLevel, "log-level", slog.LevelInfo, "debug, info, warn or error; debug logs every request, without secrets")
	fs.StringVar(&c.logFormat, "log-format", "text", "text or json")

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
	return c, c.check()
}

// parseExports parses "server:/share[,option...] ...", exports in the notation of fstab(5).
func parseExports(s string) ([]export, error) {
	var all []export
	for word := range strings.FieldsSeq(s) {
		source, options, _ := strings.Cut(word, ",")
		server, share, ok := strings.Cut(source, ":/")
		if !ok {
			return nil, fmt.Errorf("%q: want server:/share", word)
		}
		e, err := exportOf(map[string]string{paramServer: server, paramShare: "/" + share}, []string{options})
		if err != nil {
			return nil, fmt.Errorf("%q: %w", word, err)
		}
		if len(e.options()) != len(splitOptions([]string{options})) {
			return nil, fmt.Errorf("%q: only mount options needed to reach the server are allowed here: %s", word, strings.Join(essential, ", "))
		}
		if allowed(all, e) == nil && all != nil {
			return nil, fmt.Errorf("%s is listed twice", e)
		}
		all = append(all, e)
	}
	slices.SortFunc(all, compareExports)
	return all, nil
}

func (c *config) check() error {
	if c.endpoint == "" {
		return fmt.Errorf("-endpoint (or %s) is required, for instance -endpoint unix:///run/csi/csi.sock", envName("endpoint"))
	}
	if !filepath.IsAbs(c.mountDir) {
		return fmt.Errorf("-mount-dir %q: want an absolute path", c.mountDir)
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
	if c.serverTimeout < time.Second {
		return fmt.Errorf("-server-timeout %v: want a second or more", c.serverTimeout)
	}
	if c.register != "" && c.mode == "controller" {
		return errors.New("-register is for the node plugin and cannot be combined with -mode controller")
	}
	if c.nodeID == "" && c.mode != "controller" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("-node-id is not set and the host name cannot be read: %w", err)
		}
		c.nodeID = host
	}
	if len(c.nodeID) > 256 {
		return fmt.Errorf("-node-id has %d bytes; CSI allows 256", len(c.nodeID))
	}
	return nil
}
