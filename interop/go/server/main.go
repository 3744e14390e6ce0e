// grpc-go's xDS server: answers UnaryCall with its name, in the message and in the headers, secured as the control plane says.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	xdscreds "google.golang.org/grpc/credentials/xds"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/xds"
)

type service struct {
	testpb.UnimplementedTestServiceServer
	name string
}

func (s *service) UnaryCall(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	if err := grpc.SetHeader(ctx, metadata.Pairs("hostname", s.name)); err != nil {
		return nil, err
	}
	return &testpb.SimpleResponse{Hostname: s.name}, nil
}

func main() {
	port := flag.Int("port", 0, "where to listen")
	name := flag.String("hostname", "grpc-go", "who answers")
	flag.Parse()

	credentials, err := xdscreds.NewServerCredentials(xdscreds.ServerOptions{FallbackCreds: insecure.NewCredentials()})
	if err != nil {
		log.Fatal(err)
	}
	serving := func(address net.Addr, change xds.ServingModeChangeArgs) {
		fmt.Printf("%s is %s: %v\n", address, change.Mode, change.Err)
	}
	server, err := xds.NewGRPCServer(grpc.Creds(credentials), xds.ServingModeCallback(serving))
	if err != nil {
		log.Fatal(err)
	}
	testpb.RegisterTestServiceServer(server, &service{name: *name})
	listener, err := net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", *port))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("on port %d\n", *port)
	log.Fatal(server.Serve(listener))
}
