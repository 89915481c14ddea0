package nodeops

import "github.com/csikit/csikit/internal/mountapi"

func unmountBy(policy UnmountPolicy, path string) error {
	var err error
	switch policy {
	case UnmountForced:
		_, err = mountapi.UnmountForce(path)
	case UnmountLazily:
		_, err = mountapi.Detach(path)
	}
	return err
}
