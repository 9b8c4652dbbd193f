package adminhttp

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// headerTimeout bounds how long a client may take to ask.
const headerTimeout = 10 * time.Second

// Config says what a server tells of.
type Config struct {
	Registry *prometheus.Registry
	// Ready says why the program cannot do its work; nil if it can.
	Ready func() error
	// Parts say the same of parts of the program, by name. Each has a path of its
	// own below /readyz and no say in what that answers.
	Parts map[string]func() error
	// Profiles adds profiles.
	Profiles bool
	// Logger is told what goes wrong with connections, such as that there are no
	// more file descriptors; nil is the standard logger.
	Logger *slog.Logger
}

// NewServer returns a server of metrics, health and, if asked, profiles, without
// an address.
func NewServer(c Config) *http.Server {
	srv := &http.Server{Handler: handler(c), ReadHeaderTimeout: headerTimeout}
	if c.Logger != nil {
		srv.ErrorLog = slog.NewLogLogger(c.Logger.Handler(), slog.LevelWarn)
	}
	return srv
}

func handler(c Config) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(c.Registry, promhttp.HandlerOpts{Registry: c.Registry}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "ok") })
	mux.Handle("GET /readyz", readiness(c.Ready))
	for name, ready := range c.Parts {
		mux.Handle("GET /readyz/"+name, readiness(ready))
	}
	if c.Profiles {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return mux
}

func readiness(ready func() error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			answer(w, http.StatusServiceUnavailable, err.Error())
			return
		}
		answer(w, http.StatusOK, "ok")
	})
}

func answer(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	// A client that has gone needs no answer.
	_, _ = fmt.Fprintln(w, text)
}
