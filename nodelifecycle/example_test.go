package nodelifecycle_test

import (
	"context"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"time"

	"github.com/csikit/csikit/nodelifecycle"
)

// RemoveTaint runs beside the driver and ends with it, or ten minutes after the taint has gone.
func ExampleNode_RemoveTaint() {
	config, cleanup := cluster() // in a pod: nodelifecycle.InCluster(os.Getenv("NODE_NAME"), "csi.example.com")
	defer cleanup()
	node, err := nodelifecycle.New(config)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- node.RemoveTaint(ctx, nodelifecycle.DefaultTaint(config.DriverName)) }()
	// The driver serves CSI here, until it is stopped.
	stop()
	fmt.Println(<-done)
	// Output: remove taint nodes/worker-1: context canceled
}

// WaitForDetach is a command of its own, which the container's preStop hook runs:
//
//	lifecycle: {preStop: {exec: {command: [/driver, pre-stop]}}}
func ExampleNode_WaitForDetach() {
	config, cleanup := cluster() // in a pod: nodelifecycle.InCluster(os.Getenv("NODE_NAME"), "csi.example.com")
	defer cleanup()
	node, err := nodelifecycle.New(config)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	fmt.Println(node.WaitForDetach(ctx))
	// Output: <nil>
}

// What is wrong is reported before anything is sent.
func ExampleNew() {
	_, err := nodelifecycle.New(nodelifecycle.Config{
		NodeName: "worker-1", DriverName: "csi.example.com", Server: "http://10.0.0.1",
		TokenFile: "/token", CAFile: "/ca.crt",
	})
	fmt.Println(err)
	// Output: new: Server "http://10.0.0.1": want https://host:port
}

// Outside a pod there is no API server to call.
func ExampleInCluster() {
	os.Unsetenv("KUBERNETES_SERVICE_HOST")
	_, err := nodelifecycle.InCluster("worker-1", "csi.example.com")
	fmt.Println(err)
	// Output: new: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: this is not a pod of Kubernetes
}

// cluster is an API server that knows one drained node with nothing attached.
func cluster() (c nodelifecycle.Config, cleanup func()) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/nodes/worker-1", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"spec": {"unschedulable": true}}`)
	})
	mux.HandleFunc("GET /apis/storage.k8s.io/v1/volumeattachments", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"items": []}`)
	})
	server := httptest.NewTLSServer(mux)
	dir, err := os.MkdirTemp("", "account")
	if err != nil {
		panic(err)
	}
	c = nodelifecycle.Config{
		NodeName: "worker-1", DriverName: "csi.example.com", Server: server.URL,
		TokenFile: filepath.Join(dir, "token"), CAFile: filepath.Join(dir, "ca.crt"),
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for file, content := range map[string][]byte{c.TokenFile: []byte("token"), c.CAFile: ca} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			panic(err)
		}
	}
	return c, func() {
		server.Close()
		_ = os.RemoveAll(dir)
	}
}
