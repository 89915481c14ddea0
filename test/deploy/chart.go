package deploy

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chartv2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
)

// A chart is the Helm chart of a driver.
type chart struct {
	dir   string
	chart *chartv2.Chart
}

// A release is what the chart's templates yield.
type release struct {
	objects []runtime.Object
	tests   []runtime.Object // the hooks of "helm test"
	notes   string
}

func readChart(dir string) (*chart, error) {
	c, err := loader.LoadDir(dir)
	return &chart{dir, c}, err
}

// values are those of values.yaml with the files of the chart's directory "values" on top.
func (c *chart) values(files ...string) (map[string]any, error) {
	all := map[string]any{}
	for _, name := range files {
		v, err := common.ReadValuesFile(filepath.Join(c.dir, "values", name+".yaml"))
		if err != nil {
			return nil, err
		}
		all = loader.MergeMaps(all, v)
	}
	return all, nil
}

var (
	separator = regexp.MustCompile(`(?m)^---\s*$`)
	comment   = regexp.MustCompile(`(?m)^\s*(#.*)?\n`)
)

// render does what "helm template" does: it validates the values by the chart's schema, and
// returns the objects, of the API versions that a cluster of the driver has.
func (c *chart) render(namespace string, values map[string]any) (*release, error) {
	version, err := common.ParseKubeVersion("v1.34.0") // the oldest that the examples support
	if err != nil {
		return nil, err
	}
	capabilities := common.DefaultCapabilities.Copy()
	capabilities.KubeVersion = *version
	options := common.ReleaseOptions{Name: namespace, Namespace: namespace, Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(c.chart, values, options, capabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(c.chart, all)
	if err != nil {
		return nil, err
	}
	r := &release{}
	for name, text := range files {
		if filepath.Base(name) == "NOTES.txt" {
			r.notes = text
			continue
		}
		if strings.HasPrefix(filepath.Base(name), "_") {
			continue
		}
		for _, doc := range separator.Split(text, -1) {
			if comment.ReplaceAllString(doc+"\n", "") == "" {
				continue
			}
			o, err := decode([]byte(doc))
			if err != nil {
				return nil, fmt.Errorf("%s: %w\n%s", name, err, doc)
			}
			m, err := meta.Accessor(o)
			if err != nil {
				return nil, err
			}
			if hook := m.GetAnnotations()["helm.sh/hook"]; hook == "test" {
				r.tests = append(r.tests, o)
			} else if hook != "" {
				return nil, fmt.Errorf("%s: hook %s is not known here", nameOf(o), hook)
			} else {
				r.objects = append(r.objects, o)
			}
		}
	}
	byName := func(a, b runtime.Object) int { return strings.Compare(nameOf(a), nameOf(b)) }
	slices.SortFunc(r.objects, byName)
	slices.SortFunc(r.tests, byName)
	return r, nil
}
