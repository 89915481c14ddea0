package filepool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/csikit/csikit/csierr"
)

// An xfs that grows while it is mounted writes the superblocks of its new allocation
// groups, then its log, then the superblocks of all other groups, and that of the first
// last. Of an image that is cloned in between, Linux may be unable to replay the log. The
// node has the first one written as soon as the file system has grown, and the kernel
// does it within half a minute in any case.

// checkGrown fails with csierr.Busy if the image of an xfs was cloned in that time.
func checkGrown(image io.ReaderAt, nodeID string) error {
	first, err := readXFS(image, 0)
	end := first.groupBytes * first.groups
	if err != nil || end <= 0 { // it was never formatted
		return err
	}
	second, err := readXFS(image, first.groupBytes)
	if err != nil {
		return err
	}
	behind, err := readXFS(image, end)
	if err != nil {
		return err
	}
	if second.id == first.id && second.blocks > first.blocks || behind.id == first.id {
		return fmt.Errorf("%w: its xfs is growing on node %q, and a copy of this point in time may be unusable; try again when NodeExpandVolume or NodeStageVolume has ended there, or when the volume is detached", csierr.Busy, nodeID)
	}
	return nil
}

// xfsSuperblock is what stands at the start of each allocation group.
type xfsSuperblock struct {
	id                 string // of the file system
	blocks             uint64
	groups, groupBytes int64
}

// readXFS returns nothing where there is no superblock.
func readXFS(image io.ReaderAt, at int64) (xfsSuperblock, error) {
	sb := make([]byte, 128)
	if at < 0 { // damaged numbers
		return xfsSuperblock{}, nil
	}
	_, err := image.ReadAt(sb, at)
	if errors.Is(err, io.EOF) || err == nil && string(sb[:4]) != "XFSB" {
		return xfsSuperblock{}, nil
	}
	be := binary.BigEndian // filesystems/xfs, on-disk format: sb_uuid, sb_dblocks, sb_agcount, sb_agblocks, sb_blocksize
	return xfsSuperblock{string(sb[32:48]), be.Uint64(sb[8:]), int64(be.Uint32(sb[88:])), int64(be.Uint32(sb[84:])) * int64(be.Uint32(sb[4:]))}, err
}
