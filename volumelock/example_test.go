package volumelock_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/csikit/csikit/volumelock"
)

func ExampleTable() {
	var locks volumelock.Table
	volume := volumelock.Key{Kind: volumelock.KindVolumeOnNode, ID: "vol-1"}

	held, err := locks.Acquire(volumelock.Op{RPC: "NodeStageVolume", RequestID: "17"}, volumelock.Request{Key: volume})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer held.Release()

	_, err = locks.Acquire(volumelock.Op{RPC: "NodeUnstageVolume"}, volumelock.Request{Key: volume})
	var busy *volumelock.BusyError
	if errors.As(err, &busy) {
		fmt.Println(busy.RPC, "finds", busy.Key, "held by", busy.Holder.RPC, busy.Holder.RequestID)
		fmt.Println(status.Code(err))
	}
	// Output:
	// NodeUnstageVolume finds volume_on_node "vol-1" held by NodeStageVolume 17
	// Aborted
}

// A call whose work is still in flight when it returns parks its keys.
func ExampleHeld_Park() {
	var locks volumelock.Table
	volume := volumelock.Request{Key: volumelock.Key{Kind: volumelock.KindVolumeOnNode, ID: "vol-1"}}
	stage := func(mounted <-chan struct{}) error {
		held, err := locks.Acquire(volumelock.Op{RPC: "NodeStageVolume"}, volume)
		if err != nil {
			return err
		}
		defer held.Release()
		held.Park(mounted) // the deadline has passed, the mount still hangs
		return context.DeadlineExceeded
	}
	mounted := make(chan struct{})
	fmt.Println("stage:", stage(mounted))
	for _, e := range locks.Snapshot() {
		fmt.Println(e.Key, e.Mode, e.Op.RPC, "parked:", e.Parked)
	}
	_, err := locks.Acquire(volumelock.Op{RPC: "NodeExpandVolume"}, volume)
	fmt.Println("expand refused:", err != nil)
	fmt.Println("retry of stage:", stage(mounted))
	close(mounted)
	// Output:
	// stage: context deadline exceeded
	// volume_on_node "vol-1" exclusive NodeStageVolume parked: true
	// expand refused: true
	// retry of stage: context deadline exceeded
}

// A background job of the driver waits instead of being refused.
func ExampleTable_AcquireWait() {
	var locks volumelock.Table
	volume := volumelock.Request{Key: volumelock.Key{Kind: volumelock.KindVolume, ID: "vol-1"}}

	snapshot, _ := locks.Acquire(volumelock.Op{RPC: "CreateSnapshot"}, volumelock.Request{Key: volume.Key, Mode: volumelock.Shared})
	go snapshot.Release()

	trim, err := locks.AcquireWait(context.Background(), time.Minute, volumelock.Op{RPC: "trim"}, volume)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer trim.Release()
	fmt.Println(locks.Snapshot()[0].Op.RPC)
	// Output: trim
}

// A server whose calls do not work on the same volume, target or name concurrently.
func ExampleInterceptor() {
	var table volumelock.Table
	locks := volumelock.Interceptor(&table) // csiserver.WithInterceptors(locks) does the same
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor( /* recovery, logging, validation, */ locks.Unary),
		grpc.ChainStreamInterceptor( /* likewise, */ locks.Stream),
	)
	csi.RegisterNodeServer(server, csi.UnimplementedNodeServer{})
	fmt.Println(len(table.Snapshot()), "keys held")
	// Output: 0 keys held
}

// This driver derives the ID of a volume from its name, so that creating and
// deleting one volume can exclude each other.
func ExampleWithPolicy() {
	policy := func(fullMethod string, req any) []volumelock.Request {
		keys := volumelock.DefaultPolicy(fullMethod, req)
		if create, ok := req.(*csi.CreateVolumeRequest); ok {
			keys = append(keys, volumelock.Request{Key: volumelock.Key{Kind: volumelock.KindVolume, ID: "id-of-" + create.GetName()}})
		}
		return keys
	}
	var locks volumelock.Table
	_ = volumelock.Interceptor(&locks, volumelock.WithPolicy(policy))
	for _, r := range policy(csi.Controller_CreateVolume_FullMethodName, &csi.CreateVolumeRequest{Name: "pvc-1"}) {
		fmt.Println(r.Key, r.Mode)
	}
	// Output:
	// volume_name "pvc-1" exclusive
	// volume "id-of-pvc-1" exclusive
}

// In this driver a snapshot that is being read cannot be deleted, but can be read by
// other calls.
func ExampleInterceptor_stream() {
	read := func(ids ...string) (keys []volumelock.Request) {
		for _, id := range ids {
			keys = append(keys, volumelock.Request{Key: volumelock.Key{Kind: volumelock.KindSnapshot, ID: id}, Mode: volumelock.Shared})
		}
		return keys
	}
	policy := func(fullMethod string, req any) []volumelock.Request {
		switch r := req.(type) {
		case *csi.GetMetadataAllocatedRequest:
			return read(r.GetSnapshotId())
		case *csi.GetMetadataDeltaRequest:
			return read(r.GetBaseSnapshotId(), r.GetTargetSnapshotId())
		}
		return volumelock.DefaultPolicy(fullMethod, req)
	}
	locks := volumelock.Interceptor(new(volumelock.Table), volumelock.WithPolicy(policy))
	server := grpc.NewServer(grpc.UnaryInterceptor(locks.Unary), grpc.StreamInterceptor(locks.Stream))
	csi.RegisterSnapshotMetadataServer(server, csi.UnimplementedSnapshotMetadataServer{})
	fmt.Println(policy(csi.SnapshotMetadata_GetMetadataAllocated_FullMethodName, &csi.GetMetadataAllocatedRequest{SnapshotId: "s"}))
	fmt.Println(policy(csi.Controller_DeleteSnapshot_FullMethodName, &csi.DeleteSnapshotRequest{SnapshotId: "s"}))
	// Output:
	// [{snapshot "s" shared}]
	// [{snapshot "s" exclusive}]
}
