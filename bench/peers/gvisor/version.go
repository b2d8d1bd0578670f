package main

import (
	"runtime/debug"
	"strings"
)

// version is the day of the module that this was built with.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "of unknown version"
	}
	for _, module := range info.Deps {
		if module.Path == "gvisor.dev/gvisor" {
			// v0.0.0-20060102150405-abcdefabcdef
			parts := strings.Split(module.Version, "-")
			if len(parts) == 3 && len(parts[1]) == 14 {
				return parts[1][:8]
			}
			return module.Version
		}
	}
	return "of unknown version"
}
