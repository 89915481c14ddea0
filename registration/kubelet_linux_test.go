package registration_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// A kubelet does what kubelet's plugin manager does, only sooner: it watches a
// directory for sockets that are created or removed, and a loop compares what is
// there with what is registered. test/kubelet has the real one.
type kubelet struct {
	t     *testing.T
	dir   string
	watch *os.File
	stop  context.CancelFunc
	wg    sync.WaitGroup

	mu      sync.Mutex
	events  []string // in the order of the kernel
	serial  int
	desired map[string]int        // path of a socket to the number of its creation
	actual  map[string]registered // path to what is registered from it
	refuse  string                // the error of the next attempts
	csiNode map[string]string     // name of a driver to its node ID
	history []string              // node IDs, in the order of their registration; "" for a deregistration
}

type registered struct {
	serial int
	name   string
}

func startKubelet(t *testing.T, dir string) *kubelet {
	t.Helper()
	k := &kubelet{t: t, dir: dir, csiNode: map[string]string{}}
	k.start()
	t.Cleanup(func() { k.end() })
	return k
}

func (k *kubelet) start() {
	k.t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		k.t.Fatal(err)
	}
	if _, err := unix.InotifyAddWatch(fd, k.dir, unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_MOVED_FROM|unix.IN_DELETE|unix.IN_ONLYDIR); err != nil {
		k.t.Fatal(err)
	}
	k.watch = os.NewFile(uintptr(fd), "inotify")
	k.desired, k.actual = map[string]int{}, map[string]registered{}
	entries, err := os.ReadDir(k.dir)
	if err != nil {
		k.t.Fatal(err)
	}
	for _, e := range entries {
		k.created(e.Name())
	}
	ctx, stop := context.WithCancel(context.Background())
	k.stop = stop
	watch := k.watch
	k.wg.Go(func() { k.follow(watch) })
	k.wg.Go(func() { k.reconcile(ctx) })
}

func (k *kubelet) end() {
	k.stop()
	k.watch.Close()
	k.wg.Wait()
}

func (k *kubelet) restart() {
	k.t.Helper()
	k.end()
	k.start()
}

// follow turns the kernel's events into what is desired.
func (k *kubelet) follow(watch *os.File) {
	b := make([]byte, 64<<10)
	for {
		n, err := watch.Read(b)
		if err != nil {
			return
		}
		for e := b[:n]; len(e) > 0; {
			mask, size := binary.NativeEndian.Uint32(e[4:]), binary.NativeEndian.Uint32(e[12:])
			name := strings.TrimRight(string(e[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+size]), "\x00")
			e = e[unix.SizeofInotifyEvent+size:]
			switch {
			case strings.HasPrefix(name, "."), mask&unix.IN_IGNORED != 0:
			case mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
				k.event("create " + name)
				k.created(name)
			case mask&unix.IN_DELETE != 0:
				k.event("remove " + name)
				k.mu.Lock()
				delete(k.desired, filepath.Join(k.dir, name))
				k.mu.Unlock()
			default: // kubelet ignores a file that is renamed away
				k.event("moved away " + name)
			}
		}
	}
}

func (k *kubelet) event(e string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.events = append(k.events, e)
}

func (k *kubelet) created(name string) {
	path := filepath.Join(k.dir, name)
	if i, err := os.Stat(path); strings.HasPrefix(name, ".") || err != nil || i.Mode().Type() != fs.ModeSocket {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.serial++
	k.desired[path] = k.serial
}

func (k *kubelet) reconcile(ctx context.Context) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		k.mu.Lock()
		desired, actual := maps.Clone(k.desired), maps.Clone(k.actual)
		k.mu.Unlock()
		for path, a := range actual {
			if desired[path] != a.serial {
				k.deregister(path, a.name)
			}
		}
		for path, serial := range desired {
			if _, ok := actual[path]; !ok {
				k.register(ctx, path, serial)
			}
		}
	}
}

func (k *kubelet) deregister(path, name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.actual, path)
	if _, ok := k.csiNode[name]; ok {
		delete(k.csiNode, name)
		k.history = append(k.history, "")
	}
}

// register is one attempt. A failure is retried by the next iteration of the loop.
func (k *kubelet) register(ctx context.Context, path string, serial int) {
	conn := dial(k.t, path)
	defer conn.Close()
	bounded, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	info := dynamicpb.NewMessage(message("PluginInfo"))
	if err := conn.Invoke(bounded, "/pluginregistration.Registration/GetInfo", dynamicpb.NewMessage(message("InfoRequest")), info); err != nil {
		return
	}
	get := func(field protoreflect.Name) protoreflect.Value {
		return info.Get(info.Descriptor().Fields().ByName(field))
	}
	name := get("name").String()
	err := func() error {
		if kind := get("type").String(); kind != "CSIPlugin" {
			return fmt.Errorf("no handler registered for plugin type: %s", kind)
		}
		if v := get("supported_versions").List(); v.Len() != 1 || v.Get(0).String() != "1.0.0" {
			return errors.New("versions")
		}
		k.mu.Lock()
		refuse, taken := k.refuse, false
		for _, a := range k.actual {
			taken = taken || a.name == name
		}
		k.mu.Unlock()
		if refuse != "" {
			return errors.New(refuse)
		}
		if taken {
			return errors.New("another driver with the same name is already registered")
		}
		driver := dial(k.t, get("endpoint").String())
		defer driver.Close()
		node, err := csi.NewNodeClient(driver).NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
		if err != nil {
			return err
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		k.actual[path] = registered{serial, name}
		k.csiNode[name] = node.GetNodeId()
		k.history = append(k.history, node.GetNodeId())
		return nil
	}()
	status := dynamicpb.NewMessage(message("RegistrationStatus"))
	fields := status.Descriptor().Fields()
	status.Set(fields.ByName("plugin_registered"), protoreflect.ValueOfBool(err == nil))
	if err != nil {
		status.Set(fields.ByName("error"), protoreflect.ValueOfString(err.Error()))
	}
	done := dynamicpb.NewMessage(message("RegistrationStatusResponse"))
	notifying, cancel := context.WithTimeout(ctx, time.Second) // kubelet's is longer
	defer cancel()
	if e := conn.Invoke(notifying, "/pluginregistration.Registration/NotifyRegistrationStatus", status, done); e != nil && err == nil {
		k.deregister(path, name)
	}
}

// registered returns the node ID under which the driver is registered.
func (k *kubelet) registered(name string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.csiNode[name]
}

func (k *kubelet) setRefuse(words string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refuse = words
}

// past returns the events and the registrations so far.
func (k *kubelet) past() (events, history []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append(events, k.events...), append(history, k.history...)
}

func dial(t *testing.T, path string) *grpc.ClientConn {
	t.Helper()
	c, err := grpc.NewClient("passthrough:///"+path,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, path string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// message returns a message of pluginregistration/v1, encoded by the protobuf
// library, so that the package.s own encoding is tested against another
// implementation.
func message(name protoreflect.Name) protoreflect.MessageDescriptor {
	return api().Messages().ByName(name)
}

var api = sync.OnceValue(func() protoreflect.FileDescriptor {
	field := func(name string, number int32, kind descriptorpb.FieldDescriptorProto_Type, label descriptorpb.FieldDescriptorProto_Label) *descriptorpb.FieldDescriptorProto {
		return &descriptorpb.FieldDescriptorProto{Name: &name, Number: &number, Type: &kind, Label: &label}
	}
	const (
		text     = descriptorpb.FieldDescriptorProto_TYPE_STRING
		truth    = descriptorpb.FieldDescriptorProto_TYPE_BOOL
		one      = descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL
		repeated = descriptorpb.FieldDescriptorProto_LABEL_REPEATED
	)
	fd, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("api.proto"), Package: proto.String("pluginregistration"), Syntax: proto.String("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{
			{Name: proto.String("PluginInfo"), Field: []*descriptorpb.FieldDescriptorProto{
				field("type", 1, text, one), field("name", 2, text, one), field("endpoint", 3, text, one), field("supported_versions", 4, text, repeated)}},
			{Name: proto.String("RegistrationStatus"), Field: []*descriptorpb.FieldDescriptorProto{
				field("plugin_registered", 1, truth, one), field("error", 2, text, one)}},
			{Name: proto.String("RegistrationStatusResponse")},
			{Name: proto.String("InfoRequest")},
		},
	}, nil)
	if err != nil {
		panic(err)
	}
	return fd
})
