// Command kfake runs one kfake broker until it is killed. It prints `kfake ready HOST:PORT`.
package main

import (
	"fmt"
	"os"

	"github.com/twmb/franz-go/pkg/kfake"
)

func main() {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(0), kfake.DefaultNumPartitions(1))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer cluster.Close()
	fmt.Printf("kfake ready %s\n", cluster.ListenAddrs()[0])
	select {}
}
