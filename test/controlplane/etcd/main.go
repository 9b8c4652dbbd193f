// Command etcd is etcd's own server, built from its module because it offers no command to import.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
