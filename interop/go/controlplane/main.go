// A control plane on go-control-plane's snapshot cache, as in gRPC's own local suites (I-27 to I-30), or on its linear
// caches, one for each type. It speaks both variants of ADS.
//
// Commands come as JSON lines on standard input and are each answered with a line "ok". A nonzero exit code of 3 means
// that a client asked for the resource on which the process was told to die.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"strconv"
	"sync"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// command is one line of standard input.
type command struct {
	// Op is "set" or "stop_on_request".
	Op string
	// Version of a snapshot, for all types.
	Version string
	// Listeners by name, each with the cluster of its only route.
	Listeners map[string]string
	// Broken Listeners are sent without a route configuration, which every client must reject.
	Broken bool
	// Clusters by name, each with the name of its endpoints.
	Clusters map[string]string
	// Endpoints by name, each a list of "host:port".
	Endpoints map[string][]string
	// TypeURL and Name say on which request to die.
	TypeURL string `json:"type_url"`
	Name    string
}

type key struct{ typeURL, name string }

// everybody is served the same.
type everybody struct{}

const everyone = "everyone"

func (everybody) ID(*corev3.Node) string { return everyone }

func main() {
	port := flag.Int("port", 0, "where to listen")
	linear := flag.Bool("linear", false, "serve from linear caches instead of a snapshot cache")
	flag.Parse()

	snapshots := cache.NewSnapshotCache(false, everybody{}, nil)
	all, put := cache.Cache(snapshots), func(c *command) error {
		snapshot, err := cache.NewSnapshot(c.Version, c.resources())
		if err != nil {
			return err
		}
		return snapshots.SetSnapshot(context.Background(), everyone, snapshot)
	}
	if *linear {
		all, put = linearCaches()
	}
	var mutex sync.Mutex
	deadly := map[key]bool{}
	nodes := map[int64]string{}
	onRequest := func(stream int64, request *discoveryv3.DiscoveryRequest) error {
		mutex.Lock()
		defer mutex.Unlock()
		// Only the first request of a stream must say which node it is from.
		if id := request.GetNode().GetId(); id != "" {
			nodes[stream] = id
		}
		if detail := request.GetErrorDetail(); detail != nil {
			fmt.Printf("nack %s %s %q\n", nodes[stream], request.GetTypeUrl(), detail.GetMessage())
		}
		for _, name := range request.GetResourceNames() {
			if deadly[key{request.GetTypeUrl(), name}] {
				os.Exit(3)
			}
		}
		return nil
	}
	// Over delta names come once, when they are subscribed.
	onDeltaRequest := func(stream int64, request *discoveryv3.DeltaDiscoveryRequest) error {
		if request.GetNode().GetId() != "" {
			fmt.Printf("delta stream of %s\n", request.GetNode().GetId())
		}
		return onRequest(stream, &discoveryv3.DiscoveryRequest{
			Node:          request.GetNode(),
			TypeUrl:       request.GetTypeUrl(),
			ErrorDetail:   request.GetErrorDetail(),
			ResourceNames: request.GetResourceNamesSubscribe(),
		})
	}
	callbacks := server.CallbackFuncs{StreamRequestFunc: onRequest, StreamDeltaRequestFunc: onDeltaRequest}
	ads := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(ads, server.NewServer(context.Background(), all, callbacks))
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", *port))
	if err != nil {
		log.Fatal(err)
	}
	go func() { log.Fatal(ads.Serve(listener)) }()
	fmt.Printf("listening %s\n", listener.Addr())

	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			log.Fatalf("%s: %v", lines.Text(), err)
		}
		switch c.Op {
		case "set":
			if err := put(&c); err != nil {
				log.Fatal(err)
			}
		case "stop_on_request":
			mutex.Lock()
			deadly[key{c.TypeURL, c.Name}] = true
			mutex.Unlock()
		default:
			log.Fatalf("unknown command: %s", lines.Text())
		}
		fmt.Println("ok")
	}
}

// linearCaches are one cache for each type behind one server.
func linearCaches() (cache.Cache, func(*command) error) {
	caches := map[string]*cache.LinearCache{}
	mux := &cache.MuxCache{
		Classify:      func(request *cache.Request) string { return request.GetTypeUrl() },
		ClassifyDelta: func(request *cache.DeltaRequest) string { return request.GetTypeUrl() },
		Caches:        map[string]cache.Cache{},
	}
	for _, typeURL := range []string{resource.ListenerType, resource.RouteType, resource.ClusterType, resource.EndpointType} {
		caches[typeURL] = cache.NewLinearCache(typeURL)
		mux.Caches[typeURL] = caches[typeURL]
	}
	put := func(c *command) error {
		all := c.resources()
		for typeURL, linear := range caches {
			named := map[string]types.Resource{}
			for _, message := range all[typeURL] {
				named[cache.GetResourceName(message)] = message
			}
			linear.SetResources(named)
		}
		return nil
	}
	return mux, put
}

// resources makes the messages of a snapshot (I-29).
func (c *command) resources() map[resource.Type][]types.Resource {
	all := map[resource.Type][]types.Resource{}
	for name, cluster := range c.Listeners {
		all[resource.ListenerType] = append(all[resource.ListenerType], apiListener(name, cluster, c.Broken))
	}
	for name, service := range c.Clusters {
		all[resource.ClusterType] = append(all[resource.ClusterType], edsCluster(name, service))
	}
	for name, addresses := range c.Endpoints {
		all[resource.EndpointType] = append(all[resource.EndpointType], endpoints(name, addresses))
	}
	return all
}

func apiListener(name, cluster string, broken bool) *listenerv3.Listener {
	manager := &hcmv3.HttpConnectionManager{
		HttpFilters: []*hcmv3.HttpFilter{{
			Name:       "router",
			ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: pack(&routerv3.Router{})},
		}},
	}
	if !broken {
		manager.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
			Name: "route",
			VirtualHosts: []*routev3.VirtualHost{{
				Name:    "all",
				Domains: []string{"*"},
				Routes: []*routev3.Route{{
					Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: ""}},
					Action: &routev3.Route_Route{Route: &routev3.RouteAction{
						ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster},
					}},
				}},
			}},
		}}
	}
	return &listenerv3.Listener{Name: name, ApiListener: &listenerv3.ApiListener{ApiListener: pack(manager)}}
}

func edsCluster(name, service string) *clusterv3.Cluster {
	self := &corev3.ConfigSource{
		ResourceApiVersion:    corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_Self{Self: &corev3.SelfConfigSource{}},
	}
	return &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: self, ServiceName: service},
	}
}

func endpoints(name string, addresses []string) *endpointv3.ClusterLoadAssignment {
	var lbEndpoints []*endpointv3.LbEndpoint
	for _, address := range addresses {
		host, portText, err := net.SplitHostPort(address)
		if err != nil {
			log.Fatal(err)
		}
		port, err := strconv.ParseUint(portText, 10, 16)
		if err != nil {
			log.Fatal(err)
		}
		socket := &corev3.SocketAddress{
			Address:       host,
			PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(port)},
		}
		lbEndpoints = append(lbEndpoints, &endpointv3.LbEndpoint{
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
				Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: socket}},
			}},
			HealthStatus:        corev3.HealthStatus_HEALTHY,
			LoadBalancingWeight: wrapperspb.UInt32(1),
		})
	}
	return &endpointv3.ClusterLoadAssignment{
		ClusterName: name,
		Endpoints: []*endpointv3.LocalityLbEndpoints{{
			Locality:            &corev3.Locality{SubZone: "subzone"},
			LbEndpoints:         lbEndpoints,
			LoadBalancingWeight: wrapperspb.UInt32(1),
		}},
	}
}

func pack(message proto.Message) *anypb.Any {
	packed, err := anypb.New(message)
	if err != nil {
		log.Fatal(err)
	}
	return packed
}
