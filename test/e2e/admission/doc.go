// Package admission puts a validating webhook of the test's own before pods, so that the test decides what the API
// server refuses and when it answers. It must not know Reprieve.
package admission
