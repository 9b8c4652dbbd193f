package server

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"regexp"
	"slices"
	"time"
)

var clusterName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// podUID is a UUID, or the hash that a mirror pod has in its place.
var podUID = regexp.MustCompile(`^[A-Za-z0-9-]{1,63}$`)

// Validate reports every fault of the configuration, with the bounds that it
// exceeds. It reads the files that the configuration names and opens no port.
func (c *Config) Validate() error {
	v := &validation{}
	v.check(c.DataDir != "", "data_dir is empty: name a folder")
	v.address("listen", c.Listen)
	if c.AdminListen != "" {
		v.address("admin_listen", c.AdminListen)
		v.check(c.AdminListen != c.Listen || port(c.Listen) == "0", "admin_listen is the same address as listen: %s", c.Listen)
	}
	v.check(c.Kubeconfig == "" || !c.InCluster, "kubeconfig and in_cluster are both set: set one")
	v.check(!c.joins() || clusterName.MatchString(c.Cluster), "cluster: %q is no DNS label (a-z, 0-9 and -, at most 63 characters)", c.Cluster)
	v.number("agent.workers", c.Agent.Workers, 1, 10_000)
	v.check(c.Agent.KubeAPIQPS >= 0 && c.Agent.KubeAPIQPS <= 1e6, "agent.kube_api_qps: %g is not between 0 and 1000000", c.Agent.KubeAPIQPS)
	v.number("agent.kube_api_burst", c.Agent.KubeAPIBurst, 1, 1_000_000)
	v.oneOf("log_format", c.LogFormat, "text", "json")
	v.oneOf("log_level", c.LogLevel, "debug", "info", "warn", "error")
	v.oneOf("store.on_damage", c.Store.OnDamage, onDamageRefuse, onDamageSetAside)
	v.oneOf("adopt", c.Adopt, "shadow", "enforce")
	v.check(c.SelfPodUID == "" || podUID.MatchString(c.SelfPodUID), "self_pod_uid: %q is no pod's UID", c.SelfPodUID)
	v.duration("feed_timeout", c.FeedTimeout, 5*time.Second, time.Hour)
	v.duration("max_gap", c.MaxGap, time.Minute, 365*24*time.Hour)
	v.number("shards", c.Shards, 1, 256)
	v.duration("history.sent_age", c.History.SentAge, time.Minute, 10*365*24*time.Hour)
	v.number("history.sent_count", c.History.SentCount, 1, 100_000_000)
	v.duration("history.early_age", c.History.EarlyAge, time.Minute, 10*365*24*time.Hour)
	v.number("history.early_count", c.History.EarlyCount, 1, 100_000_000)
	// Less than the least would refuse the batches of this product's own feeders.
	v.number("limits.max_message_bytes", c.Limits.MaxMessageBytes, 4<<20, 64<<20)
	v.number("limits.max_streams", c.Limits.MaxStreams, 1, 1_000_000)
	v.number("limits.streams_per_identity", c.Limits.StreamsPerIdentity, 1, 1_000_000)
	v.number("limits.calls_per_second", c.Limits.CallsPerSecond, 0, 1_000_000)
	v.number("limits.calls_burst", c.Limits.CallsBurst, 1, 1_000_000)
	v.number("limits.max_page_size", c.Limits.MaxPageSize, 1, 1000)
	v.duration("limits.stop_timeout", c.Limits.StopTimeout, time.Second, 10*time.Minute)
	v.number("audit.max_size_mb", c.Audit.MaxSizeMB, 1, 10_000)
	v.check(c.Audit.RotateEvery == 0 || time.Duration(c.Audit.RotateEvery) >= time.Minute, "audit.rotate_every: %s is neither 0 nor at least 1m", time.Duration(c.Audit.RotateEvery))
	v.number("audit.keep_files", c.Audit.KeepFiles, 1, 10_000)
	v.number("audit.keep_days", c.Audit.KeepDays, 1, 10_000)
	v.policies(c)
	v.security(c)
	return errors.Join(v.faults...)
}

type validation struct{ faults []error }

func (v *validation) check(ok bool, format string, args ...any) {
	if !ok {
		v.faults = append(v.faults, fmt.Errorf(format, args...))
	}
}

func (v *validation) add(where string, err error) {
	if err != nil {
		v.faults = append(v.faults, fmt.Errorf("%s: %w", where, err))
	}
}

func (v *validation) address(key, addr string) {
	_, port, err := net.SplitHostPort(addr)
	v.check(err == nil && port != "", "%s: %q is no address of the form HOST:PORT", key, addr)
}

func (v *validation) oneOf(key, value string, values ...string) {
	v.check(slices.Contains(values, value), "%s: %q is none of %v", key, value, values)
}

func (v *validation) duration(key string, d Duration, low, high time.Duration) {
	v.check(time.Duration(d) >= low && time.Duration(d) <= high, "%s: %s is not between %s and %s", key, time.Duration(d), low, high)
}

func (v *validation) number(key string, n, low, high int) {
	v.check(n >= low && n <= high, "%s: %d is not between %d and %d", key, n, low, high)
}

func (v *validation) policies(c *Config) {
	_, err := c.Defaults.patch()
	v.add("defaults", err)
	for _, name := range slices.Sorted(maps.Keys(c.Clusters)) {
		p := c.Clusters[name]
		v.check(clusterName.MatchString(name), "clusters: %q is no cluster name: it must be a DNS label of at most 63 characters", name)
		_, err := p.patch()
		v.add("clusters."+name, err)
	}
}

func (v *validation) security(c *Config) {
	local := loopback(c.Listen)
	v.check(c.TLS.enabled() || local || c.AllowPlaintext,
		"listen: %s is not on loopback and tls is not set: tokens and pod names would cross the network in clear; set tls, or allow_plaintext", c.Listen)
	v.check(!c.TLS.enabled() || c.TLS.CertFile != "" && c.TLS.KeyFile != "", "tls: cert_file and key_file must both be set")
	wants := c.Auth.Anonymous != nil && *c.Auth.Anonymous
	v.check(!wants || local && !c.TLS.enabled(), "auth.anonymous: is possible only without tls on loopback, where only the machine's own users can connect")
	v.check(c.anonymous() || wants || c.Auth.TokensFile != "" || c.TLS.ClientCAFile != "",
		"auth: nobody could call: set auth.tokens_file or tls.client_ca_file")
	if c.TLS.CertFile != "" && c.TLS.KeyFile != "" {
		v.add("tls", c.TLS.check())
	}
	if c.Auth.TokensFile != "" {
		_, err := readTokens(c.Auth.TokensFile)
		v.add("auth.tokens_file", err)
	}
}

// anonymous reports whether callers without credentials may do everything.
func (c *Config) anonymous() bool {
	if c.TLS.enabled() || !loopback(c.Listen) {
		return false
	}
	if c.Auth.Anonymous != nil {
		return *c.Auth.Anonymous
	}
	return c.Auth.TokensFile == ""
}

// loopback reports whether only the machine itself can connect to an address.
func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func port(addr string) string {
	_, p, _ := net.SplitHostPort(addr)
	return p
}

// check reads the files.
func (t *TLS) check() error {
	var faults []error
	for _, f := range newListenerTLS(nil, nil).files(t) {
		contents, err := f.read()
		if err == nil {
			err = f.apply(contents)
		}
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// logLevel is the configured level.
func (c *Config) logLevel() slog.Level {
	var l slog.Level
	// Validate has seen that it is one.
	_ = l.UnmarshalText([]byte(c.LogLevel))
	return l
}
