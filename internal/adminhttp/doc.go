// Package adminhttp is the HTTP side of the programs: /metrics, /healthz, /readyz
// and, if enabled, profiles. It knows nothing of what it tells about.
package adminhttp
