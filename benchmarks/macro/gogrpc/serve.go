package main

import (
	"fmt"
	"io"
	"net"
	"strings"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const answerBytes = 300

var (
	answerHead = []hpack.HeaderField{
		{Name: ":status", Value: "200"}, {Name: "content-type", Value: "application/grpc"},
	}
	answerEnd = []hpack.HeaderField{{Name: "grpc-status", Value: "0"}, {Name: "grpc-message", Value: ""}}
	answer    = message(make([]byte, answerBytes))
)

// serve answers each unary call with answerBytes, and each message of a .../Stream call with the same message.
func serve(words []string) error {
	if len(words) != 1 {
		return fmt.Errorf("usage: gogrpc serve HOST:PORT")
	}
	listener, err := net.Listen("tcp", words[0])
	if err != nil {
		return err
	}
	for {
		socket, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer socket.Close()
			_ = serveConn(newConn(socket)) // who connects may go as it likes
		}()
	}
}

type call struct {
	isStream bool
	body     *body
	held     []byte // of a message that is not whole
}

func serveConn(c *conn) error {
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(c.reader, preface); err != nil {
		return err
	}
	if string(preface) != http2.ClientPreface {
		_, err := io.WriteString(c.socket, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
		return err
	}
	if err := c.start(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1000}); err != nil {
		return err
	}
	calls := map[uint32]*call{}
	for {
		frame, err := c.next()
		if err != nil {
			return err
		}
		switch f := frame.(type) {
		case *http2.MetaHeadersFrame:
			calls[f.StreamID] = &call{
				isStream: strings.HasSuffix(f.PseudoValue("path"), "Stream"), body: &body{window: c.initial},
			}
		case *http2.DataFrame:
			err = c.serveData(calls, f)
		case *http2.RSTStreamFrame:
			delete(calls, f.StreamID)
			delete(c.waiting, f.StreamID)
		case *http2.GoAwayFrame:
		default:
			err = c.common(frame)
		}
		if err != nil {
			return err
		}
	}
}

func (c *conn) serveData(calls map[uint32]*call, f *http2.DataFrame) error {
	ends := f.StreamEnded()
	if err := c.took(f.StreamID, int(f.Length), !ends); err != nil {
		return err
	}
	one := calls[f.StreamID]
	if one == nil {
		return nil
	}
	if one.isStream {
		if err := c.echo(f.StreamID, one, f.Data()); err != nil {
			return err
		}
	}
	if !ends {
		return nil
	}
	delete(calls, f.StreamID)
	if !one.isStream {
		if err := c.headers(f.StreamID, answerHead, false); err != nil {
			return err
		}
		one.body.data = answer
	}
	one.body.trailers = answerEnd
	return c.push(f.StreamID, one.body)
}

// echo sends back whole messages.
func (c *conn) echo(id uint32, one *call, data []byte) error {
	if one.held == nil {
		if err := c.headers(id, answerHead, false); err != nil {
			return err
		}
	}
	one.held = append(one.held, data...)
	whole := 0
	for len(one.held)-whole >= 5 {
		h := one.held[whole:]
		size := 5 + (int(h[1])<<24 | int(h[2])<<16 | int(h[3])<<8 | int(h[4]))
		if len(h) < size {
			break
		}
		whole += size
	}
	one.body.data = append(one.body.data, one.held[:whole]...)
	one.held = one.held[whole:]
	return c.push(id, one.body)
}
