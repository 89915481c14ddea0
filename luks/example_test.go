package luks_test

import (
	"context"
	"fmt"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/luks"
)

// Staging a volume opens it; it is formatted the first time.
func ExampleMapper_Open() {
	mapper, err := luks.New(luks.Config{Prefix: "block.example.com"})
	if err != nil {
		fmt.Println(err)
		return
	}
	secrets := map[string]string{"passphrase": "from NodeStageVolumeRequest.secrets"}
	opened, err := mapper.Open(context.Background(), luks.OpenRequest{
		VolumeID:   "pvc-1",
		Device:     "/dev/disk/by-id/example-pvc-1",
		Passphrase: luks.Passphrase(secrets["passphrase"]),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("stage", opened.Path)
}

// Unstaging needs neither the device nor the passphrase.
func ExampleMapper_Close() {
	mapper, err := luks.New(luks.Config{Prefix: "block.example.com"})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := mapper.Close(context.Background(), "pvc-1"); err != nil {
		fmt.Println(err) // retry: it is still mounted
	}
}

// A request can be logged: the passphrase is hidden.
func ExamplePassphrase() {
	r := luks.OpenRequest{VolumeID: "pvc-1", Passphrase: luks.Passphrase("secret")}
	fmt.Printf("%+v\n", r)
	// Output:
	// {VolumeID:pvc-1 Device: Size:0 Passphrase:(hidden) ReadOnly:false MustHoldData:false Copy:false}
}

// Errors name the operation and the volume, and have a kind.
func ExampleError() {
	mapper, err := luks.New(luks.Config{Prefix: "block.example.com"})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = mapper.Open(context.Background(), luks.OpenRequest{VolumeID: "pvc-1", Device: "/dev/sdb"})
	fmt.Println(csierr.KindOf(err))
	fmt.Println(err)
	// Output:
	// invalid
	// open LUKS volume pvc-1: the passphrase is empty
}
