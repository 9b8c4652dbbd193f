package cli

import (
	"time"

	"github.com/spf13/cobra"
)

// globalFlags are the flags of every command.
type globalFlags struct {
	server, token, tokenFile, ca, cert, key string
	plaintext, plaintextSet                 bool
	cluster, namespace, output              string
	wide                                    bool // tables are not cut
	timeout                                 time.Duration
}

const (
	outputTable = "table"
	outputWide  = "wide" // a table too: complete sets wide for it
	outputJSON  = "json"
	outputYAML  = "yaml"
)

func (g *globalFlags) register(root *cobra.Command) {
	f := root.PersistentFlags()
	f.StringVar(&g.server, "server", "127.0.0.1:7443", "address of the service, HOST:PORT")
	f.StringVar(&g.token, "token", "", "bearer token; --token-file keeps it out of the process list")
	f.StringVar(&g.tokenFile, "token-file", "", "file that holds the bearer token")
	f.StringVar(&g.ca, "ca", "", "PEM file of the authorities that sign the service's certificate (default: the system's)")
	f.StringVar(&g.cert, "cert", "", "PEM file of the client certificate, with --key")
	f.StringVar(&g.key, "key", "", "PEM file of the client certificate's key")
	f.BoolVar(&g.plaintext, "plaintext", false, "no TLS (default: on for a loopback address without --ca and --cert)")
	f.StringVar(&g.cluster, "cluster", "", "cluster, as the operator named it")
	f.StringVarP(&g.namespace, "namespace", "n", "", "namespace of pods")
	f.StringVarP(&g.output, "output", "o", outputTable, "output: table, wide (a table of which nothing is cut), json or yaml")
	f.DurationVar(&g.timeout, "timeout", 30*time.Second, "longest wait for an answer; streams are not bounded")
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{outputTable, outputWide, outputJSON, outputYAML}, cobra.ShellCompDirectiveNoFileComp))
}

// complete fills flags that were not given from the environment and checks them.
func (g *globalFlags) complete(cmd *cobra.Command, getenv func(string) string) error {
	given := func(name string) bool { return cmd.Flags().Changed(name) }
	for name, target := range map[string]*string{
		"server": &g.server, "token": &g.token, "token-file": &g.tokenFile, "ca": &g.ca, "cert": &g.cert, "key": &g.key, "cluster": &g.cluster,
	} {
		if v := getenv(envNames[name]); v != "" && !given(name) {
			*target = v
		}
	}
	g.plaintextSet = given("plaintext")
	if g.wide = g.output == outputWide; g.wide {
		g.output = outputTable
	}
	switch {
	case g.output != outputTable && g.output != outputJSON && g.output != outputYAML:
		return usagef("-o %s is unknown; use table, wide, json or yaml", g.output)
	case g.timeout <= 0:
		return usagef("--timeout %s must be positive, such as 30s", g.timeout)
	case given("token") && given("token-file"):
		return usagef("--token and --token-file exclude each other")
	case (g.cert == "") != (g.key == ""):
		return usagef("--cert and --key belong together")
	case g.plaintext && (g.ca != "" || g.cert != ""):
		return usagef("--plaintext and certificates exclude each other")
	}
	// A flag outranks the environment; of the two in the environment the file does.
	if g.token != "" && g.tokenFile != "" {
		if given("token") {
			g.tokenFile = ""
		} else {
			g.token = ""
		}
	}
	return nil
}

var envNames = map[string]string{
	"server": "REPRIEVE_SERVER", "token": "REPRIEVE_TOKEN", "token-file": "REPRIEVE_TOKEN_FILE",
	"ca": "REPRIEVE_CA", "cert": "REPRIEVE_CERT", "key": "REPRIEVE_KEY", "cluster": "REPRIEVE_CLUSTER",
}

// needCluster is the cluster of a command that concerns one.
func (g *globalFlags) needCluster() (string, error) {
	if g.cluster == "" {
		return "", usagef("say which cluster with --cluster or REPRIEVE_CLUSTER; `reprieve get clusters` lists them")
	}
	return g.cluster, nil
}
