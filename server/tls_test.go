package server

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"
)

// A certificate whose time is over is in force and told of.
func TestCertificateDates(t *testing.T) {
	ca := newAuthority(t)
	ca.notAfter = time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC)
	conf := &TLS{}
	conf.CertFile, conf.KeyFile = ca.issue("reprieve")
	for _, c := range []struct {
		now  time.Time
		warn bool
	}{{ca.notAfter.Add(-time.Hour), false}, {ca.notAfter.Add(time.Hour), true}} {
		var log bytes.Buffer
		l := newListenerTLS(func() time.Time { return c.now }, slog.New(slog.NewTextHandler(&log, nil)))
		var contents [][]byte
		f := l.files(conf)[0]
		for _, p := range f.paths {
			b, err := os.ReadFile(p)
			if err != nil {
				t.Fatal(err)
			}
			contents = append(contents, b)
		}
		if err := f.apply(contents); err != nil || l.cert.Load() == nil {
			t.Fatalf("not in force: %v", err)
		}
		if strings.Contains(log.String(), "not valid now") != c.warn {
			t.Errorf("at %v the log has %q", c.now, log.String())
		}
	}
}
