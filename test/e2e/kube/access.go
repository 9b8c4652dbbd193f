package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"

	"github.com/reprieve-dev/reprieve/test/e2e/await"
)

// ClusterRules returns the rules of a ClusterRole, and of a Role of the same name, from a file of manifests.
func ClusterRules(t testing.TB, path, name string) []rbacv1.PolicyRule {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var rules []rbacv1.PolicyRule
	for docs := yaml.NewYAMLOrJSONDecoder(f, 4096); ; {
		var role rbacv1.ClusterRole
		switch err := docs.Decode(&role); {
		case errors.Is(err, io.EOF) && rules == nil:
			t.Fatalf("%s has no ClusterRole %s", path, name)
		case errors.Is(err, io.EOF):
			return rules
		case err != nil:
			t.Fatalf("read %s: %v", path, err)
		case (role.Kind == "ClusterRole" || role.Kind == "Role") && role.Name == name:
			rules = append(rules, role.Rules...)
		}
	}
}

// Without returns the rules without a verb on a resource: "pods", or "pods/status".
func Without(rules []rbacv1.PolicyRule, verb, resource string) []rbacv1.PolicyRule {
	var left []rbacv1.PolicyRule
	for _, rule := range rules {
		if rule := *rule.DeepCopy(); slices.Contains(rule.Resources, resource) && slices.Contains(rule.Verbs, verb) {
			others := rule
			others.Resources = slices.DeleteFunc(slices.Clone(rule.Resources), func(r string) bool { return r == resource })
			rule.Resources = []string{resource}
			rule.Verbs = slices.DeleteFunc(rule.Verbs, func(v string) bool { return v == verb })
			left = append(left, others, rule)
		} else {
			left = append(left, rule)
		}
	}
	return slices.DeleteFunc(left, func(r rbacv1.PolicyRule) bool { return len(r.Resources) == 0 || len(r.Verbs) == 0 })
}

// Grant gives a user these rules and no others in the whole cluster.
func Grant(t testing.TB, cs kubernetes.Interface, user string, rules []rbacv1.PolicyRule) {
	t.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: user}, Rules: rules}
	_, err := cs.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = cs.RbacV1().ClusterRoles().Update(t.Context(), role, metav1.UpdateOptions{})
	}
	if err == nil {
		_, err = cs.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: user},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
		}, metav1.CreateOptions{})
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatalf("grant rules to %s: %v", user, err)
	}
}

// WaitAllowed waits until the API server lets a user, or no longer lets it, do the verb to pods or a subresource of
// them: what it was granted takes a moment to be heeded.
func WaitAllowed(t testing.TB, cs kubernetes.Interface, user, verb, subresource string, want bool) {
	t.Helper()
	await.Until(t, settleWithin, fmt.Sprintf("user %s to %s pods %s: %t", user, verb, subresource, want), func(ctx context.Context) error {
		got, err := cs.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: metav1.NamespaceDefault, Verb: verb, Resource: "pods", Subresource: subresource,
			}},
		}, metav1.CreateOptions{})
		if err == nil && got.Status.Allowed != want {
			err = fmt.Errorf("the API server says %t: %s", got.Status.Allowed, got.Status.Reason)
		}
		return err
	})
}
