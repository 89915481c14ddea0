package mountapi_test

import (
	"fmt"

	"github.com/csikit/csikit/internal/mountapi"
)

// The flags of a CO are split into those of the mount and those of the file system.
func ExampleParseOptions() {
	o, err := mountapi.ParseOptions([]string{"ro,noatime", `context="u:o:t:s0:c1,c2"`, "_netdev"})
	fmt.Println(o.Attr, o.Data, err)
	_, err = mountapi.ParseOptions([]string{"bind"})
	fmt.Println(err)
	// Output:
	// ro,noatime [context=u:o:t:s0:c1,c2] <nil>
	// mount flag "bind": not supported: it asks for another kind of mount; remove it
}

func ExampleParseMountInfo() {
	table, err := mountapi.ParseMountInfo([]byte("36 35 8:1 / /mnt/a\\040b ro,noatime shared:1 - ext4 /dev/sda1 rw\n"))
	if err != nil {
		fmt.Println(err)
		return
	}
	m := table[0]
	fmt.Println(m.MountPoint, m.FSType, m.MountAttr(), m.MountReadOnly(), m.SuperReadOnly())
	// Output:
	// /mnt/a b ext4 ro,noatime true false
}
