// Three programs of the gRPC benchmark in one binary: the load, the server behind every proxy, and the peer in Go.
//
//	gogrpc load [flags] HOST:PORT      prints one JSON line
//	gogrpc serve HOST:PORT             answers what load sends
//	gogrpc proxy LISTEN UPSTREAM       one httputil.ReverseProxy, h2c on both sides
//
// load and serve write their frames by themselves (golang.org/x/net/http2's framer and HPACK encoder, the same that
// grpc-go uses) and keep the dynamic table that the peer allows, as grpc-go does.
package main

import (
	"fmt"
	"log"
	"os"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("gogrpc: ")
	if len(os.Args) < 2 {
		log.Fatal("usage: gogrpc load|serve|proxy ...")
	}
	var err error
	switch command, words := os.Args[1], os.Args[2:]; command {
	case "load":
		err = load(words)
	case "serve":
		err = serve(words)
	case "proxy":
		err = proxy(words)
	default:
		err = fmt.Errorf("no command %q", command)
	}
	if err != nil {
		log.Fatal(err)
	}
}
