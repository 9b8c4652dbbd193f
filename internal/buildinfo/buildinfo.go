package buildinfo

import "runtime/debug"

// Version is the module's version as the build recorded it, devel if it did not.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "devel"
	}
	return info.Main.Version
}
