package server

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Invocation is what a command line asks for.
type Invocation struct {
	Config Config
	// ValidateOnly asks to check the configuration and stop.
	ValidateOnly bool
	// ShowVersion asks for the version and nothing else.
	ShowVersion bool
}

// flags are those of the command line. Each but --config, --validate-config and
// --version is also a key of the configuration file, and goes before it.
func flags(inv *Invocation, path *string, out io.Writer) *flag.FlagSet {
	c := &inv.Config
	fs := flag.NewFlagSet("reprieved", flag.ContinueOnError)
	fs.SetOutput(out)
	fs.StringVar(path, "config", *path, "configuration file (YAML)")
	fs.BoolVar(&inv.ValidateOnly, "validate-config", inv.ValidateOnly, "check the configuration and exit")
	fs.BoolVar(&inv.ShowVersion, "version", inv.ShowVersion, "print the version and exit")
	fs.StringVar(&c.DataDir, "data-dir", c.DataDir, "folder of the data file")
	fs.StringVar(&c.Listen, "listen", c.Listen, "address of the gRPC services")
	fs.StringVar(&c.AdminListen, "admin-listen", c.AdminListen, "address of metrics, health and profiles over HTTP")
	fs.StringVar(&c.Kubeconfig, "kubeconfig", c.Kubeconfig, "join the cluster of this kubeconfig `file` in this process, as reprieve agent does")
	fs.BoolVar(&c.InCluster, "in-cluster", c.InCluster, "join the cluster that this process runs in, by its pod's service account")
	fs.StringVar(&c.Cluster, "cluster", c.Cluster, "name of the cluster that --kubeconfig or --in-cluster joins")
	fs.StringVar(&c.SelfPodUID, "self-pod-uid", c.SelfPodUID, "UID of the pod that this process runs in; default: $"+selfPodUIDEnv)
	fs.StringVar(&c.Adopt, "adopt", c.Adopt, "mode of clusters that nobody set one for: shadow or enforce")
	fs.BoolVar(&c.AllowPlaintext, "allow-plaintext", c.AllowPlaintext, "permit a listener without TLS off loopback")
	fs.StringVar(&c.LogFormat, "log-format", c.LogFormat, "text or json")
	fs.StringVar(&c.LogLevel, "log-level", c.LogLevel, "debug, info, warn or error")
	fs.BoolVar(&c.Pprof, "pprof", c.Pprof, "serve profiles at the admin address")
	return fs
}

// selfPodUIDEnv is the variable that the downward API fills, which no file can.
const selfPodUIDEnv = "REPRIEVE_SELF_POD_UID"

// ownDefaults are the defaults with what the environment says.
func ownDefaults() Config {
	c := DefaultConfig()
	c.SelfPodUID = os.Getenv(selfPodUIDEnv)
	return c
}

// ParseArgs reads the command line and the configuration file it names. out
// gets the usage. Its error is flag.ErrHelp if that was all that was wanted.
// The configuration has yet to be validated.
func ParseArgs(args []string, out io.Writer) (Invocation, error) {
	inv := Invocation{Config: ownDefaults()}
	var path string
	fs := flags(&inv, &path, out)
	if err := fs.Parse(args); err != nil {
		return inv, err
	}
	if fs.NArg() > 0 {
		return inv, fmt.Errorf("unexpected argument %q; settings are flags or keys of the --config file", fs.Arg(0))
	}
	if path == "" {
		return inv, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return inv, fmt.Errorf("read configuration: %w", err)
	}
	inv.Config = ownDefaults()
	if err := parseConfig(data, &inv.Config); err != nil {
		return inv, fmt.Errorf("configuration %s: %w", path, err)
	}
	// Once more, over what the file says.
	return inv, flags(&inv, &path, out).Parse(args)
}

// parseConfig lays a file over c. A key that does not exist is an error that
// names its line.
func parseConfig(data []byte, c *Config) error {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(c); err != nil && !errors.Is(err, io.EOF) {
		return plainYAMLError(err)
	}
	if err := dec.Decode(&struct{}{}); !errors.Is(err, io.EOF) {
		return errors.New("has more than one YAML document; write one")
	}
	return nil
}

// unknownKey is the decoder's word for a key that the struct lacks.
var unknownKey = regexp.MustCompile(`^(line \d+): field (\S+) not found in type \S+$`)

// plainYAMLError says what the decoder found in one line, without the names of Go types.
func plainYAMLError(err error) error {
	var wrong *yaml.TypeError
	if !errors.As(err, &wrong) {
		return err
	}
	faults := make([]string, len(wrong.Errors))
	for i, e := range wrong.Errors {
		faults[i] = unknownKey.ReplaceAllString(e, "$1: unknown key $2; docs/configuration.md lists the keys")
	}
	return errors.New(strings.Join(faults, "; "))
}
