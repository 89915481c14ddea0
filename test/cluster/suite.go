//go:build linux

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Kubernetes' external storage suite: the tests of a storage driver in k8s.io/kubernetes, for what
// the driver claims in a file. The program is built from testdata/suite.

// suitePage has the results, in a section for each driver.
const suitePage = "docs/reference/storage-suite.md"

// A suiteRun is the suite, or the part of it that focus matches, with one class where a test does
// not select another.
type suiteRun struct {
	driver, class string
	focus         string
	// of says which other class's name claims has in place of this one.
	of       string
	parallel int
}

// claims is a file of the driver that says what it claims, in the format of the suite.
func (x suiteRun) claims() string { return "examples/" + x.driver + "/deploy/storage-suite.yaml" }

// An exception is a test that is not run here, or known to fail, for a reason that is not the
// driver.
type exception struct{ test, why string }

var (
	slow = exception{`\[Slow\]|\[Disruptive\]`, "slow or disruptive: with `-suite -long`"}
	// cannot are the tests that are not run here.
	cannot = []exception{
		{`any volume data source`, "its controllers are images that the Go module proxy has no sources of"},
	}
	// cannotGrow are those that a machine without CAP_SYS_RESOURCE cannot run.
	cannotGrow = exception{
		`\((default fs|ext4)\).*(edited while pod is using it|expansion of pvcs created for ephemeral)`,
		"this machine has no CAP_SYS_RESOURCE, without which Linux grows no ext4 in use; the xfs of the other class is",
	}
	// knownFailures are tests whose mistakes testdata/suite/policies.yaml cannot correct.
	knownFailures = []exception{}
)

// nfsSubset are the tests that run on the emulated nodes, which take ten times as long: of each
// ability of the driver the main ones, and those of several nodes.
const nfsSubset = `(volumes should|provisioning should provision storage with|multiVolume.*different node|volume-expand Verify|snapshottable.*persistent|ephemeral should create|fsgroupchangepolicy.*\(Always\).*an initial fsgroup, new pod)`

// A spec is a test in Ginkgo's report.
type spec struct {
	ContainerHierarchyTexts    []string
	LeafNodeType, LeafNodeText string
	State                      string
	Failure                    struct{ Message string }
}

func (s spec) name() string {
	return strings.Join(append(s.ContainerHierarchyTexts, s.LeafNodeText), " ")
}

// run is the scenario of it.
func (x suiteRun) run(s *space) error {
	skipped := cannot
	if !s.Long {
		skipped = append(slices.Clone(skipped), slow)
	}
	if x.class == "blockdriver-ext4" && !hasCapability(unix.CAP_SYS_RESOURCE) {
		skipped = append(slices.Clone(skipped), cannotGrow)
	}
	focus := `External.Storage.*` + x.focus
	if s.Run != "" {
		focus += `.*(` + s.Run + `)`
	}
	program, err := exec.LookPath("suite.test")
	if err != nil {
		return err
	}
	dir := filepath.Join(s.dir, "suite-"+x.class)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(s.source, x.claims()))
	if err != nil {
		return err
	}
	claims := filepath.Join(dir, filepath.Base(x.claims()))
	if x.of != "" {
		text = []byte(strings.ReplaceAll(string(text), x.of, x.class))
	}
	if err := os.WriteFile(claims, text, 0o644); err != nil {
		return err
	}
	if err := s.correctSuite(); err != nil {
		return err
	}
	args := []string{fmt.Sprintf("--procs=%d", x.parallel), "--no-color", "--silence-skips", "--timeout=3h", "--output-dir=" + dir, "--json-report=report.json", "--focus=" + focus}
	for _, e := range skipped {
		args = append(args, "--skip="+e.test)
	}
	args = append(args, program, "--", "-kubeconfig="+s.ca.kubeconfig("admin"), "-provider=skeleton", "-storage.testdriver="+claims)
	log, err := os.Create(filepath.Join(s.dir, "suite-"+x.class+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.CommandContext(s.ctx, "ginkgo", args...)
	cmd.Dir = dir
	cmd.Stdout = io.MultiWriter(log, os.Stdout)
	cmd.Stderr = cmd.Stdout
	ran := cmd.Run()

	text, err = os.ReadFile(filepath.Join(dir, "report.json"))
	if err != nil {
		return errors.Join(ran, err)
	}
	var reports []struct{ SpecReports []spec }
	if err := json.Unmarshal(text, &reports); err != nil {
		return err
	}
	if len(reports) != 1 {
		return fmt.Errorf("%d reports", len(reports))
	}
	t := newSuiteTable(x, focus, reports[0].SpecReports, skipped)
	s.note = t.counts()
	s.suites = append(slices.DeleteFunc(s.suites, func(t *suiteTable) bool { return t.driver != x.driver }), t)
	if s.Run == "" {
		if err := writeSuiteTables(filepath.Join(s.source, suitePage), x.driver, s.part, s.Long, s.suites); err != nil {
			return err
		}
	}
	if s.Run != "" && count(t.passed)+count(t.failed)+len(t.notRun) == 0 {
		return errNotTested("no test of this part matches -run")
	}
	if len(t.passed) == 0 {
		return errors.Join(ran, errors.New("no test passed"))
	}
	_, err = s.kubectl("delete", "-f", suitePolicies)
	return errors.Join(t.unexpected, err)
}

const suitePolicies = "testdata/suite/policies.yaml"

// correctSuite creates the admission policies, and waits until they apply.
func (s *space) correctSuite() error {
	if _, err := s.kubectl("apply", "-f", suitePolicies); err != nil {
		return err
	}
	return s.poll(s.ctx, time.Minute, suitePolicies, func() error {
		class, err := s.kubectlStdin(s.ctx, `apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshotClass
metadata: {name: suite}
driver: example.com
deletionPolicy: Delete
parameters: {deletionPolicy: Delete}
`, "create", "--dry-run=server", "-f", "-", "-o", "jsonpath={.parameters}")
		if err != nil {
			return err
		}
		size, err := s.kubectlStdin(s.ctx, claim("suite", "", "1Mi", from("snapshot.storage.k8s.io", "VolumeSnapshot", "none")),
			"-n", s.name, "create", "--dry-run=server", "-f", "-", "-o", "jsonpath={.spec.resources.requests.storage}")
		if err != nil {
			return err
		}
		binding, err := s.kubectlStdin(s.ctx, `apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: volume-modify-stress-x}
provisioner: example.com
volumeBindingMode: WaitForFirstConsumer
`, "create", "--dry-run=server", "-f", "-", "-o", "jsonpath={.volumeBindingMode}")
		if err != nil {
			return err
		}
		if strings.Contains(class, "deletionPolicy") || size != "16Mi" || binding != "Immediate" {
			return fmt.Errorf("a class has %s, a claim %s, the binding is %s", class, size, binding)
		}
		return nil
	})
}

func hasCapability(c uintptr) bool {
	has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0)
	return err == nil && has == 1
}

// A suiteTable is the outcome of a suiteRun.
type suiteTable struct {
	suiteRun
	focused        string
	passed, failed map[[2]string][]string // test patterns by group of tests and test
	notRun         map[string]int         // tests by reason
	why            map[[2]string]string   // of those that failed
	unexpected     error
}

var (
	pattern  = regexp.MustCompile(`^\[Testpattern: (.*?)\](.*)`)
	tags     = regexp.MustCompile(` *\[[^]]*\]`)
	suiteOwn = regexp.MustCompile(`(?i)[ -]*skipping\.?$`)
	spaces   = regexp.MustCompile(`\s+`)
	// cause is what a reason ends with that differs between machines, such as a path.
	cause = regexp.MustCompile(`: 'error .*'$`)
)

func newSuiteTable(x suiteRun, focus string, specs []spec, skipped []exception) *suiteTable {
	t := &suiteTable{suiteRun: x, focused: focus, passed: map[[2]string][]string{}, failed: map[[2]string][]string{}, notRun: map[string]int{}, why: map[[2]string]string{}}
	focused := regexp.MustCompile(focus)
	for _, s := range specs {
		if s.LeafNodeType != "It" || !focused.MatchString(s.name()) {
			continue
		}
		var key [2]string
		var on string
		for _, text := range s.ContainerHierarchyTexts {
			if m := pattern.FindStringSubmatch(text); m != nil {
				on, key[0] = strings.TrimSpace(m[1]), strings.TrimSpace(tags.ReplaceAllString(m[2], ""))
			}
		}
		key[1] = tags.ReplaceAllString(s.LeafNodeText, "")
		message := spaces.ReplaceAllString(s.Failure.Message, " ")
		switch s.State {
		case "passed":
			t.passed[key] = append(t.passed[key], on)
		case "skipped", "pending":
			reason := cause.ReplaceAllString(suiteOwn.ReplaceAllString(message, ""), "")
			for _, e := range skipped {
				if reason == "" && regexp.MustCompile(e.test).MatchString(s.name()) {
					reason = e.why
				}
			}
			t.notRun[cmp.Or(reason, "not selected")]++
		default:
			t.failed[key] = append(t.failed[key], on)
			why := ""
			for _, e := range knownFailures {
				if regexp.MustCompile(e.test).MatchString(s.name()) {
					why = e.why
				}
			}
			if why == "" {
				t.unexpected = errors.Join(t.unexpected, fmt.Errorf("%s: %s: %s", s.name(), s.State, message))
				why = s.State + ": " + message[:min(len(message), 200)]
			}
			t.why[key] = why
		}
	}
	return t
}

func count(of map[[2]string][]string) (n int) {
	for _, patterns := range of {
		n += len(patterns)
	}
	return n
}

func (t *suiteTable) counts() string {
	notRun := 0
	for _, n := range t.notRun {
		notRun += n
	}
	return fmt.Sprintf("%d passed, %d failed, %d not run", count(t.passed), count(t.failed), notRun)
}

// writeSuiteTables writes the section of a driver into a page of the documentation.
func writeSuiteTables(name, driver string, p part, long bool, tables []*suiteTable) error {
	page, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	sections := map[string]string{}
	for _, section := range strings.Split("\n"+string(page), "\n## ")[1:] {
		of, _, _ := strings.Cut(section, "\n")
		sections[of] = strings.TrimRight(section, "\n") + "\n"
	}
	sections[driver] = suiteSection(driver, p, long, tables)
	var b strings.Builder
	b.WriteString(`# Kubernetes' storage suite

Kubernetes' own tests of a storage driver, in the version of
[` + "`test/cluster/build/suite.mod`" + `](../../test/cluster/build/suite.mod), for all that the file
` + "`deploy/storage-suite.yaml`" + ` of an example claims. Each section is written by the command that it names.
`)
	for _, of := range slices.Sorted(maps.Keys(sections)) {
		b.WriteString("\n## " + sections[of])
	}
	return os.WriteFile(name, []byte(b.String()), 0o644)
}

func suiteSection(driver string, p part, long bool, tables []*suiteTable) string {
	flags := "-suite"
	if p.guests {
		flags = "-nfs " + flags
	}
	if long {
		flags += " -long"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n`make test-cluster CLUSTER=\"%s\"`, with [`%s`](../../examples/%s/deploy/%[3]s) and the overlay `%[5]s`%s, on %d %s.\n",
		driver, flags, filepath.Base(tables[0].claims()), driver, filepath.Base(p.overlay), p.additions(), len(p.nodes), p.nodesAre())
	for _, t := range tables {
		fmt.Fprintf(&b, "\n### The class %s\n\nTests that match `%s`: %s.\n", t.class, t.focused, t.counts())
		for _, part := range []struct {
			title string
			of    map[[2]string][]string
		}{{"Failed", t.failed}, {"Passed", t.passed}} {
			if len(part.of) == 0 {
				continue
			}
			fmt.Fprintf(&b, "\n#### %s\n\n", part.title)
			if part.title == "Failed" {
				b.WriteString("| | test | volumes | why |\n|---|---|---|---|\n")
			} else {
				b.WriteString("| | test | volumes |\n|---|---|---|\n")
			}
			keys := slices.SortedFunc(maps.Keys(part.of), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) })
			for _, k := range keys {
				slices.Sort(part.of[k])
				fmt.Fprintf(&b, "| %s | %s | %s |", cell(k[0]), cell(k[1]), cell(strings.Join(part.of[k], ", ")))
				if part.title == "Failed" {
					fmt.Fprintf(&b, " %s |", cell(t.why[k]))
				}
				b.WriteString("\n")
			}
		}
		b.WriteString("\n#### Not run\n\n| tests | why |\n|---|---|\n")
		for _, why := range slices.Sorted(maps.Keys(t.notRun)) {
			fmt.Fprintf(&b, "| %d | %s |\n", t.notRun[why], cell(why))
		}
	}
	return b.String()
}

// additions are what a part adds to its overlay.
func (p part) additions() (s string) {
	for _, c := range p.components {
		s += " with `" + c + "`"
	}
	for _, a := range p.arguments {
		s += " with `" + a + "`"
	}
	return s
}

func (p part) nodesAre() string {
	s := "node"
	if p.guests {
		s = "virtual machine"
	}
	if len(p.nodes) > 1 {
		s += "s"
	}
	return s
}

func cell(s string) string {
	return strings.NewReplacer("|", "\\|", "<", "&lt;", ">", "&gt;").Replace(s)
}
