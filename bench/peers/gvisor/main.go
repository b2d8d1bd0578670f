// Two of gVisor's network stacks joined in memory, both ends together, or one as a server (server.go); what it is asked and what it prints is in
// bench/peers/README.md.
//
// Configured as its users would for speed: Nagle off and acknowledgements delayed (as they come), selective acknowledgements, CUBIC, buffers of 1 MiB that grow to
// 8 MiB with window scaling, and the interface of package net (gonet) with a goroutine for each end of a connection. IP packets of 1,500 bytes pass by gVisor's
// own pipe, which hands them over without a copy. There is no offload: it makes and checks all checksums itself.
//
// It has goroutines and timers of its own, so time is real; it is given one processor, as the others are. Connections of the server stay in TIME-WAIT for its 60 s.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/pipe"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

const (
	usage       = "usage: millrace-peer-gvisor short|ping|bulk COUNT PARALLEL, or millrace-peer-gvisor idle COUNT, or millrace-peer-gvisor tap|wire short|echo|sink|source DEVICE ADDRESS PORT"
	mtu         = 1500
	port        = 80
	parallelMax = 40000 // it chooses ports from 16,000
	messageLen  = 64
	chunkLen    = 64 << 10
	nic         = tcpip.NICID(1)
	// Without progress for so long it has failed.
	stuck = 30 * time.Second
)

var (
	message       = bytes.Repeat([]byte{0x5a}, messageLen)
	clientAddress = tcpip.AddrFrom4([4]byte{10, 0, 0, 1})
	serverAddress = tcpip.AddrFrom4([4]byte{10, 0, 0, 2})
	// Operations, or bytes, that are done.
	done atomic.Uint64
)

func fail(err error) {
	fmt.Fprintf(os.Stderr, "millrace-peer-gvisor: %v\n", err)
	os.Exit(1)
}

func newStack(link stack.LinkEndpoint, address tcpip.Address) (*stack.Stack, error) {
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol},
	})
	sack := tcpip.TCPSACKEnabled(true)
	cubic := tcpip.CongestionControlOption("cubic")
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: 1 << 20, Max: 8 << 20}
	send := tcpip.TCPSendBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: 1 << 20, Max: 8 << 20}
	for _, option := range []tcpip.SettableTransportProtocolOption{&sack, &cubic, &receive, &send} {
		if err := s.SetTransportProtocolOption(tcp.ProtocolNumber, option); err != nil {
			return nil, fmt.Errorf("option %T: %s", option, err)
		}
	}
	if err := s.CreateNIC(nic, link); err != nil {
		return nil, fmt.Errorf("interface: %s", err)
	}
	own := tcpip.ProtocolAddress{
		Protocol:          ipv4.ProtocolNumber,
		AddressWithPrefix: tcpip.AddressWithPrefix{Address: address, PrefixLen: 24},
	}
	if err := s.AddProtocolAddress(nic, own, stack.AddressProperties{}); err != nil {
		return nil, fmt.Errorf("address: %s", err)
	}
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}})
	return s, nil
}

// Both ends, and a listener of the server's.
type pair struct {
	client   *stack.Stack
	server   *stack.Stack
	listener net.Listener
}

func newPair() (*pair, error) {
	there, back := pipe.New("\x02\x00\x00\x00\x00\x01", "\x02\x00\x00\x00\x00\x02", mtu)
	client, err := newStack(there, clientAddress)
	if err != nil {
		return nil, err
	}
	server, err := newStack(back, serverAddress)
	if err != nil {
		return nil, err
	}
	at := tcpip.FullAddress{NIC: nic, Addr: serverAddress, Port: port}
	listener, err := gonet.ListenTCP(server, at, ipv4.ProtocolNumber)
	if err != nil {
		return nil, err
	}
	return &pair{client, server, listener}, nil
}

func (p *pair) dial() (net.Conn, error) {
	at := tcpip.FullAddress{NIC: nic, Addr: serverAddress, Port: port}
	return gonet.DialTCP(p.client, at, ipv4.ProtocolNumber)
}

// serve gives each connection a goroutine.
func (p *pair) serve(with func(net.Conn) error) {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			fail(fmt.Errorf("accept: %w", err))
		}
		go func() {
			if err := with(conn); err != nil {
				fail(fmt.Errorf("server: %w", err))
			}
		}()
	}
}

func takeMessage(conn net.Conn, buffer []byte) error {
	if _, err := io.ReadFull(conn, buffer[:messageLen]); err != nil {
		return err
	}
	if !bytes.Equal(buffer[:messageLen], message) {
		return errors.New("another message than was sent")
	}
	return nil
}

// answer answers every message; if once, it closes after the first.
func answer(once bool) func(net.Conn) error {
	return func(conn net.Conn) error {
		defer conn.Close()
		var buffer [messageLen]byte
		for {
			if err := takeMessage(conn, buffer[:]); err != nil {
				return err
			}
			if _, err := conn.Write(message); err != nil {
				return err
			}
			if once {
				return nil
			}
		}
	}
}

// together runs work in so many goroutines and waits for them all.
func together(parallel uint64, work func(at uint64) error) error {
	failures := make([]error, parallel)
	var all sync.WaitGroup
	for at := range parallel {
		all.Go(func() { failures[at] = work(at) })
	}
	all.Wait()
	return errors.Join(failures...)
}

// open is as many connections, before the clock runs.
func (p *pair) open(parallel uint64) ([]net.Conn, error) {
	conns := make([]net.Conn, parallel)
	for at := range conns {
		conn, err := p.dial()
		if err != nil {
			return nil, err
		}
		conns[at] = conn
	}
	return conns, nil
}

func (p *pair) transaction() error {
	conn, err := p.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write(message); err != nil {
		return err
	}
	var buffer [messageLen]byte
	if err := takeMessage(conn, buffer[:]); err != nil {
		return err
	}
	if _, err := conn.Read(buffer[:]); err != io.EOF {
		return fmt.Errorf("%v instead of the end", err)
	}
	return nil
}

func (p *pair) short(count, parallel uint64) (time.Duration, error) {
	go p.serve(answer(true))
	var started atomic.Uint64
	start := time.Now()
	err := together(parallel, func(uint64) error {
		for started.Add(1) <= count {
			if err := p.transaction(); err != nil {
				return err
			}
			done.Add(1)
		}
		return nil
	})
	return time.Since(start), err
}

func (p *pair) ping(count, parallel uint64) (time.Duration, error) {
	go p.serve(answer(false))
	conns, err := p.open(parallel)
	if err != nil {
		return 0, err
	}
	var started atomic.Uint64
	start := time.Now()
	err = together(parallel, func(at uint64) error {
		var buffer [messageLen]byte
		for started.Add(1) <= count {
			if _, err := conns[at].Write(message); err != nil {
				return err
			}
			if err := takeMessage(conns[at], buffer[:]); err != nil {
				return err
			}
			done.Add(1)
		}
		return nil
	})
	return time.Since(start), err
}

func (p *pair) bulk(megabytes, parallel uint64) (time.Duration, error) {
	share := (megabytes<<20 + parallel - 1) / parallel
	var received sync.WaitGroup
	received.Add(int(parallel))
	go p.serve(func(conn net.Conn) error {
		buffer := make([]byte, chunkLen)
		for left := share; left > 0; {
			n, err := conn.Read(buffer)
			if err != nil {
				return err
			}
			done.Add(uint64(n))
			left -= uint64(n)
		}
		received.Done()
		return nil
	})
	conns, err := p.open(parallel)
	if err != nil {
		return 0, err
	}
	chunk := bytes.Repeat([]byte{0x5a}, chunkLen)
	start := time.Now()
	err = together(parallel, func(at uint64) error {
		for left := share; left > 0; {
			n, err := conns[at].Write(chunk[:min(left, chunkLen)])
			if err != nil {
				return err
			}
			left -= uint64(n)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	received.Wait()
	return time.Since(start), nil
}

func watch() {
	for last := done.Load(); ; {
		time.Sleep(stuck)
		now := done.Load()
		if now == last {
			fail(fmt.Errorf("nothing has moved for %v", stuck))
		}
		last = now
	}
}

func run(arguments []string) (time.Duration, error) {
	if len(arguments) != 3 {
		return 0, errors.New(usage)
	}
	count, err := strconv.ParseUint(arguments[1], 10, 40)
	if err != nil || count == 0 {
		return 0, errors.New(usage)
	}
	parallel, err := strconv.ParseUint(arguments[2], 10, 40)
	if err != nil || parallel == 0 {
		return 0, errors.New(usage)
	}
	if parallel > parallelMax {
		return 0, fmt.Errorf("%d at a time: %d is the most", parallel, parallelMax)
	}
	p, err := newPair()
	if err != nil {
		return 0, err
	}
	go watch()
	switch arguments[0] {
	case "short":
		return p.short(count, parallel)
	case "ping":
		return p.ping(count, parallel)
	case "bulk":
		return p.bulk(count, parallel)
	}
	return 0, errors.New(usage)
}

func main() {
	if len(os.Args) > 1 && (os.Args[1] == "tap" || os.Args[1] == "wire") {
		fail(serveOn(os.Args[1], os.Args[2:]))
	}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
	if len(os.Args) > 1 && os.Args[1] == "idle" {
		if err := idle(os.Args[2:]); err != nil {
			fail(err)
		}
		return
	}
	elapsed, err := run(os.Args[1:])
	if err != nil {
		fail(err)
	}
	fmt.Printf("{\"stack\":\"gVisor %s\",\"operations\":%d,\"seconds\":%.6f}\n", version(), done.Load(), elapsed.Seconds())
}
