package nodelifecycle

import (
	"context"
	"encoding/pem"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
)

// realNode returns a Node for a server with TLS on a real socket.
func realNode(t *testing.T, s *httptest.Server) *Node {
	t.Helper()
	dir := t.TempDir()
	c := Config{
		NodeName: "n1", DriverName: driver, Server: s.URL,
		TokenFile: filepath.Join(dir, "token"), CAFile: filepath.Join(dir, "ca.crt"),
	}
	write(t, c.TokenFile, "token-1")
	write(t, c.CAFile, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})))
	n, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if n.rt != nil {
			n.rt.CloseIdleConnections()
		}
	})
	return n
}

func TestOverTLS(t *testing.T) {
	s := newAPIServer(other, agentNotReady)
	s.drivers = []string{driver}
	server := httptest.NewTLSServer(s)
	defer server.Close()
	n := realNode(t, server)
	for _, want := range []taintState{taintRemoved, taintAbsent} {
		if state, err := n.removeTaint(t.Context(), agentNotReady.Key); err != nil || state != want {
			t.Errorf("state %v, %v, want %v", state, err, want)
		}
	}
	if got := s.taints(); len(got) != 1 || got[0] != other {
		t.Errorf("taints %v", got)
	}
}

// The certificates are read again, as they are replaced before they expire: first those of
// another authority, then the right ones. Without them no token is sent.
func TestCARotation(t *testing.T) {
	s := newAPIServer()
	server := httptest.NewTLSServer(s)
	defer server.Close()
	server.Config.ErrorLog = nil
	n := realNode(t, server)
	right := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	for _, ca := range []string{otherCA, "", "not a certificate"} {
		write(t, n.cfg.CAFile, ca)
		if _, err := n.node(t.Context()); err == nil {
			t.Errorf("a server is trusted with %.30q", ca)
		}
	}
	if len(s.requests()) != 0 {
		t.Errorf("requests to a server that is not trusted: %v", s.requests())
	}
	write(t, n.cfg.CAFile, right)
	if _, err := n.node(t.Context()); err != nil {
		t.Error(err)
	}
	write(t, n.cfg.CAFile, otherCA)
	if _, err := n.node(t.Context()); err == nil {
		t.Error("the server is trusted with certificates that are gone")
	}
}

// A server that redirects does not get the token to another host.
func TestNoRedirect(t *testing.T) {
	elsewhere := newAPIServer()
	target := httptest.NewTLSServer(elsewhere)
	defer target.Close()
	server := httptest.NewTLSServer(http.RedirectHandler(target.URL+"/api/v1/nodes/n1", http.StatusTemporaryRedirect))
	defer server.Close()
	if _, err := realNode(t, server).node(t.Context()); statusOf(err) != http.StatusTemporaryRedirect {
		t.Error(err)
	}
	if len(elsewhere.paths) != 0 {
		t.Errorf("the redirect was followed: %v", elsewhere.paths)
	}
}

// The proxy of the environment is for what is outside the cluster.
func TestNoProxy(t *testing.T) {
	server := httptest.NewTLSServer(newAPIServer())
	defer server.Close()
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
	t.Setenv("ALL_PROXY", "http://127.0.0.1:1")
	n := realNode(t, server)
	rt, err := n.trusting()
	if err != nil {
		t.Fatal(err)
	}
	if rt.(*http.Transport).Proxy != nil {
		t.Error("requests go to a proxy")
	}
}

func TestConnectionRefused(t *testing.T) {
	server := httptest.NewTLSServer(newAPIServer())
	n := realNode(t, server)
	server.Close()
	_, err := n.node(t.Context())
	var e *Error
	var op *net.OpError
	if !errors.As(err, &e) || e.Op != "get" || e.Object != "nodes/n1" || e.Status != 0 || !errors.As(err, &op) {
		t.Error(err)
	}
}

func TestInCluster(t *testing.T) {
	for host, want := range map[string]string{"10.96.0.1": "https://10.96.0.1:443", "fd00::1": "https://[fd00::1]:443", "kubernetes.default": "https://kubernetes.default:443"} {
		t.Setenv("KUBERNETES_SERVICE_HOST", host)
		t.Setenv("KUBERNETES_SERVICE_PORT", "443")
		c, err := InCluster("n1", driver)
		if err != nil || c.Server != want {
			t.Errorf("%s: %s, %v, want %s", host, c.Server, err, want)
		}
		if n, err := New(c); err != nil {
			t.Error(err)
		} else if n.base.Hostname() != host {
			t.Errorf("it asks %s", n.base.Hostname())
		}
		// Outside a pod the files are missing, which is found by the first request.
		if n, err := New(c); err == nil {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err := n.node(ctx); err == nil {
				t.Error("a request without a token succeeded")
			}
		}
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := InCluster("n1", driver); err == nil || !strings.Contains(err.Error(), "KUBERNETES_SERVICE_HOST") {
		t.Error(err)
	}
}

func TestNewRefuses(t *testing.T) {
	good := Config{NodeName: "n1", DriverName: driver, Server: "https://10.0.0.1:443", TokenFile: "/t", CAFile: "/c"}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for field, change := range map[string]func(c *Config){
		"NodeName":   func(c *Config) { c.NodeName = "../csinodes/n1" },
		"NodeName ":  func(c *Config) { c.NodeName = "" },
		"DriverName": func(c *Config) { c.DriverName = "a/b" },
		"Server":     func(c *Config) { c.Server = "http://10.0.0.1" },
		"Server ":    func(c *Config) { c.Server = "10.0.0.1:443" },
		"TokenFile":  func(c *Config) { c.TokenFile = "" },
		"CAFile":     func(c *Config) { c.CAFile = "" },
	} {
		c := good
		change(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), strings.TrimSpace(field)) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// otherCA is a certificate that signed nothing here.
const otherCA = `-----BEGIN CERTIFICATE-----
MIIBezCCASGgAwIBAgIUASRYxOug/hHNAMJxwlAz4oTJsSUwCgYIKoZIzj0EAwIw
EjEQMA4GA1UEAwwHYW5vdGhlcjAgFw0yNjExMjIxOTU4NDhaGA8yMTI2MTAyOTE5
NTg0OFowEjEQMA4GA1UEAwwHYW5vdGhlcjBZMBMGByqGSM49AgEGCCqGSM49AwEH
A0IABK3T90jSLVHpZfKmmHvuKY/X6MxJxkilFfZ6F1lBSWaK5i4xuqerMewe4Mmx
4U9djyGhQt95KX3XpKXipAa0rfOjUzBRMB0GA1UdDgQWBBT3lTzEhWiSbXks91mA
48NJa/gwZjAfBgNVHSMEGDAWgBT3lTzEhWiSbXks91mA48NJa/gwZjAPBgNVHRMB
Af8EBTADAQH/MAoGCCqGSM49BAMCA0gAMEUCICM2aWbYUm0RFSbBpZ3GKmaOkzyv
eUbbGztPaIdNuVBsAiEAuaiQxNNBGscpv22XNSPl/DwHWeGPJtrrJpIqHIs1NBg=
-----END CERTIFICATE-----
`
