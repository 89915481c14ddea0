package crash_test

import (
	"fmt"
	"testing"

	"github.com/csikit/csikit/csitest/crash"
	"github.com/csikit/csikit/csitest/gate"
)

// Every place where an operation can be interrupted: count its calls, then kill the
// driver at each of them and let the next driver try again.
func ExampleStart() {
	// request sends the driver one request and returns its error; restore brings the
	// directory to the same beginning.
	_ = func(t *testing.T, dir string, restore func(), request func() error) {
		for n, calls := 0, 0; n <= calls; n++ {
			restore()
			driver, err := crash.Start(gate.RoleCommand(t.Context(), "driver", dir))
			if err != nil {
				t.Fatal(err)
			}
			driver.Arm(n)
			_ = request()
			driver.Disarm()
			if n == 0 {
				calls = len(driver.Calls())
			}
			driver.Kill()
			_ = driver.Wait()

			// A new driver, not armed.
			driver, err = crash.Start(gate.RoleCommand(t.Context(), "driver", dir))
			if err != nil {
				t.Fatal(err)
			}
			if err := request(); err != nil {
				t.Errorf("retry behind a crash at call %d of %d: %v", n, calls, err)
			}
			driver.Kill()
			_ = driver.Wait()
		}
	}
	fmt.Println(crash.Call{Name: "mkdirat", Object: "/pool/volume-1"})
	// Output: mkdirat /pool/volume-1
}
