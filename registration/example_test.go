package registration_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/csikit/csikit/registration"
)

// A node plugin registers itself: Serve runs beside the CSI server, and ends with it.
func Example() {
	r, err := registration.New(registration.Config{
		DriverName:      "csi.example.com",
		Endpoint:        "unix:///csi/csi.sock",
		KubeletEndpoint: "/var/lib/kubelet/plugins/csi.example.com/csi.sock",
		Logger:          slog.Default(),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- r.Serve(ctx) }()
	// The driver serves CSI here, until it is stopped.
	stop()
	fmt.Println(<-done)
	// Output: <nil>
}

// Paths are validated before any file is created.
func ExampleNew() {
	_, err := registration.New(registration.Config{
		DriverName:      "csi.example.com",
		Endpoint:        "unix:///csi/csi.sock",
		KubeletEndpoint: "csi.sock",
	})
	fmt.Println(err)
	// Output: new registration of csi.example.com: KubeletEndpoint "csi.sock": want an absolute path
}

// Check is a readiness probe.
func ExampleRegistrar_Check() {
	var r *registration.Registrar // from New
	http.HandleFunc("GET /readyz", func(w http.ResponseWriter, req *http.Request) {
		if err := r.Check(req.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
}

// A node whose volume limit has changed makes kubelet call NodeGetInfo again.
func ExampleRegistrar_Reregister() {
	var r *registration.Registrar // from New
	limitChanged := make(chan struct{})
	go func() {
		for range limitChanged {
			r.Reregister()
		}
	}()
	close(limitChanged)
}
