// Standin is in the place of the programs of Kubernetes that the Go module proxy does not
// have: pause, csi-node-driver-registrar and livenessprobe. Its name selects which. It takes
// the flags that the manifests set, and refuses others.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/csikit/csikit/registration"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	var err error
	switch name := filepath.Base(os.Args[0]); name {
	case "pause":
		<-ctx.Done()
	case "csi-node-driver-registrar":
		err = register(ctx)
	case "livenessprobe":
		err = probe(ctx)
	default:
		err = fmt.Errorf("no stand-in for %s", name)
	}
	if err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func connect(socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// register does what the sidecar does, with package registration.
func register(ctx context.Context) error {
	socket := flag.String("csi-address", "", "")
	kubelet := flag.String("kubelet-registration-path", "", "")
	dir := flag.String("plugin-registration-path", "", "")
	timeout := flag.Duration("timeout", time.Second, "")
	endpoint := flag.String("http-endpoint", "", "")
	flag.Parse()

	conn, err := connect(*socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	called, cancel := context.WithTimeout(ctx, max(*timeout, 30*time.Second))
	info, err := csi.NewIdentityClient(conn).GetPluginInfo(called, &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	cancel()
	if err != nil {
		return err
	}
	r, err := registration.New(registration.Config{
		DriverName:      info.GetName(),
		Endpoint:        *socket,
		KubeletEndpoint: *kubelet,
		Dir:             *dir,
		Logger:          slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	go serve(*endpoint, func(context.Context) error {
		_, err := os.Stat(r.Status().Socket)
		return err
	})
	return r.Serve(ctx)
}

// probe calls Probe for each request, as the sidecar does.
func probe(ctx context.Context) error {
	socket := flag.String("csi-address", "", "")
	timeout := flag.Duration("probe-timeout", time.Second, "")
	endpoint := flag.String("http-endpoint", "", "")
	flag.Parse()

	conn, err := connect(*socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	go serve(*endpoint, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, *timeout)
		defer cancel()
		r, err := csi.NewIdentityClient(conn).Probe(ctx, &csi.ProbeRequest{})
		if err == nil && r.GetReady() != nil && !r.GetReady().GetValue() {
			err = fmt.Errorf("not ready")
		}
		return err
	})
	<-ctx.Done()
	return nil
}

func serve(address string, check func(context.Context) error) {
	http.HandleFunc("/healthz", func(w http.ResponseWriter, r *http.Request) {
		if err := check(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	fmt.Fprintln(os.Stderr, http.ListenAndServe(address, nil))
	os.Exit(1)
}
