package deploy

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
)

var rightsRules = []rule{
	{"account", "the pod runs as the default account, with whatever that may do", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			if !c.hasAccount(w.namespace, w.pod.ServiceAccountName) {
				report(w, "serviceAccountName is %q, which does not exist", w.pod.ServiceAccountName)
			}
			needs := len(w.rights(c)) > 0
			mounted := w.pod.AutomountServiceAccountToken == nil || *w.pod.AutomountServiceAccountToken
			if needs != mounted {
				report(w, "automountServiceAccountToken is %t, and it talks to the API server: %t", mounted, needs)
			}
		}
		for _, a := range c.accounts {
			if !slices.ContainsFunc(c.workloads, func(w *workload) bool { return w.pod.ServiceAccountName == a.Name && w.namespace == a.Namespace }) {
				report(a, "no pod uses it")
			}
		}
	}},
	{"rbac-missing", "the sidecar waits, or fails when it is first asked", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			granted := c.granted(w.namespace, w.pod.ServiceAccountName)
			for _, n := range w.all {
				for _, r := range c.rightsOf(n) {
					for _, g := range r.grants() {
						if !slices.ContainsFunc(granted, func(have grant) bool { return have.covers(g) }) {
							report(w.of(n), "%s may not %s (%s)", w.pod.ServiceAccountName, g, r.why)
						}
					}
				}
			}
		}
	}},
	{"rbac-excess", "an attacker in the pod may do what no sidecar in it needs", func(c *cluster, report reporter) {
		for _, w := range c.workloads {
			var needed []grant
			for _, other := range c.workloads {
				if other.pod.ServiceAccountName == w.pod.ServiceAccountName {
					needed = append(needed, other.rights(c)...)
				}
			}
			for _, have := range c.granted(w.namespace, w.pod.ServiceAccountName) {
				if !slices.ContainsFunc(needed, func(n grant) bool { return n == have }) {
					report(w, "%s may %s, which nothing in it needs", w.pod.ServiceAccountName, have)
				}
			}
		}
	}},
	{"bindings", "no account has the rights", func(c *cluster, report reporter) {
		role := func(namespace string, ref rbacv1.RoleRef) bool {
			if ref.Kind == "ClusterRole" {
				return slices.ContainsFunc(c.clusterRoles, func(r *rbacv1.ClusterRole) bool { return r.Name == ref.Name })
			}
			return slices.ContainsFunc(c.roles, func(r *rbacv1.Role) bool { return r.Name == ref.Name && r.Namespace == namespace })
		}
		check := func(object any, namespace string, ref rbacv1.RoleRef, subjects []rbacv1.Subject) {
			if !role(namespace, ref) {
				report(object, "there is no %s %s", ref.Kind, ref.Name)
			}
			for _, s := range subjects {
				if !c.hasAccount(s.Namespace, s.Name) {
					report(object, "there is no account %s in namespace %q", s.Name, s.Namespace)
				}
			}
		}
		for _, b := range c.roleBindings {
			check(b, b.Namespace, b.RoleRef, b.Subjects)
		}
		for _, b := range c.clusterRoleBindings {
			check(b, "", b.RoleRef, b.Subjects)
		}
	}},
}

// A grant is one verb on one resource.
type grant struct {
	namespaced            bool
	group, resource, verb string
}

func (g grant) String() string {
	where := "everywhere"
	if g.namespaced {
		where = "in its namespace"
	}
	return strings.TrimSpace(g.verb + " " + strings.TrimSuffix(g.resource+"."+g.group, ".") + " " + where)
}

// covers: what is granted everywhere is granted in the namespace too.
func (g grant) covers(need grant) bool {
	match := func(have, want string) bool { return have == want || have == "*" }
	return match(g.group, need.group) && match(g.resource, need.resource) && match(g.verb, need.verb) && (!g.namespaced || need.namespaced)
}

func (r right) grants() (gs []grant) {
	for _, resource := range r.resources {
		for _, verb := range r.verbs {
			gs = append(gs, grant{r.namespaced, r.group, resource, verb})
		}
	}
	return gs
}

// rightsOf lists what a container needs of the API server.
func (c *cluster) rightsOf(n *container) []right {
	if strings.HasPrefix(n.image, c.driver.name) {
		return n.lifecycleRights()
	}
	s := sidecars[n.image]
	if s.rights == nil {
		return nil
	}
	rs := s.rights(c, n)
	if n.is("leader-election") {
		rs = append(rs, elects)
	}
	return rs
}

func (w *workload) rights(c *cluster) (gs []grant) {
	for _, n := range w.all {
		for _, r := range c.rightsOf(n) {
			gs = append(gs, r.grants()...)
		}
	}
	return gs
}

func (c *cluster) hasAccount(namespace, name string) bool {
	for _, a := range c.accounts {
		if a.Name == name && a.Namespace == namespace {
			return true
		}
	}
	return false
}

// granted lists what the roles grant to an account.
func (c *cluster) granted(namespace, account string) (gs []grant) {
	is := func(s rbacv1.Subject) bool {
		return s.Kind == "ServiceAccount" && s.Namespace == namespace && s.Name == account
	}
	add := func(namespaced bool, rules []rbacv1.PolicyRule) {
		for _, r := range rules {
			for _, group := range r.APIGroups {
				gs = append(gs, right{namespaced, group, r.Resources, r.Verbs, ""}.grants()...)
			}
		}
	}
	for _, b := range c.clusterRoleBindings {
		for _, r := range c.clusterRoles {
			if r.Name == b.RoleRef.Name && slices.ContainsFunc(b.Subjects, is) {
				add(false, r.Rules)
			}
		}
	}
	for _, b := range c.roleBindings {
		if b.Namespace != namespace || !slices.ContainsFunc(b.Subjects, is) {
			continue
		}
		for _, r := range c.roles {
			if b.RoleRef.Kind == "Role" && r.Name == b.RoleRef.Name && r.Namespace == namespace {
				add(true, r.Rules)
			}
		}
		for _, r := range c.clusterRoles {
			if b.RoleRef.Kind == "ClusterRole" && r.Name == b.RoleRef.Name {
				add(true, r.Rules)
			}
		}
	}
	return gs
}
