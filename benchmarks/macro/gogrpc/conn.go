package main

import (
	"bufio"
	"bytes"
	"fmt"
	"net"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	ioBytes      = 64 << 10
	streamWindow = 4 << 20
	connWindow   = 1 << 30
)

// conn is one end of an HTTP/2 connection. One goroutine owns it: what is written while frames are being read leaves
// together, as soon as nothing more has come.
type conn struct {
	socket  net.Conn
	reader  *bufio.Reader
	writer  *bufio.Writer
	framer  *http2.Framer
	encoder *hpack.Encoder
	block   bytes.Buffer
	window  int64            // of the connection, for what is sent
	initial int64            // of new streams
	largest int              // DATA frame that the peer takes
	owed    uint32           // bytes of DATA that the peer has no credit for yet
	waiting map[uint32]*body // waits for credit
}

// body is what is left to send on a stream.
type body struct {
	data     []byte
	window   int64
	ends     bool
	trailers []hpack.HeaderField // that follow it
}

func newConn(socket net.Conn) *conn {
	c := &conn{
		socket: socket, reader: bufio.NewReaderSize(socket, ioBytes), writer: bufio.NewWriterSize(socket, ioBytes),
		window: 65535, initial: 65535, largest: 16384, waiting: map[uint32]*body{},
	}
	c.framer = http2.NewFramer(c.writer, c.reader)
	c.framer.SetReuseFrames()
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.encoder = hpack.NewEncoder(&c.block)
	return c
}

// start sends what an end says first.
func (c *conn) start(settings ...http2.Setting) error {
	settings = append(settings, http2.Setting{ID: http2.SettingInitialWindowSize, Val: streamWindow})
	if err := c.framer.WriteSettings(settings...); err != nil {
		return err
	}
	return c.framer.WriteWindowUpdate(0, connWindow-65535)
}

// next is the next frame; what was written leaves before it waits for one.
func (c *conn) next() (http2.Frame, error) {
	if c.reader.Buffered() == 0 {
		if err := c.writer.Flush(); err != nil {
			return nil, err
		}
	}
	return c.framer.ReadFrame()
}

// common handles what both ends answer alike.
func (c *conn) common(frame http2.Frame) error {
	switch f := frame.(type) {
	case *http2.SettingsFrame:
		if f.IsAck() {
			return nil
		}
		if err := f.ForeachSetting(c.setting); err != nil {
			return err
		}
		return c.framer.WriteSettingsAck()
	case *http2.PingFrame:
		if f.IsAck() {
			return nil
		}
		return c.framer.WritePing(true, f.Data)
	case *http2.WindowUpdateFrame:
		return c.credit(f.StreamID, int64(f.Increment))
	case *http2.GoAwayFrame:
		return fmt.Errorf("GOAWAY %v %q", f.ErrCode, f.DebugData())
	}
	return nil
}

func (c *conn) setting(s http2.Setting) error {
	switch s.ID {
	case http2.SettingHeaderTableSize:
		c.encoder.SetMaxDynamicTableSize(min(s.Val, 4096))
	case http2.SettingMaxFrameSize:
		c.largest = min(int(s.Val), ioBytes)
	case http2.SettingInitialWindowSize:
		change := int64(s.Val) - c.initial
		c.initial = int64(s.Val)
		for id, b := range c.waiting {
			b.window += change
			if err := c.push(id, b); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *conn) credit(id uint32, more int64) error {
	if id != 0 {
		if b := c.waiting[id]; b != nil {
			b.window += more
			return c.push(id, b)
		}
		return nil
	}
	c.window += more
	for id, b := range c.waiting {
		if err := c.push(id, b); err != nil {
			return err
		}
	}
	return nil
}

// headers sends a header block.
func (c *conn) headers(id uint32, fields []hpack.HeaderField, ends bool) error {
	c.block.Reset()
	for _, field := range fields {
		if err := c.encoder.WriteField(field); err != nil {
			return err
		}
	}
	return c.framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: id, BlockFragment: c.block.Bytes(), EndHeaders: true, EndStream: ends,
	})
}

// push sends as much of a body as there is credit for; the rest waits for more.
func (c *conn) push(id uint32, b *body) error {
	for len(b.data) > 0 {
		size := min(int64(len(b.data)), int64(c.largest), b.window, c.window)
		if size <= 0 {
			c.waiting[id] = b
			return nil
		}
		piece := b.data[:size]
		b.data = b.data[size:]
		b.window -= size
		c.window -= size
		if err := c.framer.WriteData(id, b.ends && len(b.data) == 0, piece); err != nil {
			return err
		}
	}
	delete(c.waiting, id)
	if b.trailers == nil {
		return nil
	}
	return c.headers(id, b.trailers, true)
}

// took returns credit for DATA that was read; of the connection now and then, of a stream that goes on at once.
func (c *conn) took(id uint32, size int, goesOn bool) error {
	c.owed += uint32(size)
	if c.owed > connWindow/4 {
		if err := c.framer.WriteWindowUpdate(0, c.owed); err != nil {
			return err
		}
		c.owed = 0
	}
	if goesOn && size > 0 {
		return c.framer.WriteWindowUpdate(id, uint32(size))
	}
	return nil
}

// message is a gRPC message without compression.
func message(payload []byte) []byte {
	size := len(payload)
	return append([]byte{0, byte(size >> 24), byte(size >> 16), byte(size >> 8), byte(size)}, payload...)
}
