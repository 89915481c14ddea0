package nodeops

import "github.com/csikit/csikit/internal/mountapi"

func unmountWith(policy UnmountPolicy, path string) error {
	var err error
	switch policy {
	case UnmountForce:
		_, err = mountapi.UnmountForce(path)
	case UnmountLazy:
		_, err = mountapi.Detach(path)
	}
	return err
}
