package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	service      = "/inference.GRPCInferenceService/"
	answerWithin = 10 * time.Second
)

// plan is what every connection does.
type plan struct {
	address  string
	unique   bool
	messages int // of a call; above 1: a stream, one message after the other's echo
	payload  []byte
	inFlight int
	calls    int // of a connection; 0: until the time is over
	until    time.Time
	begun    time.Time
}

// result is what the calls of one connection came to.
type result struct {
	latencies []time.Duration
	err       error
}

// load keeps calls in flight until the time is over and prints what came of them.
func load(words []string) error {
	flags := flag.NewFlagSet("load", flag.ContinueOnError)
	connections := flags.Int("connections", 4, "")
	inFlight := flags.Int("in-flight", 32, "calls at once, over all connections")
	seconds := flags.Float64("seconds", 2, "")
	calls := flags.Int("calls", 0, "end after so many on each connection, instead of by time")
	size := flags.Int("size", 300, "bytes of a request's message")
	messages := flags.Int("messages", 1, "of a call; above 1 it is a bidirectional stream")
	unique := flags.Bool("unique", false, "a deadline and a traceparent of its own on every call")
	if err := flags.Parse(words); err != nil {
		return err
	}
	if flags.NArg() != 1 || *connections < 1 || *inFlight < *connections {
		return errors.New("usage: gogrpc load [flags] HOST:PORT, with at least one call in flight on each connection")
	}
	now := time.Now()
	p := plan{
		address: flags.Arg(0), unique: *unique, messages: *messages, payload: message(inference(*size)),
		inFlight: *inFlight / *connections, calls: *calls,
		begun: now, until: now.Add(time.Duration(*seconds * float64(time.Second))),
	}
	if *calls > 0 {
		p.until = now.Add(time.Hour)
	}
	results := make(chan result)
	for number := range *connections {
		go func() { results <- p.run(rand.New(rand.NewSource(int64(number)))) }()
	}
	var all []time.Duration
	var failed error
	for range *connections {
		r := <-results
		all = append(all, r.latencies...)
		failed = errors.Join(failed, r.err)
	}
	if failed != nil {
		return failed
	}
	return tell(all, time.Since(now))
}

func tell(all []time.Duration, took time.Duration) error {
	if len(all) == 0 {
		return errors.New("not one call was answered")
	}
	slices.Sort(all)
	at := func(share float64) float64 { return float64(all[int(share*float64(len(all)-1))].Nanoseconds()) / 1e3 }
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"calls": len(all), "seconds": took.Seconds(), "p50_us": at(0.50), "p99_us": at(0.99),
	})
}

// inference is a V2 ModelInferRequest of some size: model_name, id, one input with its shape, its bytes raw.
func inference(size int) []byte {
	field := func(number int, value []byte) []byte {
		return append(binary.AppendUvarint([]byte{byte(number<<3 | 2)}, uint64(len(value))), value...)
	}
	input := slices.Concat(field(1, []byte("input")), field(2, []byte("FP32")), field(3, []byte{4, 16}))
	start := slices.Concat(field(1, []byte("resnet")), field(3, []byte("0123456789abcdef")), field(5, input))
	return append(start, field(7, make([]byte, max(0, size-len(start)-3)))...)
}

// run does the calls of one connection.
func (p *plan) run(source *rand.Rand) result {
	socket, err := net.DialTimeout("tcp", p.address, answerWithin)
	if err != nil {
		return result{err: err}
	}
	defer socket.Close()
	u := &user{conn: newConn(socket), plan: p, source: source, open: map[uint32]*sent{}, next: 1}
	if err := u.work(); err != nil {
		return result{err: fmt.Errorf("%w, after %d calls", err, len(u.latencies))}
	}
	return result{latencies: u.latencies}
}

// user is one connection that calls.
type user struct {
	*conn
	plan      *plan
	source    *rand.Rand
	open      map[uint32]*sent
	next      uint32
	latencies []time.Duration
}

// sent is one call under way.
type sent struct {
	at       time.Time
	body     *body
	left     int // messages still to send
	received int // bytes of DATA
	answered bool
}

func (u *user) work() error {
	if _, err := u.writer.WriteString(http2.ClientPreface); err != nil {
		return err
	}
	if err := u.start(http2.Setting{ID: http2.SettingEnablePush, Val: 0}); err != nil {
		return err
	}
	for range u.plan.inFlight {
		if err := u.call(); err != nil {
			return err
		}
	}
	for len(u.open) > 0 {
		if u.reader.Buffered() == 0 {
			if err := u.socket.SetReadDeadline(time.Now().Add(answerWithin)); err != nil {
				return err
			}
		}
		frame, err := u.conn.next()
		if err != nil {
			return err
		}
		switch f := frame.(type) {
		case *http2.MetaHeadersFrame:
			err = u.heard(f)
		case *http2.DataFrame:
			err = u.data(f)
		case *http2.RSTStreamFrame:
			err = fmt.Errorf("call %d was reset: %v", f.StreamID, f.ErrCode)
		default:
			err = u.common(frame)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// call begins one call.
func (u *user) call() error {
	id := u.next
	u.next += 2
	method := "ModelInfer"
	if u.plan.messages > 1 {
		method = "ModelInferStream"
	}
	fields := []hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "http"},
		{Name: ":path", Value: service + method},
		{Name: ":authority", Value: u.plan.address},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "user-agent", Value: "grpc-go/1.76.0"},
		{Name: "te", Value: "trailers"},
	}
	if u.plan.unique {
		trace := fmt.Sprintf("00-%016x%016x-%016x-01", u.source.Uint64(), u.source.Uint64(), u.source.Uint64())
		fields = append(fields,
			hpack.HeaderField{Name: "grpc-timeout", Value: strconv.Itoa(9_000_000+u.source.Intn(999_999)) + "u"},
			hpack.HeaderField{Name: "traceparent", Value: trace})
	}
	one := &sent{at: time.Now(), left: u.plan.messages, body: &body{window: u.initial}}
	u.open[id] = one
	if err := u.headers(id, fields, false); err != nil {
		return err
	}
	return u.send(id, one)
}

// send sends the next message of a call.
func (u *user) send(id uint32, one *sent) error {
	one.left--
	one.body.data = u.plan.payload
	one.body.ends = one.left == 0
	return u.push(id, one.body)
}

func (u *user) data(f *http2.DataFrame) error {
	one := u.open[f.StreamID]
	if one == nil {
		return fmt.Errorf("DATA on stream %d, which is over", f.StreamID)
	}
	if f.StreamEnded() {
		return fmt.Errorf("call %d ended without trailers", f.StreamID)
	}
	before := one.received / len(u.plan.payload)
	one.received += len(f.Data())
	if err := u.took(f.StreamID, int(f.Length), u.plan.messages > 1); err != nil {
		return err
	}
	if one.received/len(u.plan.payload) > before && one.left > 0 && u.plan.messages > 1 {
		return u.send(f.StreamID, one)
	}
	return nil
}

// heard takes a head or trailers; a call that ends well makes room for the next one.
func (u *user) heard(f *http2.MetaHeadersFrame) error {
	one := u.open[f.StreamID]
	if one == nil {
		return fmt.Errorf("HEADERS on stream %d, which is over", f.StreamID)
	}
	var fields []string
	status := ""
	for _, field := range f.Fields {
		fields = append(fields, field.Name+": "+field.Value)
		if field.Name == "grpc-status" {
			status = field.Value
		}
	}
	if !f.StreamEnded() {
		one.answered = f.PseudoValue("status") == "200"
		return nil
	}
	wanted := len(answer)
	if u.plan.messages > 1 {
		wanted = u.plan.messages * len(u.plan.payload)
	}
	if status != "0" || !one.answered || one.received != wanted {
		return fmt.Errorf("call %d: %d bytes of %d, %s", f.StreamID, one.received, wanted, strings.Join(fields, ", "))
	}
	delete(u.open, f.StreamID)
	u.latencies = append(u.latencies, time.Since(one.at))
	begun := len(u.latencies) + len(u.open)
	if (u.plan.calls > 0 && begun >= u.plan.calls) || time.Now().After(u.plan.until) {
		return nil
	}
	return u.call()
}
