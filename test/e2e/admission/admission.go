package admission

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/reprieve-dev/reprieve/test/e2e/await"
)

const (
	// answerWithin is the longest that the API server waits for a verdict; more is not possible.
	answerWithin = 30
	// liveWithin bounds how long the API server takes to heed the webhook.
	liveWithin = time.Minute
	// canary is the pod by which the guard finds out that the webhook is heeded.
	canary = "admission-canary"
)

// Verb is what a user wants to do to a pod.
type Verb string

// The verbs that a guard sees.
const (
	Delete      Verb = "delete"
	PatchStatus Verb = "patch status"
)

// Ask is one request that the API server wants a verdict on.
type Ask struct {
	Verb            Verb
	Namespace, Name string
	// UID is that of the pod that the API server had read when it asked.
	UID types.UID
	// At is when it asked.
	At time.Time
	// Denied is the verdict; nil while there is none, and if it was let through.
	Denied error
}

// Guard is a webhook that asks the test about one user's requests.
type Guard struct {
	user   string
	decide func(context.Context, Ask) error

	// mu guards what follows.
	mu   sync.Mutex
	asks []Ask
	live bool
}

// Start puts a guard before the pods of a cluster until the test ends, and returns when the API server heeds it.
// decide is called for each of the user's deletes and status updates of pods, several at once if they are; an error
// denies the request. It may wait up to half a minute. A guard that does not answer denies.
func Start(t testing.TB, cs kubernetes.Interface, user string, decide func(context.Context, Ask) error) *Guard {
	t.Helper()
	g := &Guard{user: user, decide: decide}
	server := httptest.NewTLSServer(g)
	t.Cleanup(server.Close)
	hooks := cs.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if _, err := hooks.Create(t.Context(), configuration(server.URL, authority), metav1.CreateOptions{}); err != nil {
		t.Fatalf("register the webhook: %v", err)
	}
	g.waitLive(t, cs)
	return g
}

func configuration(url string, authority []byte) *registrationv1.ValidatingWebhookConfiguration {
	fail, none, seconds := registrationv1.Fail, registrationv1.SideEffectClassNone, int32(answerWithin)
	rule := func(op registrationv1.OperationType, resource string) registrationv1.RuleWithOperations {
		return registrationv1.RuleWithOperations{
			Operations: []registrationv1.OperationType{op},
			Rule:       registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{resource}},
		}
	}
	return &registrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "e2e"},
		Webhooks: []registrationv1.ValidatingWebhook{{
			Name: "guard.e2e.reprieve.dev", ClientConfig: registrationv1.WebhookClientConfig{URL: &url, CABundle: authority},
			Rules:         []registrationv1.RuleWithOperations{rule(registrationv1.Delete, "pods"), rule(registrationv1.Update, "pods/status")},
			FailurePolicy: &fail, SideEffects: &none, TimeoutSeconds: &seconds, AdmissionReviewVersions: []string{"v1"},
		}},
	}
}

// waitLive asks for the deletion of a pod, which is not carried out, until the webhook hears of it.
func (g *Guard) waitLive(t testing.TB, cs kubernetes.Interface) {
	t.Helper()
	pods := cs.CoreV1().Pods(metav1.NamespaceDefault)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: canary},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "registry.invalid/main"}}},
	}
	if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatalf("create pod %s: %v", canary, err)
	}
	await.Until(t, liveWithin, "the API server to heed the webhook", func(ctx context.Context) error {
		if err := pods.Delete(ctx, canary, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
			return err
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		if !g.live {
			return errors.New("it did not ask")
		}
		return nil
	})
	if err := pods.Delete(t.Context(), canary, metav1.DeleteOptions{}); err != nil {
		t.Fatalf("delete pod %s: %v", canary, err)
	}
}

// ServeHTTP answers the API server.
func (g *Guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
		http.Error(w, fmt.Sprintf("no admission review: %v", err), http.StatusBadRequest)
		return
	}
	verdict := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	if err := g.judge(r.Context(), review.Request); err != nil {
		verdict.Allowed, verdict.Result = false, &metav1.Status{Message: err.Error()}
	}
	review.Request, review.Response = nil, verdict
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) // The API server that asked has gone away.
}

func (g *Guard) judge(ctx context.Context, req *admissionv1.AdmissionRequest) error {
	if req.UserInfo.Username != g.user {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.live = g.live || req.Name == canary
		return nil
	}
	var pod corev1.Pod
	if err := json.Unmarshal(req.OldObject.Raw, &pod); err != nil {
		return fmt.Errorf("the pod cannot be read: %w", err)
	}
	ask := Ask{Verb: Delete, Namespace: req.Namespace, Name: req.Name, UID: pod.UID, At: await.Now()}
	if req.SubResource == "status" {
		ask.Verb = PatchStatus
	}
	g.mu.Lock()
	i := len(g.asks)
	g.asks = append(g.asks, ask)
	g.mu.Unlock()
	err := g.decide(ctx, ask)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asks[i].Denied = err
	return err
}

// Asked returns what the user wanted to do to the pod of that UID, in order.
func (g *Guard) Asked(uid types.UID, verb Verb) []Ask {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(g.asks), func(a Ask) bool { return a.UID != uid || a.Verb != verb })
}
