// grpc-go's xDS client: sends RPCs at a constant rate and prints a line for each: "answered by HOST" or "CODE: message".
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"time"

	"google.golang.org/grpc"
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
	flag.Parse()

	var creds credentials.TransportCredentials = insecure.NewCredentials()
	if *secure {
		var err error
		if creds, err = xdscreds.NewClientCredentials(xdscreds.ClientOptions{FallbackCreds: creds}); err != nil {
			log.Fatal(err)
		}
	}
	channel, err := grpc.NewClient(*target, grpc.WithTransportCredentials(creds))
	if err != nil {
		log.Fatal(err)
	}
	client := testpb.NewTestServiceClient(channel)
	lines := make(chan string)
	go func() {
		for range time.Tick(time.Second / time.Duration(*qps)) {
			go func() {
				ctx, cancel := context.WithTimeout(context.Background(), *timeout)
				defer cancel()
				response, err := client.UnaryCall(ctx, &testpb.SimpleRequest{})
				if err != nil {
					lines <- fmt.Sprintf("%s: %q", status.Code(err), status.Convert(err).Message())
				} else {
					lines <- "answered by " + response.GetHostname()
				}
			}()
		}
	}()
	for line := range lines {
		fmt.Println(line)
	}
}
