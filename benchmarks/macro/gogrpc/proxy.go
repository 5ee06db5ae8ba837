package main

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
)

// proxy is the peer: what the standard library gives, with every piece passed on at once.
func proxy(words []string) error {
	if len(words) != 2 {
		return fmt.Errorf("usage: gogrpc proxy LISTEN UPSTREAM")
	}
	var both, plain http.Protocols
	both.SetHTTP1(true)
	both.SetUnencryptedHTTP2(true)
	plain.SetUnencryptedHTTP2(true)
	target := &url.URL{Scheme: "http", Host: words[1]}
	handler := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target); r.Out.Host = r.In.Host; r.SetXForwarded() },
		Transport:     &http.Transport{Protocols: &plain, DisableCompression: true},
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
	}
	server := &http.Server{Addr: words[0], Handler: handler, Protocols: &both, ErrorLog: log.New(io.Discard, "", 0)}
	return server.ListenAndServe()
}
