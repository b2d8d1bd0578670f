package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"strconv"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
)

// Without a segment for so long none is on its way.
const quiet = 200 * time.Millisecond

// idle opens connections and says what they take, of both ends and without goroutines of their own. The server has as many ports as there are times that the client's are used.
func idle(arguments []string) error {
	if len(arguments) != 1 {
		return errors.New(usage)
	}
	count, err := strconv.ParseUint(arguments[0], 10, 40)
	if err != nil || count == 0 {
		return errors.New(usage)
	}
	p, err := newPair()
	if err != nil {
		return err
	}
	listeners := []net.Listener{p.listener}
	for uint64(len(listeners))*parallelMax < count {
		at := tcpip.FullAddress{NIC: nic, Addr: serverAddress, Port: uint16(port + len(listeners))}
		listener, err := gonet.ListenTCP(p.server, at, ipv4.ProtocolNumber)
		if err != nil {
			return err
		}
		listeners = append(listeners, listener)
	}
	clients, servers := make([]net.Conn, count), make([]net.Conn, count)
	before, err := resident()
	if err != nil {
		return err
	}
	for at := range clients {
		which := at / parallelMax
		to := tcpip.FullAddress{NIC: nic, Addr: serverAddress, Port: uint16(port + which)}
		if clients[at], err = gonet.DialTCP(p.client, to, ipv4.ProtocolNumber); err != nil {
			return err
		}
		if servers[at], err = listeners[which].Accept(); err != nil {
			return err
		}
	}
	p.settle()
	established, err := resident()
	if err != nil {
		return err
	}
	for _, conn := range clients {
		if _, err := conn.Write(message); err != nil {
			return err
		}
	}
	p.settle()
	waiting, err := resident()
	if err != nil {
		return err
	}
	// The lists of them are not to be counted.
	const listed = 2 * 16
	fmt.Printf("{\"stack\":\"gVisor %s\",\"connections\":%d,\"idle\":%d,\"active\":%d}\n",
		version(), count, (established-before-listed*int64(count))/int64(count)/2, (waiting-established)/int64(count))
	// All of them are there until here.
	for at := range servers {
		clients[at].Close()
		servers[at].Close()
	}
	return nil
}

// settle waits until no more segments come.
func (p *pair) settle() {
	segments := func() uint64 {
		return p.client.Stats().TCP.ValidSegmentsReceived.Value() + p.server.Stats().TCP.ValidSegmentsReceived.Value()
	}
	for last := uint64(0); segments() != last; {
		last = segments()
		time.Sleep(quiet)
	}
}

// resident is how many bytes of this process are, garbage collected.
func resident() (int64, error) {
	debug.FreeOSMemory()
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, err
	}
	var size, pages int64
	if _, err := fmt.Sscan(string(statm), &size, &pages); err != nil {
		return 0, fmt.Errorf("/proc/self/statm: %w", err)
	}
	return pages * int64(os.Getpagesize()), nil
}
