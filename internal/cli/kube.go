package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/reprieve-dev/reprieve/client/agent"
	"github.com/reprieve-dev/reprieve/internal/buildinfo"
)

// kubeFlags say how a command reaches an API server.
type kubeFlags struct{ kubeconfig, context string }

func (f *kubeFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig file (default: the pod's service account)")
	cmd.Flags().StringVar(&f.context, "context", "", "context of the kubeconfig (default: its current one)")
}

// client is one of the API server, without a pace of its own.
func (f *kubeFlags) client() (kubernetes.Interface, error) {
	conf, err := agent.KubeConfig(f.kubeconfig, f.context)
	if err != nil {
		return nil, usagef("%v", err)
	}
	conf.QPS = -1
	conf.ContentType = "application/vnd.kubernetes.protobuf"
	conf.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	rest.AddUserAgent(conf, "reprieve/"+buildinfo.Version())
	k, err := kubernetes.NewForConfig(conf)
	if err != nil {
		return nil, usagef("%v", err)
	}
	return k, nil
}

// kubeError gives an error of an API server its exit code and says what to do. role
// is the ClusterRole that the command needs.
func kubeError(err error, role string) error {
	var status apierrors.APIStatus
	answered := errors.As(err, &status)
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case apierrors.IsForbidden(err):
		return &hintError{err: &exitError{err: err, code: exitDenied}, hint: "bind the user to the ClusterRole " + role + " (deploy/rbac/tolerations.yaml)"}
	case apierrors.IsUnauthorized(err):
		return &hintError{err: &exitError{err: err, code: exitDenied}, hint: "the API server does not know the credentials of the kubeconfig: renew them"}
	case !answered, apierrors.IsServiceUnavailable(err), apierrors.IsTimeout(err), apierrors.IsServerTimeout(err):
		return &hintError{err: &exitError{err: err, code: exitUnavailable}, hint: "does the kubeconfig name the right API server, and is it up?"}
	}
	return err
}
