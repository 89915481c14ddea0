package nodelifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
)

// A Config says which node and driver it is about, and how to reach the API server. All
// fields but Registered and Logger are required; [InCluster] fills those of the API server.
type Config struct {
	// NodeName is the name of the Node object, which may differ from the node ID of CSI.
	// A pod gets it from the field spec.nodeName.
	NodeName string
	// DriverName is the name that GetPluginInfo returns.
	DriverName string

	// Server is the URL of the API server, https://host:port.
	Server string
	// TokenFile and CAFile are read for each request, because kubelet replaces them before
	// they expire.
	TokenFile, CAFile string

	// Registered, if set, has to return nil too before RemoveTaint removes a taint. After a
	// reboot CSINode lists the driver from before, until kubelet registers it again: a driver
	// that registers itself sets registration.Registrar.Check here.
	Registered func(context.Context) error

	// Logger receives what was removed, what is being waited for, and each failed
	// attempt. Nil discards.
	Logger *slog.Logger
}

// serviceAccount is where a pod finds its account, by convention of Kubernetes.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount/"

// InCluster returns a Config for a process in a pod: the API server as the environment
// names it (KUBERNETES_SERVICE_HOST, which may be an IPv6 address, and
// KUBERNETES_SERVICE_PORT), and the token and the certificates of the pod's service account. Its
// error says that the process does not run in a pod. The files are not read yet.
func InCluster(nodeName, driverName string) (Config, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return Config{}, &Error{Op: "new", Err: errors.New("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: this is not a pod of Kubernetes")}
	}
	return Config{
		NodeName: nodeName, DriverName: driverName,
		Server:    "https://" + net.JoinHostPort(host, port),
		TokenFile: serviceAccount + "token",
		CAFile:    serviceAccount + "ca.crt",
	}, nil
}

// A Node is one node with one driver on it, as the API server has them. Its methods may be
// called concurrently.
type Node struct {
	cfg  Config
	base *url.URL
	log  *slog.Logger

	// transport returns what sends requests, with the certificates of CAFile.
	transport func() (http.RoundTripper, error)

	mu sync.Mutex
	ca []byte          // the content of CAFile of which client was made
	rt *http.Transport // of ca
}

var (
	objectName = regexp.MustCompile(`^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$`)
	driverName = regexp.MustCompile(`^[A-Za-z0-9]([-.A-Za-z0-9]*[A-Za-z0-9])?$`)
	taintKey   = regexp.MustCompile(`^([a-z0-9]([-.a-z0-9]*[a-z0-9])?/)?[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?$`)
)

// New validates c. It sends nothing and reads no file. Its error is an [*Error] that
// names each wrong field.
func New(c Config) (*Node, error) {
	var errs []error
	refuse := func(field, value, want string) {
		errs = append(errs, fmt.Errorf("%s %q: want %s", field, value, want))
	}
	if len(c.NodeName) > 253 || !objectName.MatchString(c.NodeName) {
		refuse("NodeName", c.NodeName, "the name of a Node object")
	}
	if len(c.DriverName) > 63 || !driverName.MatchString(c.DriverName) {
		refuse("DriverName", c.DriverName, "a domain name of at most 63 characters")
	}
	base, err := url.Parse(c.Server)
	if err != nil || base.Scheme != "https" || base.Host == "" || base.User != nil || base.RawQuery != "" || base.Fragment != "" {
		refuse("Server", c.Server, "https://host:port") // the token is never sent unencrypted
	}
	if c.TokenFile == "" || c.CAFile == "" {
		refuse("TokenFile, CAFile", c.TokenFile+", "+c.CAFile, "two files")
	}
	if errs != nil {
		return nil, &Error{Op: "new", Err: errors.Join(errs...)}
	}
	n := &Node{cfg: c, base: base, log: c.Logger}
	if n.log == nil {
		n.log = slog.New(slog.DiscardHandler)
	}
	n.log = n.log.With("node", c.NodeName, "driver", c.DriverName)
	n.transport = n.trusting
	return n, nil
}

// DefaultTaint is the key by convention: <driver name>/agent-not-ready.
func DefaultTaint(driverName string) string { return strings.ToLower(driverName) + "/agent-not-ready" }
