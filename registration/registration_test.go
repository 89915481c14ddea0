package registration_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/csikit/csikit/registration"
)

func valid() registration.Config {
	return registration.Config{DriverName: "csi.example.com", Endpoint: abs + "csi/csi.sock", KubeletEndpoint: abs + "kubelet/csi.sock", Dir: abs + "reg", KubeletDir: abs + "kubelet/reg"}
}

func TestNewRefuses(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*registration.Config)
		text   string
	}{
		{"no name", func(c *registration.Config) { c.DriverName = "" }, `DriverName ""`},
		{"slash", func(c *registration.Config) { c.DriverName = "a/b" }, "domain name of at most"},
		{"dot first", func(c *registration.Config) { c.DriverName = ".a" }, "domain name of at most"},
		{"long name", func(c *registration.Config) { c.DriverName = strings.Repeat("x", 64) }, "63 characters"},
		{"no endpoint", func(c *registration.Config) { c.Endpoint = "" }, `Endpoint "": want an absolute path`},
		{"relative endpoint", func(c *registration.Config) { c.Endpoint = "unix://csi.sock" }, "want an absolute path"},
		{"tcp", func(c *registration.Config) { c.KubeletEndpoint = "tcp://127.0.0.1:1" }, "KubeletEndpoint"},
		{"abstract", func(c *registration.Config) { c.KubeletEndpoint = "@csi" }, "want an absolute path"},
		{"zero byte", func(c *registration.Config) { c.Endpoint += "\x00" }, "zero byte"},
		{"endpoint too long for kubelet", func(c *registration.Config) { c.KubeletEndpoint = abs + strings.Repeat("x", registration.SunPathMax) }, "a socket address holds"},
		{"socket too long for kubelet", func(c *registration.Config) { c.KubeletDir = abs + strings.Repeat("x", registration.SunPathMax-20) }, "KubeletDir"},
		{"relative dir", func(c *registration.Config) { c.Dir = "reg" }, `Dir "reg"`},
		{"version of one number", func(c *registration.Config) { c.SupportedVersions = []string{"1"} }, "SupportedVersions"},
		{"no version for kubelet", func(c *registration.Config) { c.SupportedVersions = []string{"2.0.0"} }, "1.x"},
		{"no version", func(c *registration.Config) { c.SupportedVersions = []string{} }, "1.x"},
		{"shutdown", func(c *registration.Config) { c.OnShutdown = 7 }, "OnShutdown 7"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := valid()
			tt.change(&c)
			_, err := registration.New(c)
			var e *registration.Error
			if !errors.As(err, &e) || e.Op != "new" || e.Driver != c.DriverName || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v, want %q", err, tt.text)
			}
		})
	}
	t.Run("all errors", func(t *testing.T) {
		_, err := registration.New(registration.Config{})
		for _, field := range []string{"DriverName", "Endpoint", "KubeletEndpoint"} {
			if err == nil || !strings.Contains(err.Error(), field) {
				t.Errorf("%v does not name %s", err, field)
			}
		}
	})
}

func TestNewAccepts(t *testing.T) {
	for _, prefix := range []string{"", "unix:", "unix://"} {
		c := valid()
		c.DriverName = strings.Repeat("x", 63)
		c.Endpoint, c.KubeletEndpoint = prefix+c.Endpoint, prefix+c.KubeletEndpoint
		c.Dir = abs + strings.Repeat("x", 300)
		r, err := registration.New(c)
		if err != nil {
			t.Error(err)
			continue
		}
		if s := r.Status(); s.State != registration.Stopped || s.Err == nil {
			t.Errorf("status %+v", s)
		}
		if err := r.Check(context.Background()); err == nil {
			t.Error("registered before Serve")
		}
	}
}

func TestStateStrings(t *testing.T) {
	if s := registration.Registered.String() + " " + registration.State(99).String(); s != "registered State(99)" {
		t.Error(s)
	}
}
