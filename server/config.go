package server

import (
	"fmt"
	"time"

	"github.com/reprieve-dev/reprieve/engine"
)

// Config is all that an operator can set. Its zero value is no valid
// configuration: begin with [DefaultConfig].
type Config struct {
	// DataDir is the folder of the data file.
	DataDir string `yaml:"data_dir"`
	// Listen is the address of the gRPC services.
	Listen string `yaml:"listen"`
	// Kubeconfig or InCluster makes the service join a cluster itself, under the
	// name Cluster: by that file, or by the service account of its pod.
	Kubeconfig string    `yaml:"kubeconfig"`
	InCluster  bool      `yaml:"in_cluster"`
	Cluster    string    `yaml:"cluster"`
	Agent      InProcess `yaml:"agent"`
	// AdminListen is the address of metrics, health and profiles over HTTP. They
	// have no authentication.
	AdminListen string `yaml:"admin_listen"`
	// AllowPlaintext permits a listener without TLS off loopback.
	AllowPlaintext bool   `yaml:"allow_plaintext"`
	TLS            TLS    `yaml:"tls"`
	Auth           Auth   `yaml:"auth"`
	Audit          Audit  `yaml:"audit"`
	LogFormat      string `yaml:"log_format"`
	LogLevel       string `yaml:"log_level"`
	// Pprof serves profiles at /debug/pprof/ of the admin address.
	Pprof bool `yaml:"pprof"`
	// SelfPodUID is the UID of the pod that the service runs in, so that it can
	// warn of a cluster in which it is among the pods that it evicts.
	SelfPodUID string `yaml:"self_pod_uid"`
	Store      Store  `yaml:"store"`
	// Adopt is the mode of clusters that nobody set one for: shadow or enforce.
	Adopt string `yaml:"adopt"`
	// FeedTimeout is the silence after which a feed is lost.
	FeedTimeout Duration `yaml:"feed_timeout"`
	// MaxGap is the longest gap of a feed that is no new adoption.
	MaxGap Duration `yaml:"max_gap"`
	// Shards is how many goroutines share the decisions.
	Shards  int     `yaml:"shards"`
	History History `yaml:"history"`
	Limits  Limits  `yaml:"limits"`
	// Defaults are policy fields of every cluster, Clusters those of one, by
	// name. What operators store through the API overrides both.
	Defaults ClusterPolicy            `yaml:"defaults"`
	Clusters map[string]ClusterPolicy `yaml:"clusters"`
}

// Store says how the data file is treated.
type Store struct {
	// OnDamage says what to do about a file that is beyond help: refuse or set_aside.
	OnDamage string `yaml:"on_damage"`
}

// What to do about a data file that is beyond help.
const (
	onDamageRefuse   = "refuse"
	onDamageSetAside = "set_aside"
)

// TLS says with which certificate the service answers. Files are PEM.
type TLS struct {
	CertFile string `yaml:"cert_file"`
	KeyFile  string `yaml:"key_file"`
	// ClientCAFile has the authorities whose client certificates are believed.
	ClientCAFile string `yaml:"client_ca_file"`
}

func (t *TLS) enabled() bool { return t.CertFile != "" || t.KeyFile != "" || t.ClientCAFile != "" }

// Auth says who may call.
type Auth struct {
	// TokensFile has the hashes of bearer tokens with their roles.
	TokensFile string `yaml:"tokens_file"`
	// Anonymous gives callers without credentials every role. It is possible only
	// for plaintext on loopback, and there the default without a tokens file.
	Anonymous *bool `yaml:"anonymous"`
}

// Audit says where administrative acts and refused calls are written down.
type Audit struct {
	// File gets one JSON object a line; empty: the service's own log.
	File string `yaml:"file"`
	// A new file is begun after MaxSizeMB megabytes or RotateEvery, 0 for never.
	MaxSizeMB   int      `yaml:"max_size_mb"`
	RotateEvery Duration `yaml:"rotate_every"`
	// KeepFiles and KeepDays bound the old files that are kept.
	KeepFiles int `yaml:"keep_files"`
	KeepDays  int `yaml:"keep_days"`
}

// History bounds what is kept of closed evictions, by cluster.
type History struct {
	// Sent are evictions that fell due, Early those cancelled before.
	SentAge    Duration `yaml:"sent_age"`
	SentCount  int      `yaml:"sent_count"`
	EarlyAge   Duration `yaml:"early_age"`
	EarlyCount int      `yaml:"early_count"`
}

// Limits bound what a peer can ask of the service.
type Limits struct {
	// MaxMessageBytes is the largest message taken.
	MaxMessageBytes int `yaml:"max_message_bytes"`
	// MaxStreams is how many calls one connection may have at a time.
	MaxStreams int `yaml:"max_streams"`
	// StreamsPerIdentity is how many streams one caller may have at a time, over
	// all of its connections.
	StreamsPerIdentity int `yaml:"streams_per_identity"`
	// CallsPerSecond and CallsBurst are how often one caller may call; a stream
	// counts when it is opened. No calls a second: no bound.
	CallsPerSecond int `yaml:"calls_per_second"`
	CallsBurst     int `yaml:"calls_burst"`
	// MaxPageSize is the longest page of a list, whatever is asked for.
	MaxPageSize int `yaml:"max_page_size"`
	// StopTimeout bounds how long a stop waits for what is under way.
	StopTimeout Duration `yaml:"stop_timeout"`
}

// Duration is a time.Duration that is written as in Go: 30s, 1h30m.
type Duration time.Duration

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is no duration such as 30s or 1h30m", text)
	}
	*d = Duration(v)
	return nil
}

// DefaultConfig returns what holds where nothing is set.
func DefaultConfig() Config {
	q := engine.DefaultHistoryQuotas()
	return Config{
		DataDir:     "./data",
		Listen:      "127.0.0.1:7443",
		AdminListen: "127.0.0.1:7480",
		Cluster:     "default",
		Agent:       InProcess{Workers: 64, KubeAPIQPS: 200, KubeAPIBurst: 300},
		Audit:       Audit{MaxSizeMB: 100, RotateEvery: Duration(7 * 24 * time.Hour), KeepFiles: 20, KeepDays: 90},
		LogFormat:   "text",
		LogLevel:    "info",
		Store:       Store{OnDamage: onDamageRefuse},
		Adopt:       "shadow",
		FeedTimeout: Duration(30 * time.Second),
		MaxGap:      Duration(24 * time.Hour),
		Shards:      8,
		History: History{
			SentAge: Duration(q.SentAge), SentCount: q.SentCount, EarlyAge: Duration(q.EarlyAge), EarlyCount: q.EarlyCount,
		},
		Limits: Limits{
			MaxMessageBytes: 4 << 20, MaxStreams: 1000, StreamsPerIdentity: 1000, CallsPerSecond: 500, CallsBurst: 1000,
			MaxPageSize: 1000, StopTimeout: Duration(10 * time.Second),
		},
	}
}

// quotas are the history's, as the engine takes them.
func (h *History) quotas() engine.HistoryQuotas {
	return engine.HistoryQuotas{
		SentAge: time.Duration(h.SentAge), SentCount: h.SentCount, EarlyAge: time.Duration(h.EarlyAge), EarlyCount: h.EarlyCount,
	}
}
