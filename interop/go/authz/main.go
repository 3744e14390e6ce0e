//go:build authz_judge

// Command authz judges cases of authorization by grpc-go's own RBAC filter, and says where it differs.
//
// The filter is internal to grpc-go, so that this file is built as if it were a part of it: see build. Cases come on
// standard input, as "cargo run -p mainstay-sim --example authz_cases" prints them.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"fmt"
	"log"
	"net"
	"net/url"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/internal/transport"
	"google.golang.org/grpc/internal/xds/httpfilter"
	_ "google.golang.org/grpc/internal/xds/httpfilter/rbac"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/types/known/anypb"
)

const typeURL = "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC"

type testCase struct {
	lines  []string
	filter []byte
	expect string
	rpcs   []*rpc
}

type rpc struct {
	path        string
	md          metadata.MD
	local, peer net.Addr
	tls         bool
	certificate *x509.Certificate
}

func main() {
	log.SetFlags(0)
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<24)
	cases, rpcs, different := 0, 0, 0
	current := &testCase{}
	for in.Scan() {
		current.lines = append(current.lines, in.Text())
		if in.Text() != "end" {
			current.add(strings.Split(in.Text(), " "))
			continue
		}
		cases++
		rpcs += len(current.rpcs)
		if found := current.judge(); found != current.expect {
			different++
			fmt.Printf("%s\nfound %s\n", strings.Join(current.lines, "\n"), found)
		}
		current = &testCase{}
	}
	if err := in.Err(); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d filters, %d RPCs, %d filters judged otherwise by grpc-go %s\n", cases, rpcs, different, grpc.Version)
	if different > 0 || cases == 0 {
		os.Exit(1)
	}
}

func (c *testCase) add(words []string) {
	switch words[0] {
	case "filter":
		c.filter = []byte(decoded(words[1]))
	case "expect":
		c.expect = words[1]
	case "rpc":
		c.rpcs = append(c.rpcs, &rpc{
			path:  decoded(words[1]),
			md:    metadata.MD{":authority": []string{decoded(words[2])}},
			local: address(words[3]),
			peer:  address(words[4]),
		})
	case "header":
		last := c.rpcs[len(c.rpcs)-1]
		last.md.Append(words[1], decoded(words[2]))
	case "tls":
		c.rpcs[len(c.rpcs)-1].tls = true
	case "certificate":
		c.rpcs[len(c.rpcs)-1].certificate = &x509.Certificate{Subject: pkix.Name{CommonName: "a"}}
	case "uri":
		uri, err := url.Parse(decoded(words[1]))
		if err != nil {
			log.Fatal(err)
		}
		certificate := c.rpcs[len(c.rpcs)-1].certificate
		certificate.URIs = append(certificate.URIs, uri)
	case "dns":
		certificate := c.rpcs[len(c.rpcs)-1].certificate
		certificate.DNSNames = append(certificate.DNSNames, decoded(words[1]))
	default:
		log.Fatalf("unknown line: %v", words)
	}
}

// judge returns "nack", or A or D for each RPC.
func (c *testCase) judge() string {
	builder := httpfilter.Get(typeURL)
	config, err := builder.ParseFilterConfig(&anypb.Any{TypeUrl: typeURL, Value: c.filter}, httpfilter.ParseOptions{})
	if err != nil {
		return "nack"
	}
	filter := builder.(httpfilter.ServerFilterBuilder).BuildServerFilter()
	defer filter.Close()
	interceptor, err := filter.BuildServerInterceptor(config, nil)
	if err != nil {
		log.Fatal(err)
	}
	verdicts := ""
	for _, rpc := range c.rpcs {
		verdict := "A"
		if interceptor != nil {
			if _, err := interceptor.InterceptRPC(stream{rpc: rpc}); err != nil {
				verdict = "D"
			}
		}
		verdicts += verdict
	}
	return verdicts
}

// stream is an RPC as interceptors see it.
type stream struct {
	grpc.ServerStream
	rpc *rpc
}

func (s stream) Context() context.Context {
	info := &peer.Peer{Addr: s.rpc.peer}
	if s.rpc.tls {
		state := tls.ConnectionState{}
		if s.rpc.certificate != nil {
			state.PeerCertificates = []*x509.Certificate{s.rpc.certificate}
		}
		info.AuthInfo = credentials.TLSInfo{State: state}
	}
	ctx := metadata.NewIncomingContext(context.Background(), s.rpc.md.Copy())
	ctx = peer.NewContext(ctx, info)
	ctx = grpc.NewContextWithServerTransportStream(ctx, transportStream{s.rpc.path})
	return transport.SetConnection(ctx, connection{local: s.rpc.local})
}

type transportStream struct{ path string }

func (t transportStream) Method() string               { return t.path }
func (t transportStream) SetHeader(metadata.MD) error  { return nil }
func (t transportStream) SendHeader(metadata.MD) error { return nil }
func (t transportStream) SetTrailer(metadata.MD) error { return nil }

type connection struct {
	net.Conn
	local net.Addr
}

func (c connection) LocalAddr() net.Addr { return c.local }

func decoded(text string) string {
	bytes, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		log.Fatal(err)
	}
	return string(bytes)
}

func address(text string) net.Addr {
	address, err := net.ResolveTCPAddr("tcp", text)
	if err != nil {
		log.Fatal(err)
	}
	return address
}
