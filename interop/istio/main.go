// Istio's control plane, configured by files: what `pilot-discovery discovery --configDir DIR` is for.
package main

import (
	"flag"
	"log"
	"reflect"
	"time"

	"istio.io/istio/pilot/pkg/bootstrap"
	"istio.io/istio/pkg/cmd"
	"istio.io/istio/pkg/kube"
)

func main() {
	config := flag.String("config", "", "directory with YAML files of Istio's resources, watched")
	listen := flag.String("listen", "", "address for xDS, in plaintext")
	http := flag.String("http", "", "address for readiness and debugging")
	flag.Parse()

	args := bootstrap.NewPilotArgs(func(args *bootstrap.PilotArgs) {
		args.RegistryOptions.FileDir = *config
		args.RegistryOptions.KubeOptions.DomainSuffix = "cluster.local"
		args.ServerOptions.GRPCAddr = *listen
		args.ServerOptions.HTTPAddr = *http
		args.ServerOptions.TLSOptions.TLSMinVersion = bootstrap.TLSMinVersion1_2
		args.ShutdownDuration = time.Second
	})
	if err := args.Complete(); err != nil {
		log.Fatal(err)
	}
	server, err := bootstrap.NewServer(args, withoutCluster)
	if err != nil {
		log.Fatal(err)
	}
	stop := make(chan struct{})
	if err := server.Start(stop); err != nil {
		log.Fatal(err)
	}
	cmd.WaitSignal(stop)
}

// Istio of this version reads files without Kubernetes, and yet dereferences a client for it. So it gets an empty cluster
// in memory, which is its own, too; only its tests can set it otherwise.
func withoutCluster(server *bootstrap.Server) {
	field := reflect.ValueOf(server).Elem().FieldByName("kubeClient")
	reflect.NewAt(field.Type(), field.Addr().UnsafePointer()).Elem().Set(reflect.ValueOf(kube.NewFakeClient()))
}
