// grpc-go's xDS client: sends RPCs at a constant rate and prints a line for each: "answered by HOST" or "CODE: message".
// With --targets it sends one to each of them instead, and prints the target before each line.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/admin"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	xdscreds "google.golang.org/grpc/credentials/xds"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
	_ "google.golang.org/grpc/xds"
)

func main() {
	target := flag.String("server", "", "the channel's target, xds:///name")
	qps := flag.Int("qps", 10, "RPCs per second")
	secure := flag.Bool("secure_mode", false, "secured as the control plane says")
	timeout := flag.Duration("timeout", 20*time.Second, "deadline of each RPC")
	targets := flag.String("targets", "", "one RPC to each of these, separated by commas")
	adminPort := flag.Int("admin_port", 0, "CSDS and channelz")
	flag.Parse()

	if *adminPort != 0 {
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", *adminPort))
		if err != nil {
			log.Fatal(err)
		}
		server := grpc.NewServer()
		if _, err := admin.Register(server); err != nil {
			log.Fatal(err)
		}
		go server.Serve(listener)
	}
	var creds credentials.TransportCredentials = insecure.NewCredentials()
	if *secure {
		var err error
		if creds, err = xdscreds.NewClientCredentials(xdscreds.ClientOptions{FallbackCreds: creds}); err != nil {
			log.Fatal(err)
		}
	}
	lines := make(chan string)
	send := func(client testpb.TestServiceClient, before string) {
		ctx, cancel := context.WithTimeout(context.Background(), *timeout)
		defer cancel()
		response, err := client.UnaryCall(ctx, &testpb.SimpleRequest{})
		if err != nil {
			lines <- fmt.Sprintf("%s%s: %q", before, status.Code(err), status.Convert(err).Message())
		} else {
			lines <- before + "answered by " + response.GetHostname()
		}
	}
	connect := func(target string) testpb.TestServiceClient {
		channel, err := grpc.NewClient(target, grpc.WithTransportCredentials(creds))
		if err != nil {
			log.Fatal(err)
		}
		return testpb.NewTestServiceClient(channel)
	}
	if *targets != "" {
		for _, target := range strings.Split(*targets, ",") {
			go send(connect(target), target+" ")
		}
	} else {
		client := connect(*target)
		go func() {
			for range time.Tick(time.Second / time.Duration(*qps)) {
				go send(client, "")
			}
		}()
	}
	for line := range lines {
		fmt.Println(line)
	}
}
