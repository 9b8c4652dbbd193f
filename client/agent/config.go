package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"regexp"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"k8s.io/client-go/rest"

	"github.com/reprieve-dev/reprieve/internal/clock"
)

// Defaults and bounds of [Config].
const (
	// DefaultWorkers is how many orders are worked on at once.
	DefaultWorkers = 64
	// MaxWorkers is the contract's bound on an executor's capacity.
	MaxWorkers = 10000
	// DefaultQPS and DefaultBurst leave room for the two calls that an eviction
	// takes, at the default rate of 50 evictions a second, and for reading nodes.
	DefaultQPS   = 200
	DefaultBurst = 300
	// DefaultNamespace is where the leader's lease is.
	DefaultNamespace = "reprieve-system"
	// DefaultLeaseName is the leader's lease.
	DefaultLeaseName = "reprieve-agent"
)

// Config says which cluster an agent serves, and how.
type Config struct {
	// Cluster is the cluster's name with the service, a DNS label. Required.
	Cluster string
	// Kube is the way to the cluster's API server. Its rate limits are not used:
	// QPS and Burst take their place. Required.
	Kube *rest.Config
	// Conn is the way to the service, usually a client.Conn. Required.
	Conn grpc.ClientConnInterface
	// ID names this agent among those of the cluster, uniquely in each run. Required.
	ID string
	// LeaderElect lets several agents share a cluster: one leads, by the lease
	// LeaseName in Namespace. Without it this must be the cluster's only agent.
	LeaderElect          bool
	Namespace, LeaseName string
	// Workers is how many orders are worked on at once.
	Workers int
	// QPS and Burst bound the calls that carry out orders, each second and at
	// once. Watches, the lease and events do not count. QPS 0 means no bound.
	QPS   float64
	Burst int
	// Version is told to the service.
	Version string
	// Clock times watches and node reads. Required.
	Clock clock.Clock
	// Registry gets the agent's metrics; nil keeps them to itself.
	Registry prometheus.Registerer
	// Logger gets what happens; nil discards it.
	Logger *slog.Logger
}

// UniqueID is an id that no other agent has and no other run of this one had: a
// lease's holder must be unique.
func UniqueID() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s_%016x", host, rand.Uint64())
}

var dnsLabel = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// Validate reports all faults of the configuration at once.
func (c *Config) Validate() error {
	var faults []error
	for _, f := range []struct {
		bad  bool
		text string
	}{
		{!dnsLabel.MatchString(c.Cluster), fmt.Sprintf("cluster %q is not a DNS label (a-z, 0-9 and -, at most 63 characters)", c.Cluster)},
		{c.Kube == nil, "the API server's configuration is missing"},
		{c.Conn == nil, "the connection to the service is missing"},
		{c.ID == "", "id is empty"},
		{c.LeaderElect && !dnsLabel.MatchString(c.Namespace), fmt.Sprintf("namespace %q of the lease is not a DNS label", c.Namespace)},
		{c.LeaderElect && c.LeaseName == "", "the lease has no name"},
		{c.Workers < 1 || c.Workers > MaxWorkers, fmt.Sprintf("workers %d is not within 1 and %d", c.Workers, MaxWorkers)},
		{!(c.QPS >= 0 && c.QPS <= math.MaxInt32), fmt.Sprintf("QPS %g is not within 0, which means no bound, and %d", c.QPS, math.MaxInt32)},
		{c.QPS > 0 && c.Burst < 1, fmt.Sprintf("burst %d is less than 1", c.Burst)},
		{c.Clock == nil, "the clock is missing"},
	} {
		if f.bad {
			faults = append(faults, errors.New(f.text))
		}
	}
	return errors.Join(faults...)
}
