package cli

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/reprieve-dev/reprieve/internal/buildinfo"
)

func newVersion(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print this program's version",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			if a.flags.output != outputTable {
				return a.printValue(map[string]string{"version": buildinfo.Version(), "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH})
			}
			_, err := fmt.Fprintf(a.Out, "reprieve %s (%s, %s/%s)\n", buildinfo.Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
