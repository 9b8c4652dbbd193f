// Package process runs the programs of a test: each has a log file, dies with the test, however that ends, and can
// be killed and started again. It must not know which programs these are.
package process
