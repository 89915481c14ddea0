package filepool_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/examples/blockdriver/driver"
	"github.com/csikit/csikit/examples/blockdriver/filepool"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// The tests of the driver over pools.

func TestMain(m *testing.M) { gate.Main(m, gate.WithRole("blockdriver", runAlone)) }

// runAlone is the driver's process.
func runAlone() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	context.AfterFunc(ctx, stop)
	if err := run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	return driver.Run(ctx, filepool.New(), args, getenv, stdout, stderr)
}

const (
	mib = 1 << 20
	gib = 1 << 30
)

var (
	makePool = filepool.MakePool
	idOnDisk = filepool.IDOnDisk
	wantCode = filepool.WantCode
	must     = filepool.Must
)

func refused(t *testing.T, err error, code codes.Code, words string) {
	t.Helper()
	if status.Code(err) != code || !strings.Contains(err.Error(), words) {
		t.Fatalf("answer is %v, want %v with %q", err, code, words)
	}
}

func dial(t *testing.T, path string) *grpc.ClientConn {
	t.Helper()
	c, err := grpc.NewClient("passthrough:///"+path, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, path string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

var ext4 = &csi.VolumeCapability{
	AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "ext4"}},
	AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
}

// serveController serves the controller until the test ends. It needs no privilege.
func serveController(t *testing.T, args ...string) *grpc.ClientConn {
	t.Helper()
	dir, err := os.MkdirTemp("", "ctl") // short: it is the path of a socket
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	sock := filepath.Join(dir, "csi.sock")
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	args = append(args, "-mode", "controller", "-endpoint", "unix://"+sock)
	go func() { done <- run(ctx, args, func(string) string { return "" }, os.Stdout, testLog{t}) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return dial(t, sock)
}

// testLog sends the driver's log to the test's, and wants all responses valid.
type testLog struct{ t *testing.T }

var _ io.Writer = testLog{}

func (l testLog) Write(p []byte) (int, error) {
	l.t.Logf("%s", p)
	if bytes.Contains(p, []byte("response breaks rules of CSI")) {
		l.t.Error("the driver broke the rules of CSI")
	}
	return len(p), nil
}

func reasons(h *csi.VolumeHealth) string {
	var list []string
	for _, s := range h.GetHealthStatuses() {
		list = append(list, s.GetReason())
	}
	return strings.Join(list, " ")
}

// What is broken on the storage is found by looking there, and is gone from the
// report when it is repaired.
func TestVolumeHealth(t *testing.T) {
	dir := t.TempDir()
	makePool(t, dir)
	c := csi.NewControllerClient(serveController(t, "-pool", dir, "-reserve", "0"))
	create := func(name string) (id, file string) {
		t.Helper()
		r, err := c.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
			Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: 64 * mib}, VolumeCapabilities: []*csi.VolumeCapability{ext4},
		}, grpc.WaitForReady(true))
		must(t, err)
		id = r.GetVolume().GetVolumeId()
		return id, filepath.Join(dir, "volumes", id)
	}
	v, file := create("a")
	create("sound")
	image, metadata := file+filepool.ExtImage, file+".json"
	for _, test := range []struct {
		want           string
		damage, repair func() error
	}{
		{"", func() error { return nil }, func() error { return nil }},
		{"ImageMissing", func() error { return os.Rename(image, image+"x") }, func() error { return os.Rename(image+"x", image) }},
		{"ImageTruncated", func() error { return os.Truncate(image, 64*mib-1) }, func() error { return os.Truncate(image, 64*mib) }},
		{"MetadataMissing", func() error { return os.Rename(metadata, metadata+"x") }, func() error { return os.Rename(metadata+"x", metadata) }},
		{"MetadataDamaged", func() error {
			return errors.Join(os.Rename(metadata, metadata+"x"), os.WriteFile(metadata, []byte("{"), 0o600))
		}, func() error { return os.Rename(metadata+"x", metadata) }},
	} {
		if err := test.damage(); err != nil {
			t.Fatal(err)
		}
		one, err := c.ControllerGetVolumeHealth(t.Context(), &csi.ControllerGetVolumeHealthRequest{VolumeId: v})
		if err != nil || reasons(one.GetVolumeHealth()) != test.want {
			t.Errorf("%v, %v; want %q", one, err, test.want)
		}
		all, err := c.ControllerListVolumeHealth(t.Context(), &csi.ControllerListVolumeHealthRequest{})
		if err != nil {
			t.Error(err)
		}
		want := 1 // the other one is sound
		if test.want == "" {
			want = 0
		}
		if len(all.GetEntries()) != want {
			t.Errorf("%s: list: %v", test.want, all)
		}
		if err := test.repair(); err != nil {
			t.Fatal(err)
		}
	}
	_, err := c.ControllerGetVolumeHealth(t.Context(), &csi.ControllerGetVolumeHealthRequest{VolumeId: filepool.VolumeID("unknown")})
	wantCode(t, err, codes.NotFound)

	// Pages of a list in which everything is broken.
	for i := range 5 {
		_, file := create(strconv.Itoa(i))
		must(t, os.Remove(file+filepool.ExtImage))
	}
	seen := map[string]bool{}
	for token, pages := "", 0; ; pages++ {
		page, err := c.ControllerListVolumeHealth(t.Context(), &csi.ControllerListVolumeHealthRequest{MaxEntries: 2, StartingToken: token})
		if err != nil || len(page.GetEntries()) > 2 || pages > 5 {
			t.Fatalf("%v, %v", page, err)
		}
		for _, h := range page.GetEntries() {
			seen[h.GetVolumeId()] = true
		}
		if token = page.GetNextToken(); token == "" {
			break
		}
	}
	if len(seen) != 5 {
		t.Errorf("%d volumes, want 5: %v", len(seen), seen)
	}
}
