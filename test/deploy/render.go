package deploy

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	groupsnapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// A tree is the deploy directory of a driver, in memory, so that a test can put a
// patch beside it.
type tree struct{ filesys.FileSystem }

func readTree(dir string) (tree, error) {
	t := tree{filesys.MakeFsInMemory()}
	return t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		return t.WriteFile(filepath.Join("/deploy", name), text)
	})
}

// render returns the objects of an overlay, with more components and with patches in
// the form of a kustomization's.
func (t tree) render(overlay string, components []string, patches ...types.Patch) ([]runtime.Object, error) {
	k := types.Kustomization{Resources: []string{"../deploy/overlays/" + overlay}, Patches: patches}
	for _, c := range components {
		k.Components = append(k.Components, "../deploy/components/"+c)
	}
	text, err := yaml.Marshal(k)
	if err != nil {
		return nil, err
	}
	if err := t.WriteFile("/test/kustomization.yaml", text); err != nil {
		return nil, err
	}
	return t.build("/test")
}

func (t tree) build(dir string) ([]runtime.Object, error) {
	m, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(t, dir)
	if err != nil {
		return nil, err
	}
	var objects []runtime.Object
	for _, r := range m.Resources() {
		text, err := r.AsYAML()
		if err != nil {
			return nil, err
		}
		o, err := decode(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.CurId(), err)
		}
		objects = append(objects, o)
	}
	return objects, nil
}

var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(clientscheme.AddToScheme(s))
	utilruntime.Must(snapshotv1.AddToScheme(s))
	utilruntime.Must(groupsnapshotv1.AddToScheme(s))
	utilruntime.Must(monitoringv1.AddToScheme(s))
	s.AddKnownTypeWithName(schema.GroupVersionKind{Group: metadataGroup, Version: "v1beta1", Kind: "SnapshotMetadataService"}, &snapshotMetadataService{})
	return s
}()

var codec = serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()

// decode reads one object. A field that its type does not have, or has twice, is an error.
func decode(text []byte) (runtime.Object, error) {
	o, _, err := codec.Decode(bytes.TrimSpace(text), nil, nil)
	return o, err
}
