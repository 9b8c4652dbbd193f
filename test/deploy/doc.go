// Package deploy proves what deploy/ and docs/ say of the programs: that the
// metrics they name exist, that the manifests' flags and configuration are taken,
// that every alert has a runbook. It holds tests only and must not be imported.
package deploy
