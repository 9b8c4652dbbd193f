package e2e

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/reprieve-dev/reprieve/test/e2e/kube"
)

func tolerateForEver(key string) []corev1.Toleration {
	return []corev1.Toleration{kube.Tolerate(key, -1)}
}
