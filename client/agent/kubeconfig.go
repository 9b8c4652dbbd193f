package agent

import (
	"errors"
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// KubeConfig is the way to an API server: that of a context of a kubeconfig file,
// the file's current one if the name is empty, or with an empty path that of the
// pod this program runs in.
func KubeConfig(path, contextName string) (*rest.Config, error) {
	if path == "" {
		conf, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, errors.New("this is no pod with a service account: name a kubeconfig file")
		}
		return conf, err
	}
	conf, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: path}, &clientcmd.ConfigOverrides{CurrentContext: contextName}).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		// client-go's own words tell of an environment variable that is not read here.
		return nil, fmt.Errorf("kubeconfig %s names no cluster to use: write one, with a user and a current context", path)
	}
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	return conf, nil
}
