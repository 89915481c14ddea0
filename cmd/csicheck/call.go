package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csitest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

// call calls an RPC by its name, prints what comes back, and is ok if that is OK.
func call(ctx context.Context, target csitest.Target, secrets map[string]string, args []string, out io.Writer) (ok bool, err error) {
	if len(args) < 1 || len(args) > 2 {
		return false, errors.New("call wants the name of an RPC and its request: csicheck -endpoint … call NodeGetInfo '{}'")
	}
	method, err := findMethod(args[0])
	if err != nil {
		return false, err
	}
	req := dynamicpb.NewMessage(method.Input())
	if len(args) == 2 {
		if err := protojson.Unmarshal([]byte(args[1]), req); err != nil {
			return false, fmt.Errorf("the request is not protojson of %s: %w", method.Input().Name(), err)
		}
	}
	if f := method.Input().Fields().ByName("secrets"); f != nil && !req.Has(f) {
		for k, v := range secrets {
			req.Mutable(f).Map().Set(protoreflect.ValueOfString(k).MapKey(), protoreflect.ValueOfString(v))
		}
	}
	endpoint := target.Endpoint
	if service := method.Parent().Name(); target.ControllerEndpoint != "" && service != "Node" && service != "Identity" {
		endpoint = target.ControllerEndpoint
	}
	cc, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
	if err != nil {
		return false, err
	}
	defer cc.Close()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	begin := time.Now()
	err = stream(ctx, cc, method, req, out)
	s := status.Convert(err)
	fmt.Fprintf(out, "%s in %.1f ms", s.Code(), float64(time.Since(begin).Microseconds())/1000)
	if err != nil {
		fmt.Fprintf(out, ": %s", s.Message())
	}
	fmt.Fprintln(out)
	return err == nil, nil
}

// stream sends the request and prints every message that comes back: one, unless
// the RPC is a stream.
func stream(ctx context.Context, cc *grpc.ClientConn, method protoreflect.MethodDescriptor, req proto.Message, out io.Writer) error {
	path := fmt.Sprintf("/%s/%s", method.Parent().FullName(), method.Name())
	s, err := cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, path)
	if err != nil {
		return err
	}
	if err := s.SendMsg(req); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	for {
		resp := dynamicpb.NewMessage(method.Output())
		if err := s.RecvMsg(resp); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		fmt.Fprintln(out, protojson.MarshalOptions{Multiline: true, UseProtoNames: true}.Format(resp))
	}
}

// findMethod finds an RPC in whichever service of CSI it is.
func findMethod(name string) (protoreflect.MethodDescriptor, error) {
	var all []string
	services := (&csi.ProbeRequest{}).ProtoReflect().Descriptor().ParentFile().Services()
	for i := range services.Len() {
		methods := services.Get(i).Methods()
		for j := range methods.Len() {
			if m := methods.Get(j); strings.EqualFold(string(m.Name()), name) {
				return m, nil
			}
			all = append(all, string(methods.Get(j).Name()))
		}
	}
	return nil, fmt.Errorf("CSI has no RPC %q; it has %s", name, strings.Join(all, ", "))
}

func readSecrets(path string) (map[string]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("-secrets: %w", err)
	}
	var m map[string]string
	if err := json.Unmarshal(text, &m); err != nil { // its text may quote a secret
		return nil, fmt.Errorf("-secrets: %s is not a JSON object of strings", path)
	}
	return m, nil
}
