package deploy

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/apps"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	appsvalidation "k8s.io/kubernetes/pkg/apis/apps/validation"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/apis/networking"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	networkingvalidation "k8s.io/kubernetes/pkg/apis/networking/validation"
	"k8s.io/kubernetes/pkg/apis/policy"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	policyvalidation "k8s.io/kubernetes/pkg/apis/policy/validation"
	"k8s.io/kubernetes/pkg/apis/rbac"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"
	rbacvalidation "k8s.io/kubernetes/pkg/apis/rbac/validation"
	"k8s.io/kubernetes/pkg/apis/storage"
	_ "k8s.io/kubernetes/pkg/apis/storage/install"
	storagevalidation "k8s.io/kubernetes/pkg/apis/storage/validation"
	"k8s.io/kubernetes/pkg/capabilities"
)

// validate does what the API server does with a new object before it stores it:
// defaults, and the validation of its kind. Kinds of CRDs are left to their decoding.
func validate(o runtime.Object) error {
	capabilities.Setup(true, 0) // API servers allow privileged containers
	o = o.DeepCopyObject()
	legacyscheme.Scheme.Default(o)
	pod := corevalidation.PodValidationOptions{}
	switch o := o.(type) {
	case *appsv1.Deployment:
		return validateAs(o, &apps.Deployment{}, func(i *apps.Deployment) field.ErrorList { return appsvalidation.ValidateDeployment(i, pod) })
	case *appsv1.DaemonSet:
		return validateAs(o, &apps.DaemonSet{}, func(i *apps.DaemonSet) field.ErrorList { return appsvalidation.ValidateDaemonSet(i, pod) })
	case *appsv1.StatefulSet:
		return validateAs(o, &apps.StatefulSet{}, func(i *apps.StatefulSet) field.ErrorList { return appsvalidation.ValidateStatefulSet(i, pod) })
	case *corev1.Pod:
		return validateAs(o, &core.Pod{}, func(i *core.Pod) field.ErrorList { return corevalidation.ValidatePodCreate(i, pod) })
	case *corev1.PersistentVolumeClaim:
		return validateAs(o, &core.PersistentVolumeClaim{}, func(i *core.PersistentVolumeClaim) field.ErrorList {
			return corevalidation.ValidatePersistentVolumeClaim(i, corevalidation.PersistentVolumeClaimSpecValidationOptions{EnableVolumeAttributesClass: true})
		})
	case *corev1.PersistentVolume:
		return validateAs(o, &core.PersistentVolume{}, func(i *core.PersistentVolume) field.ErrorList {
			return corevalidation.ValidatePersistentVolume(i, corevalidation.PersistentVolumeSpecValidationOptions{})
		})
	case *corev1.Namespace:
		return validateAs(o, &core.Namespace{}, corevalidation.ValidateNamespace)
	case *corev1.Service:
		if o.Spec.ClusterIP != "" { // as the API server does before it validates
			o.Spec.ClusterIPs = []string{o.Spec.ClusterIP}
		}
		return validateAs(o, &core.Service{}, corevalidation.ValidateServiceCreate)
	case *corev1.ServiceAccount:
		return validateAs(o, &core.ServiceAccount{}, corevalidation.ValidateServiceAccount)
	case *rbacv1.ClusterRole:
		return validateAs(o, &rbac.ClusterRole{}, func(i *rbac.ClusterRole) field.ErrorList {
			return rbacvalidation.ValidateClusterRole(i, rbacvalidation.ClusterRoleValidationOptions{})
		})
	case *rbacv1.ClusterRoleBinding:
		return validateAs(o, &rbac.ClusterRoleBinding{}, rbacvalidation.ValidateClusterRoleBinding)
	case *rbacv1.Role:
		return validateAs(o, &rbac.Role{}, rbacvalidation.ValidateRole)
	case *rbacv1.RoleBinding:
		return validateAs(o, &rbac.RoleBinding{}, rbacvalidation.ValidateRoleBinding)
	case *storagev1.CSIDriver:
		return validateAs(o, &storage.CSIDriver{}, storagevalidation.ValidateCSIDriver)
	case *storagev1.StorageClass:
		return validateAs(o, &storage.StorageClass{}, storagevalidation.ValidateStorageClass)
	case *storagev1.VolumeAttributesClass:
		return validateAs(o, &storage.VolumeAttributesClass{}, storagevalidation.ValidateVolumeAttributesClass)
	case *policyv1.PodDisruptionBudget:
		return validateAs(o, &policy.PodDisruptionBudget{}, func(i *policy.PodDisruptionBudget) field.ErrorList {
			return policyvalidation.ValidatePodDisruptionBudget(i, policyvalidation.PodDisruptionBudgetValidationOptions{})
		})
	case *networkingv1.NetworkPolicy:
		return validateAs(o, &networking.NetworkPolicy{}, func(i *networking.NetworkPolicy) field.ErrorList {
			return networkingvalidation.ValidateNetworkPolicy(i, networkingvalidation.NetworkPolicyValidationOptions{})
		})
	}
	if legacyscheme.Scheme.IsVersionRegistered(o.GetObjectKind().GroupVersionKind().GroupVersion()) {
		return fmt.Errorf("no validation for %T: add its kind to validate", o)
	}
	return nil
}

// validateAs converts a versioned object to the internal one, as the API server does.
func validateAs[T runtime.Object](o runtime.Object, internal T, check func(T) field.ErrorList) error {
	if err := legacyscheme.Scheme.Convert(o, internal, nil); err != nil {
		return err
	}
	return check(internal).ToAggregate()
}
