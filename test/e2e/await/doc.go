// Package await waits for what happens in other processes: it asks again until it is so or a deadline has passed,
// and fails the test with the last answer. It must not know what it waits for.
package await
