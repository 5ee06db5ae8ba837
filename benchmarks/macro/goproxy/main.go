// The peer in Go: one httputil.ReverseProxy. Usage: goproxy LISTEN UPSTREAM (both host:port).
package main

import (
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
)

func main() {
	target := &url.URL{Scheme: "http", Host: os.Args[2]}
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target); r.SetXForwarded() },
		Transport: &http.Transport{MaxIdleConnsPerHost: 4096, DisableCompression: true},
		ErrorLog:  log.New(io.Discard, "", 0),
	}
	log.Fatal(http.ListenAndServe(os.Args[1], proxy))
}
