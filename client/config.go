package client

import (
	"context"
	"errors"
	"net"
	"net/url"
	"strings"
	"time"
)

// Defaults and bounds of [Config].
const (
	// DefaultKeepAlive is how often a silent connection is probed.
	DefaultKeepAlive = 30 * time.Second
	// MinKeepAlive is the shortest keepalive that gRPC takes.
	MinKeepAlive = 10 * time.Second
	// MaxReceiveBytes bounds one message from the service.
	MaxReceiveBytes = 64 << 20
	// MaxSendBytes bounds one message to the service, which takes no more.
	MaxSendBytes = 4 << 20
)

// Config says how to reach the service and as whom. Without Plaintext the
// connection is TLS, checked against the system's roots unless TLS says otherwise.
type Config struct {
	// Address is host:port, or any target that gRPC resolves. Required.
	Address string
	// TLS are the TLS files and names. Excludes Plaintext.
	TLS TLS
	// Token is a bearer token that goes with every call. Excludes TokenFile.
	Token string
	// TokenFile is a file with the bearer token, read again for every call so
	// that the token may be rotated.
	TokenFile string
	// Plaintext connects without TLS.
	Plaintext bool
	// AllowInsecureToken sends the token over plaintext to any address. Without it
	// plaintext and a token go together on loopback and Unix sockets only.
	AllowInsecureToken bool
	// UserAgent names the program in the service's logs.
	UserAgent string
	// KeepAlive is how often a silent connection with open streams is probed; 0
	// means DefaultKeepAlive, and less than MinKeepAlive is refused.
	KeepAlive time.Duration
	// Dialer opens connections instead of the network, as for a service in the
	// same process. The address is then passed to it unresolved.
	Dialer func(ctx context.Context, address string) (net.Conn, error)
}

// TLS are the files of a TLS connection. All are PEM.
type TLS struct {
	// CAFile has the certificates to trust; empty means the system's.
	CAFile string
	// CertFile and KeyFile are the client's own certificate, for mutual TLS. They
	// are read again for every connection so that they may be rotated.
	CertFile, KeyFile string
	// ServerName is the name expected in the service's certificate; empty means
	// the address's host.
	ServerName string
}

// Validate reports all faults of the configuration at once.
func (c *Config) Validate() error {
	var faults []error
	fault := func(bad bool, text string) {
		if bad {
			faults = append(faults, errors.New(text))
		}
	}
	hasToken := c.Token != "" || c.TokenFile != ""
	fault(c.Address == "", "address is empty: set host:port")
	fault(c.Token != "" && c.TokenFile != "", "token and token file are both set: set one")
	fault(c.Plaintext && c.TLS != TLS{}, "plaintext and TLS files are both set: set one")
	fault((c.TLS.CertFile == "") != (c.TLS.KeyFile == ""), "a client certificate needs both its certificate file and its key file")
	fault(c.KeepAlive != 0 && c.KeepAlive < MinKeepAlive, "keepalive "+c.KeepAlive.String()+" is less than "+MinKeepAlive.String())
	fault(c.Plaintext && hasToken && !c.AllowInsecureToken && !loopback(c.Address),
		"a token would go unencrypted to "+c.Address+": use TLS, or allow insecure tokens")
	return errors.Join(faults...)
}

// loopback reports whether a target does not leave this machine.
func loopback(target string) bool {
	if strings.HasPrefix(target, "unix:") || strings.HasPrefix(target, "unix-abstract:") {
		return true
	}
	if scheme, _, ok := strings.Cut(target, "://"); ok {
		u, err := url.Parse(target)
		if err != nil || scheme != "dns" && scheme != "passthrough" {
			return false
		}
		target = strings.TrimPrefix(u.Path, "/")
	} else {
		target = strings.TrimPrefix(strings.TrimPrefix(target, "dns:"), "passthrough:")
	}
	host, _, err := net.SplitHostPort(target)
	if err != nil {
		host = strings.Trim(target, "[]")
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
