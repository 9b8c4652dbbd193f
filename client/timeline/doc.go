// Package timeline reads timeline files and what kubectl writes (watch streams,
// lists, plain objects; JSON and YAML) and turns them into the events of a feed.
// It must not know the engine or Kubernetes' libraries: it takes from an object
// only the fields that a feed carries.
package timeline
