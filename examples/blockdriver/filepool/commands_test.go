package filepool

import (
	"bytes"
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/csikit/csikit/examples/blockdriver/storage"
)

func command(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	ok, err := New().Command(args, func(string) string { return "" }, &out)
	if !ok {
		t.Fatalf("%v is no command", args)
	}
	return out.String(), err
}

// tree lists the files below dir with their sizes.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil && !strings.Contains(path, markerName+".") {
			b.WriteString(strings.TrimPrefix(path, dir) + " " + info.ModTime().String() + "\n")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestFsck(t *testing.T) {
	needLinux(t)
	dir := filepath.Join(t.TempDir(), "pool")
	b := openBackend(t, dir, nil)
	b.reflink = false
	ids := map[string]string{"copied": volumeID("copied"), "blank": volumeID("blank")}
	id := func(name string) string { return ids[name] }
	v := func(name string) string { return filepath.Join(dir, "volumes", id(name)) }
	for _, name := range []string{"sound", "noimage", "damaged", "grown", "deleting", "marked", "lost", "uncommitted", "attached"} {
		ids[name] = filled(t, b, name).ID
	}
	mustRegister(t, b.pool, "n")
	if _, err := b.AttachVolume(t.Context(), id("attached"), storage.Attachment{NodeID: "n"}); err != nil {
		t.Fatal(err)
	}
	mustSnap(t, b, "s", id("sound"))
	if out, err := command(t, "fsck", "-pool", dir); err != nil || !strings.Contains(out, "no problems") {
		t.Fatalf("a sound pool: %v\n%s", err, out)
	}
	if _, err := command(t, "fsck", "-repair", "-pool", dir); err == nil || !strings.Contains(err.Error(), "another controller owns the pool") {
		t.Fatalf("while a controller runs: %v", err)
	}
	closeBackend(t, b)
	write(t, v("sound")+".json.tmp", "{")
	write(t, v("damaged")+extMetadata, "{")
	write(t, v("marked")+extDeleting, "")
	write(t, v("copied")+extCopying, `{"version":1,"source":"volumes/x"}`)
	write(t, v("copied")+extImage, "half")
	write(t, filepath.Join(dir, "volumes", "notes.txt"), "")
	write(t, filepath.Join(dir, "groups", groupID("g")+extFrozen), `{"version":1,"node_id":"n"}`)
	write(t, v("blank")+extImage, "")
	write(t, filepath.Join(dir, "nodes", "m.json"), `{"version":1,"node_id":"`)
	write(t, filepath.Join(dir, "groups", groupID("unreadable")+extMaking), `{"version":1,"na`)
	orphanID := snapshotID(memberName("never", "v"))
	write(t, filepath.Join(dir, "groups", groupID("never")+extMaking), `{"version":1,"name":"never","volume_ids":["v"]}`)
	orphan := `{"version":1,"id":"` + orphanID + `","size_bytes":4,"access_type":"ext4","created_at":"2026-01-01T00:00:00Z","group_id":"` + groupID("never") + `"}`
	write(t, filepath.Join(dir, "snapshots", orphanID+extMetadata), orphan)
	write(t, filepath.Join(dir, "snapshots", orphanID+extImage), "data")
	if err := errors.Join(
		os.Remove(v("noimage")+extImage),
		os.Truncate(v("grown")+extImage, 2*gib),
		os.Rename(v("deleting")+extMetadata, v("deleting")+extDeleting),
		os.Remove(v("lost")+extMetadata),
		os.Remove(v("uncommitted")+extMetadata), os.Truncate(v("uncommitted")+extImage, 0), os.Truncate(v("uncommitted")+extImage, gib),
		os.Remove(filepath.Join(dir, "nodes", "n.json")),
	); err != nil {
		t.Fatal(err)
	}
	stay := []string{
		"is missing", "metadata damaged", "not a file of the driver's", "left frozen", "holds data, and its metadata is missing", `node "n", which is unknown`,
		"the record of a node cannot be parsed", "the mark of an interrupted group snapshot is damaged",
	}
	repair := []string{
		"an interrupted write", "a deletion that has ended", "an interrupted deletion", "an interrupted copy", "an interrupted expansion from 1073741824 to 2147483648",
		"an interrupted creation", "an interrupted group snapshot", "which was never finished",
	}
	before := tree(t, dir)
	out, err := command(t, "fsck", "-pool", dir)
	if !errors.Is(err, storage.ErrReported) || !strings.Contains(out, "17 problems, 9 of which") {
		t.Errorf("%v\n%s", err, out)
	}
	for _, text := range append(stay, repair...) {
		if !strings.Contains(out, text) {
			t.Errorf("nothing about %q", text)
		}
	}
	if after := tree(t, dir); after != before {
		t.Errorf("something was changed:\n%s\nbefore:\n%s", after, before)
	}
	out, err = command(t, "fsck", "-repair", "-pool", dir)
	if !errors.Is(err, storage.ErrReported) || strings.Count(out, "done: ") != 9 || !strings.Contains(out, "8 problems, 0 of which") {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = command(t, "fsck", "-pool", dir)
	if !errors.Is(err, storage.ErrReported) || !strings.Contains(out, "8 problems, 0 of which") {
		t.Errorf("%v\n%s", err, out)
	}
	for _, text := range stay {
		if !strings.Contains(out, text) {
			t.Errorf("nothing about %q any more", text)
		}
	}
	b = openBackend(t, dir, nil)
	for name, size := range map[string]int64{"sound": gib, "grown": 2 * gib, "marked": gib, "lost": gib} {
		wantFilled(t, b, id(name), name, size)
	}
	wantFilled(t, b, b.snapshotID("s"), "sound", gib)
}

// An earlier version does not find by its name what a later one has made.
func TestFsckOfOneNameTwice(t *testing.T) {
	needLinux(t)
	dir := t.TempDir()
	b := openBackend(t, dir, nil)
	v := mustCreate(t, b, spec("a"))
	closeBackend(t, b)
	v.ID = volumeID("a")
	data, err := encode(v.metadata())
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "volumes", v.ID+extMetadata), string(data))
	write(t, filepath.Join(dir, "volumes", v.ID+extImage), "")
	if err := os.Truncate(filepath.Join(dir, "volumes", v.ID+extImage), gib); err != nil {
		t.Fatal(err)
	}
	out, err := command(t, "fsck", "-pool", dir)
	if !errors.Is(err, storage.ErrReported) || !strings.Contains(out, "a volume of this name is also in the pool") || !strings.Contains(out, "1 problems") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestInit(t *testing.T) {
	dir := t.TempDir()
	empty, used := filepath.Join(dir, "empty"), filepath.Join(dir, "used")
	for _, d := range []string{empty, used} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(used, "thesis.txt"), "")
	for range 2 {
		if out, err := command(t, "init", "-pool", "a="+empty); err != nil || !strings.Contains(out, empty+" is a pool") {
			t.Errorf("%s, %v", out, err)
		}
	}
	missing := filepath.Join(dir, "missing")
	p := New()
	_ = p.pools.Set(missing)
	err := p.Check()
	if err == nil {
		_, err = p.OpenBackend(t.Context(), testEnv())
	}
	if err == nil || !strings.Contains(err.Error(), "run: blockdriver init -pool "+missing) {
		t.Errorf("started without a pool: %v", err)
	}
	if _, err := os.Lstat(missing); err == nil {
		t.Error("a pool was made")
	}
	// For a start script: what was a pool is not created again.
	disk, remembered := filepath.Join(dir, "disk"), t.TempDir()
	for range 2 {
		if _, err := command(t, "init", "-once", remembered, "-pool", disk); err != nil {
			t.Fatal(err)
		}
	}
	unmount := func() {
		if err := errors.Join(os.Rename(disk, disk+".away"), os.Mkdir(disk, 0o700)); err != nil {
			t.Fatal(err)
		}
	}
	unmount()
	if _, err := command(t, "init", "-once", remembered, "-pool", disk); err == nil || !strings.Contains(err.Error(), "there was a pool, as "+remembered) {
		t.Error(err)
	}
	if names, err := os.ReadDir(disk); err != nil || len(names) > 0 {
		t.Errorf("%v, %v", names, err)
	}
	if err := errors.Join(os.Remove(disk), os.Rename(disk+".away", disk)); err != nil {
		t.Fatal(err)
	}
	// A pool that was made before is remembered too.
	later := t.TempDir()
	if _, err := command(t, "init", "-once", later, "-pool", disk); err != nil {
		t.Fatal(err)
	}
	unmount()
	if _, err := command(t, "init", "-once", later, "-pool", disk); err == nil {
		t.Error("created again")
	}
	if _, err := command(t, "init", "-once", later+"/nowhere", "-pool", disk); err == nil || !strings.Contains(err.Error(), "-once") {
		t.Error(err)
	}
	if _, err := command(t, "init", "-pool", used); err == nil || !strings.Contains(err.Error(), "thesis.txt") {
		t.Error(err)
	}
	for _, args := range [][]string{{"init"}, {"fsck", "x"}, {"init", "-repair"}, {"fsck", "-pool", "rel"}, {"fsck", "-pool", used}} {
		if _, err := command(t, args...); err == nil || errors.Is(err, storage.ErrReported) {
			t.Errorf("%v: %v", args, err)
		}
	}
	if out, err := command(t, "fsck", "-h"); !errors.Is(err, flag.ErrHelp) || !strings.Contains(out, "-repair") {
		t.Errorf("%s, %v", out, err)
	}
}
