package server

import (
	"crypto/sha256"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/reprieve-dev/reprieve/internal/clock"
)

// reloadEvery is how often files are looked at. Their content is compared, not
// their times: a secret volume swaps a symbolic link, and a copy keeps times.
const reloadEvery = 2 * time.Second

// Files that are read again, as metrics name them.
const (
	fileCertificate = "certificate"
	fileClientCA    = "client_ca"
	fileTokens      = "tokens"
)

// reloadable is a setting that files hold.
type reloadable struct {
	name  string
	paths []string
	// apply puts the files' contents in force, or says what is wrong with them
	// and changes nothing.
	apply func(contents [][]byte) error
}

func (r *reloadable) read() ([][]byte, error) { return readFiles(r.paths) }

// watchedFile is a reloadable and what is known of it.
type watchedFile struct {
	reloadable
	// inForce and seen are hashes of the contents in force and of those seen last.
	inForce, seen [sha256.Size]byte
	// fault is the last one told.
	fault string
}

// reloader reads files again when they change. What is broken changes nothing.
type reloader struct {
	clock            clock.Clock
	logger           *slog.Logger
	reloads, failed  *prometheus.CounterVec
	timer            clock.Timer
	always, reloaded func()

	mu      sync.Mutex // guards what follows, and is held over a look
	files   []*watchedFile
	stopped bool
}

// newReloader takes files whose present contents are in force. reloaded is called
// after contents were replaced, always after each look.
func newReloader(d *Deps, m *metrics, reloaded, always func()) *reloader {
	r := &reloader{clock: d.Clock, logger: d.Logger, reloads: m.reloads, failed: m.reloadErrors, reloaded: reloaded, always: always}
	r.timer = d.Clock.NewTimer(func() { r.look(false) })
	for _, name := range []string{fileCertificate, fileClientCA, fileTokens} {
		r.reloads.WithLabelValues(name)
		r.failed.WithLabelValues(name)
	}
	return r
}

// add watches a setting. Its first contents are applied now; the error is theirs.
func (r *reloader) add(f reloadable) error {
	contents, err := f.read()
	if err != nil {
		return err
	}
	if err := f.apply(contents); err != nil {
		return err
	}
	w := &watchedFile{reloadable: f, inForce: sumOf(contents)}
	w.seen = w.inForce
	r.mu.Lock()
	defer r.mu.Unlock()
	r.files = append(r.files, w)
	return nil
}

// sumOf is the hash of contents, each with its length.
func sumOf(contents [][]byte) (sum [sha256.Size]byte) {
	h := sha256.New()
	for _, c := range contents {
		_, _ = fmt.Fprintf(h, "%d:", len(c))
		_, _ = h.Write(c)
	}
	h.Sum(sum[:0])
	return sum
}

func (r *reloader) start() { r.timer.Reset(r.clock.Now().Add(reloadEvery)) }

func (r *reloader) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
	r.timer.Stop()
}

// look reads all files. New contents count when they were seen twice, so that a
// file that is being written is not taken half; with now they count at once.
func (r *reloader) look(now bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		return
	}
	changed := false
	for _, f := range r.files {
		switch taken, err := f.look(now); {
		case err != nil:
			r.failed.WithLabelValues(f.name).Inc()
			if f.fault != err.Error() {
				f.fault = err.Error()
				r.logger.Error("a changed file is not taken; what it held before stays in force", "file", f.name, "paths", f.paths, "error", err)
			}
		case taken:
			changed = true
			r.reloads.WithLabelValues(f.name).Inc()
			r.logger.Info("a changed file is in force", "file", f.name, "paths", f.paths)
		}
	}
	if changed {
		r.reloaded()
	}
	r.always()
	r.timer.Reset(r.clock.Now().Add(reloadEvery))
}

// look reports whether new contents were put in force.
func (f *watchedFile) look(now bool) (taken bool, err error) {
	contents, err := f.read()
	if err != nil {
		return false, err
	}
	sum := sumOf(contents)
	if sum == f.inForce {
		f.fault, f.seen = "", sum
		return false, nil
	}
	if !now && sum != f.seen {
		f.seen = sum
		return false, nil
	}
	if err := f.apply(contents); err != nil {
		return false, err
	}
	f.fault, f.inForce, f.seen = "", sum, sum
	return true, nil
}

// tokensFile is the tokens file at a path, for a checker. One that was emptied, as
// by a full disk, does not shut out everybody.
func tokensFile(path string, creds *credentialChecker) reloadable {
	return reloadable{name: fileTokens, paths: []string{path}, apply: func(contents [][]byte) error {
		list, err := parseTokens(path, contents[0])
		if err != nil {
			return err
		}
		if old := creds.tokens.Load(); len(list) == 0 && old != nil && len(*old) > 0 {
			return fmt.Errorf("tokens file %s has no tokens any more; to refuse everybody, stop the service", path)
		}
		creds.tokens.Store(&list)
		return nil
	}}
}

// Reload looks at the files of certificates and tokens now, instead of within
// seconds, and takes what has changed. It opens the audit file again.
func (s *Service) Reload() {
	s.audit.reopen()
	s.reloader.look(true)
}
