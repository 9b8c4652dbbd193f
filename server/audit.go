package server

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/DeRuina/timberjack"
	"golang.org/x/time/rate"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/reprieve-dev/reprieve/internal/buildinfo"
	"github.com/reprieve-dev/reprieve/internal/clock"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// acts are the RPCs by which people and backends change what is evicted, and the
// backup, which hands out all records. Each call of one leaves a line in the audit
// log, whatever came of it; only of those that are refused by the hundred some are
// counted instead.
var acts = map[string]bool{
	reprievev1.EvictionService_RequestEviction_FullMethodName:  true,
	reprievev1.EvictionService_WithdrawEviction_FullMethodName: true,
	reprievev1.AdminService_SetPolicy_FullMethodName:           true,
	reprievev1.AdminService_PauseEvictions_FullMethodName:      true,
	reprievev1.AdminService_ResumeEvictions_FullMethodName:     true,
	reprievev1.AdminService_GrantReprieve_FullMethodName:       true,
	reprievev1.AdminService_RevokeReprieve_FullMethodName:      true,
	reprievev1.AdminService_ForgetCluster_FullMethodName:       true,
	reprievev1.AdminService_BackupStore_FullMethodName:         true,
	reprievev1.AdminService_ReleaseBlastRadius_FullMethodName:  true,
	reprievev1.AdminService_RejectBlastRadius_FullMethodName:   true,
}

const (
	// maxAuditText and maxAuditRequest bound what a caller can write into a line.
	maxAuditText    = 300
	maxAuditRequest = 2048
	// refusalsPerSecond and refusalsBurst keep somebody who is refused from
	// washing the acts of others out of the log.
	refusalsPerSecond = 5
	refusalsBurst     = 200
)

// Kinds of audit lines.
const (
	auditStart   = "start"
	auditAct     = "act"
	auditRefusal = "refusal"
)

// auditLine is one line of the audit log, without anything that opens a door.
type auditLine struct {
	Time         time.Time       `json:"time"`
	Kind         string          `json:"kind"`
	Identity     string          `json:"identity,omitempty"`
	IdentityKind callerKind      `json:"identity_kind,omitempty"`
	URIs         []string        `json:"identity_uris,omitempty"`
	Peer         string          `json:"peer,omitempty"`
	Method       string          `json:"method,omitempty"`
	Cluster      string          `json:"cluster,omitempty"`
	Request      json.RawMessage `json:"request,omitempty"`
	Code         string          `json:"code,omitempty"`
	Reason       string          `json:"reason,omitempty"`
	Message      string          `json:"message,omitempty"`
	Revision     string          `json:"revision,omitempty"`
	// Suppressed counts the refusals before this one that have no line.
	Suppressed int    `json:"suppressed,omitempty"`
	Version    string `json:"version,omitempty"`
}

// auditor writes the audit log: to its file, or to the service's log.
type auditor struct {
	conf    Audit
	clock   clock.Clock
	logger  *slog.Logger
	metrics *metrics

	mu sync.Mutex // guards what follows, and keeps lines apart
	// file is nil without one.
	file *timberjack.Logger
	// torn: the last write failed and left part of a line.
	torn       bool
	refusals   *rate.Limiter
	suppressed int
}

// newAuditor opens the file and begins it with a line, so that one that cannot
// be written is known before the service starts.
func newAuditor(conf Audit, c clock.Clock, m *metrics, logger *slog.Logger) (*auditor, error) {
	a := &auditor{conf: conf, clock: c, logger: logger, metrics: m, refusals: rate.NewLimiter(refusalsPerSecond, refusalsBurst)}
	for _, kind := range []string{auditStart, auditAct, auditRefusal} {
		m.auditLines.WithLabelValues(kind)
	}
	if conf.File == "" {
		return a, nil
	}
	a.file = conf.open()
	if err := a.append(&auditLine{Time: wallTime(c), Kind: auditStart, Version: buildinfo.Version()}); err != nil {
		a.close()
		return nil, fmt.Errorf("audit.file: %w; the service's user must be able to write there", err)
	}
	return a, nil
}

func (c *Audit) open() *timberjack.Logger {
	return &timberjack.Logger{
		Filename: c.File, MaxSize: c.MaxSizeMB, RotationInterval: time.Duration(c.RotateEvery), MaxBackups: c.KeepFiles, MaxAge: c.KeepDays,
		FileMode: 0o600,
	}
}

// reopen lets go of the file, which somebody else may have moved.
func (a *auditor) reopen() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.file != nil {
		_ = a.file.Close()
		a.file = a.conf.open()
	}
}

func (a *auditor) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.file != nil {
		if err := a.file.Close(); err != nil {
			a.logger.Warn("the audit file was not closed", "error", err)
		}
	}
}

// write writes a line. What the file does not take goes to the service's log.
func (a *auditor) write(l *auditLine) {
	l.Time = wallTime(a.clock)
	a.mu.Lock()
	defer a.mu.Unlock()
	if l.Kind == auditRefusal {
		if !a.refusals.AllowN(a.clock.Now(), 1) {
			a.suppressed++
			a.metrics.auditSuppressed.Inc()
			return
		}
		l.Suppressed, a.suppressed = a.suppressed, 0
	}
	if a.file == nil {
		a.log(slog.LevelInfo, l)
		a.metrics.auditLines.WithLabelValues(l.Kind).Inc()
		return
	}
	if err := a.append(l); err != nil {
		a.metrics.auditErrors.Inc()
		a.logger.Error("the audit file cannot be written; its line follows", "file", a.conf.File, "error", err)
		a.log(slog.LevelError, l)
	}
}

// append writes a line to the file. mu is held, or nobody else is there yet.
func (a *auditor) append(l *auditLine) error {
	data, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("encode the line: %w", err)
	}
	if a.torn {
		data = append([]byte{'\n'}, data...)
	}
	if n, err := a.file.Write(append(data, '\n')); err != nil {
		a.torn = a.torn || n > 0
		return err
	}
	a.torn = false
	a.metrics.auditLines.WithLabelValues(l.Kind).Inc()
	return nil
}

// log writes a line to the service's log, where "audit" marks it.
func (a *auditor) log(level slog.Level, l *auditLine) {
	a.logger.Log(context.Background(), level, "audit", "kind", l.Kind, "identity", l.Identity, "identity_kind", string(l.IdentityKind),
		"identity_uris", l.URIs, "peer", l.Peer, "method", l.Method, "cluster", l.Cluster, "request", string(l.Request), "code", l.Code,
		"reason", l.Reason, "message", l.Message, "revision", l.Revision, "suppressed", l.Suppressed)
}

// auditedCall is what becomes known of a call on its way through the interceptors.
type auditedCall struct {
	mu      sync.Mutex // guards what follows
	who     *caller
	cluster string
}

type auditedKey struct{}

// auditedFrom returns a context's call; one that nobody reads if it has none.
func auditedFrom(ctx context.Context) *auditedCall {
	if c, ok := ctx.Value(auditedKey{}).(*auditedCall); ok {
		return c
	}
	return &auditedCall{}
}

func (c *auditedCall) from(who *caller) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.who = who
}

func (c *auditedCall) about(cluster string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cluster = cluster
}

func (a *auditor) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	c := &auditedCall{}
	resp, err := handler(context.WithValue(ctx, auditedKey{}, c), req)
	if refused(err) || acts[info.FullMethod] {
		l := c.line(ctx, info.FullMethod, err)
		// What a stranger sends is not written down.
		if acts[info.FullMethod] && l.Identity != "" {
			l.Request = summary(req)
		}
		if l.Cluster == "" {
			if named, ok := req.(interface{ GetCluster() string }); ok {
				l.Cluster = cutText(named.GetCluster())
			}
		}
		if with, ok := resp.(interface{ GetEviction() *reprievev1.Eviction }); ok && err == nil {
			l.Revision = with.GetEviction().GetRevision()
		}
		a.write(l)
	}
	return resp, err
}

// contextStream is a stream with a context of its own.
type contextStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s *contextStream) Context() context.Context { return s.ctx }

func (a *auditor) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	c := &auditedCall{}
	err := handler(srv, &contextStream{ServerStream: ss, ctx: context.WithValue(ss.Context(), auditedKey{}, c)})
	if refused(err) || acts[info.FullMethod] {
		a.write(c.line(ss.Context(), info.FullMethod, err))
	}
	return err
}

// refused reports whether a call ended for want of credentials, rights or quota.
func refused(err error) bool {
	switch status.Code(err) {
	case codes.Unauthenticated, codes.PermissionDenied:
		return true
	case codes.ResourceExhausted:
		return reasonIn(err) == limitedReason
	default:
		return false
	}
}

func (c *auditedCall) line(ctx context.Context, method string, err error) *auditLine {
	c.mu.Lock()
	defer c.mu.Unlock()
	st := status.Convert(err)
	l := &auditLine{Kind: auditAct, Method: method, Cluster: cutText(c.cluster), Code: st.Code().String(), Reason: reasonIn(err), Message: cutText(st.Message())}
	if refused(err) {
		l.Kind = auditRefusal
	}
	if c.who != nil {
		l.Identity, l.IdentityKind, l.URIs = c.who.name, c.who.kind, c.who.uris
	}
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		l.Peer = p.Addr.String()
	}
	return l
}

// reasonIn is the service's reason in an error for callers.
func reasonIn(err error) string {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == errorDomain {
			return info.GetReason()
		}
	}
	return ""
}

// cutText bounds a text from outside.
func cutText(text string) string { return text[:min(len(text), maxAuditText)] }

// summary is a request as JSON. Of one that is long only the names of its fields
// are kept.
func summary(req any) json.RawMessage {
	m, ok := req.(proto.Message)
	if !ok {
		return nil
	}
	if data, err := protojson.Marshal(m); err == nil && len(data) <= maxAuditRequest {
		return data
	}
	fields := []string{}
	m.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		fields = append(fields, string(f.Name()))
		return true
	})
	slices.Sort(fields)
	data, err := json.Marshal(map[string]any{"bytes": proto.Size(m), "fields": fields})
	if err != nil {
		return nil
	}
	return data
}
