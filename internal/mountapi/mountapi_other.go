//go:build !linux

package mountapi

import (
	"errors"
	"os"
)

// Tree stands for a detached mount; this system has none.
type Tree struct{}

func (*Tree) Close() error            { return errors.ErrUnsupported }
func (*Tree) Root() (Root, error)     { return Root{}, errors.ErrUnsupported }
func (*Tree) Open() (*os.File, error) { return nil, errors.ErrUnsupported }
func (*Tree) Attach(string) error     { return errors.ErrUnsupported }

// Point stands for an open directory and a name in it.
type Point struct{}

func OpenPoint(string) (*Point, error) { return nil, errors.ErrUnsupported }

func (*Point) Close()               {}
func (*Point) Path() string         { return "" }
func (*Point) At() ([]Mount, error) { return nil, errors.ErrUnsupported }

func (Kernel) CloneTree(string, Attr) (*Tree, error)          { return nil, errors.ErrUnsupported }
func (Kernel) NewTree(string, string, Options) (*Tree, error) { return nil, errors.ErrUnsupported }
func (Kernel) SweepScratches() error                          { return nil }
func (Kernel) At(string) ([]Mount, error)                     { return nil, errors.ErrUnsupported }

func SweepScratches() error             { return nil }
func Table() ([]Mount, error)           { return nil, errors.ErrUnsupported }
func TableOf(int) ([]Mount, error)      { return nil, errors.ErrUnsupported }
func IsShared(string) (bool, error)     { return false, errors.ErrUnsupported }
func Resolve(string) (string, error)    { return "", errors.ErrUnsupported }
func Unmount(string) (bool, error)      { return false, errors.ErrUnsupported }
func UnmountForce(string) (bool, error) { return false, errors.ErrUnsupported }
func Detach(string) (bool, error)       { return false, errors.ErrUnsupported }
