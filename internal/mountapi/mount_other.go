//go:build !linux

package mountapi

import "errors"

// Root says what a tree would show.
type Root struct {
	Major, Minor         uint32
	BlockDevice          bool
	RdevMajor, RdevMinor uint32
}

// Tree stands for a detached mount; it cannot be made on this system.
type Tree struct{}

func (*Tree) Close() error        { return errors.ErrUnsupported }
func (*Tree) Root() (Root, error) { return Root{}, errors.ErrUnsupported }

func (*Tree) Attach(string) error { return errors.ErrUnsupported }

func Table() ([]Mount, error)                        { return nil, errors.ErrUnsupported }
func Resolve(string) (string, error)                 { return "", errors.ErrUnsupported }
func CloneTree(string, Attr) (*Tree, error)          { return nil, errors.ErrUnsupported }
func NewTree(string, string, Options) (*Tree, error) { return nil, errors.ErrUnsupported }
func Unmount(string) (bool, error)                   { return false, errors.ErrUnsupported }
