//go:build amd64 || arm64

package crash_test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/csikit/csikit/csitest/crash"
)

// Interrupts an operation at each of its state-changing system calls, and retries it: the
// first run only counts the calls, each later one is killed on entry to the next of them.
// Here the operation is mkdir -p, in place of the creation of a volume by a driver.
func ExampleStart() {
	for n, calls := 0, 0; n <= calls; n++ {
		dir, err := os.MkdirTemp("", "pool-")
		if err != nil {
			fmt.Println(err)
			return
		}
		defer os.RemoveAll(dir)
		volume := filepath.Join(dir, "volumes", "vol-1")

		driver := exec.Command("sh", "-c", `read start; exec mkdir -p "$0"`, volume)
		stdin, err := driver.StdinPipe()
		if err != nil {
			fmt.Println(err)
			return
		}
		p, err := crash.Start(driver)
		if err != nil {
			fmt.Println(err)
			return
		}
		p.Arm(n) // before the operation starts
		if _, err := io.WriteString(stdin, "\n"); err != nil {
			fmt.Println(err)
		}
		err = p.Wait()
		if n == 0 {
			calls = len(p.Calls())
		}
		if killed := err != nil; killed != (n > 0) || killed != p.Killed() {
			fmt.Printf("call %d of %d: killed: %t, %v\n", n, calls, p.Killed(), err)
		}

		// A new driver, not armed.
		if output, err := exec.Command("mkdir", "-p", volume).CombinedOutput(); err != nil {
			fmt.Printf("retry after a kill at call %d of %d: %v: %s\n", n, calls, err, output)
		}
	}
	fmt.Println("each retry converged")
	// Output: each retry converged
}
