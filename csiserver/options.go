package csiserver

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csispec"
	"google.golang.org/grpc"
)

// An Option adds a service to a [Server] or changes how it serves.
type Option interface{ apply(*config) }

type config struct {
	identity         csi.IdentityServer
	controller       csi.ControllerServer
	group            csi.GroupControllerServer
	snapshotMetadata csi.SnapshotMetadataServer
	node             csi.NodeServer

	services  []csi.PluginCapability_Service_Type
	expansion []csi.PluginCapability_VolumeExpansion_Type
	ready     func(context.Context) (bool, error)

	logger       *slog.Logger
	redactKeys   []string
	validation   []csispec.Option
	unary        []grpc.UnaryServerInterceptor
	stream       []grpc.StreamServerInterceptor
	drainTimeout time.Duration

	errs []error
}

type option func(*config)

func (o option) apply(c *config) { o(c) }

func (c *config) refuse(text string) { c.errs = append(c.errs, errors.New(text)) }

// WithController serves the Controller service and reports CONTROLLER_SERVICE.
func WithController(s csi.ControllerServer) Option {
	return option(func(c *config) {
		if c.controller = s; s == nil {
			c.refuse("WithController: the server is nil")
		}
	})
}

// WithGroupController serves the GroupController service and reports
// GROUP_CONTROLLER_SERVICE.
func WithGroupController(s csi.GroupControllerServer) Option {
	return option(func(c *config) {
		if c.group = s; s == nil {
			c.refuse("WithGroupController: the server is nil")
		}
	})
}

// WithSnapshotMetadata serves the SnapshotMetadata service and reports
// SNAPSHOT_METADATA_SERVICE.
func WithSnapshotMetadata(s csi.SnapshotMetadataServer) Option {
	return option(func(c *config) {
		if c.snapshotMetadata = s; s == nil {
			c.refuse("WithSnapshotMetadata: the server is nil")
		}
	})
}

// WithNode serves the Node service.
func WithNode(s csi.NodeServer) Option {
	return option(func(c *config) {
		if c.node = s; s == nil {
			c.refuse("WithNode: the server is nil")
		}
	})
}

// WithIdentity replaces the built-in Identity service. [New] asks it once for
// its information and capabilities and fails where they differ from [Info] and
// from the services that are given. It excludes WithPluginCapabilities,
// WithVolumeExpansion and WithReady.
func WithIdentity(s csi.IdentityServer) Option {
	return option(func(c *config) {
		if c.identity = s; s == nil {
			c.refuse("WithIdentity: the server is nil")
		}
	})
}

// WithPluginCapabilities adds capabilities which cannot be told from the
// services given, such as VOLUME_ACCESSIBILITY_CONSTRAINTS. All processes of a
// plugin have to report the same: a node process adds CONTROLLER_SERVICE if the
// plugin has a controller elsewhere.
func WithPluginCapabilities(types ...csi.PluginCapability_Service_Type) Option {
	return option(func(c *config) { c.services = append(c.services, types...) })
}

// WithVolumeExpansion reports how volumes are expanded, ONLINE or OFFLINE.
func WithVolumeExpansion(t csi.PluginCapability_VolumeExpansion_Type) Option {
	return option(func(c *config) { c.expansion = append(c.expansion, t) })
}

// WithReady decides what Probe answers: ready, not ready yet, or, by an error
// that says what is missing, unhealthy (FAILED_PRECONDITION), on which the
// plugin may be restarted. It is called for each Probe, at the same time as
// anything else, and has to answer at once from what it has in memory: a probe
// that waits for a lock or a volume gets the whole plugin killed. Without it the
// plugin is always ready.
func WithReady(ready func(ctx context.Context) (bool, error)) Option {
	return option(func(c *config) {
		if c.ready = ready; ready == nil {
			c.refuse("WithReady: the function is nil")
		}
	})
}

// WithLogger sets where calls and the life of the server are logged. The
// default discards.
func WithLogger(l *slog.Logger) Option {
	return option(func(c *config) { c.logger = l })
}

// WithRedactedKeys masks further map entries in logs and errors by their key,
// whatever map they are in: see [csispec.Redact].
func WithRedactedKeys(keys ...string) Option {
	return option(func(c *config) { c.redactKeys = append(c.redactKeys, keys...) })
}

// WithValidation changes how requests are validated, as [csispec.CSISanity]
// does. [csispec.StageUnstage] is added according to the capabilities of the
// Node service.
func WithValidation(opts ...csispec.Option) Option {
	return option(func(c *config) { c.validation = append(c.validation, opts...) })
}

// WithUnaryInterceptors adds interceptors between validation and the handlers;
// the first is the outermost.
func WithUnaryInterceptors(is ...grpc.UnaryServerInterceptor) Option {
	return option(func(c *config) {
		c.unary = append(c.unary, is...)
		for _, i := range is {
			if i == nil {
				c.refuse("WithUnaryInterceptors: an interceptor is nil")
			}
		}
	})
}

// WithStreamInterceptors is WithUnaryInterceptors for streaming calls.
func WithStreamInterceptors(is ...grpc.StreamServerInterceptor) Option {
	return option(func(c *config) {
		c.stream = append(c.stream, is...)
		for _, i := range is {
			if i == nil {
				c.refuse("WithStreamInterceptors: an interceptor is nil")
			}
		}
	})
}

// WithDrainTimeout bounds how long calls in flight may take to end after
// [Server.Serve] was told to stop; zero cuts them at once. The default is 20
// seconds, which leaves time to exit within the 30 seconds that Kubernetes
// grants.
func WithDrainTimeout(d time.Duration) Option {
	return option(func(c *config) {
		if c.drainTimeout = d; d < 0 {
			c.refuse("WithDrainTimeout: the timeout is negative")
		}
	})
}
