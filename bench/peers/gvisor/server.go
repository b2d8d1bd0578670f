package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
)

// What a server does with a connection, by its mode.
var services = map[string]func(net.Conn) error{
	"short":  short,
	"echo":   echo,
	"sink":   sink,
	"source": source,
}

// serveOn serves until it is ended by a signal: on a TAP device that it creates, with the offloads that such a device has (link.go), or on a device that is there, by a packet
// socket of gVisor's own. As many processors as it may use serve, as gVisor's users have it. Says "ready" when it listens.
func serveOn(kind string, arguments []string) error {
	if len(arguments) != 4 {
		return errors.New(usage)
	}
	service := services[arguments[0]]
	address, err := netip.ParseAddr(arguments[2])
	if service == nil || err != nil || !address.Is4() {
		return errors.New(usage)
	}
	port, err := strconv.ParseUint(arguments[3], 10, 16)
	if err != nil {
		return errors.New(usage)
	}
	open := openTap
	if kind == "wire" {
		open = openWire
	}
	link, err := open(arguments[1], "\x02\x00\x00\x00\x00\x02")
	if err != nil {
		return err
	}
	own := tcpip.AddrFrom4(address.As4())
	s, err := newStack(link, own)
	if err != nil {
		return err
	}
	listener, err := gonet.ListenTCP(s, tcpip.FullAddress{NIC: nic, Addr: own, Port: uint16(port)}, ipv4.ProtocolNumber)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for {
		conn, err := listener.Accept()
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		// What goes wrong with a connection is its client's to notice.
		go service(conn)
	}
}

// short answers one message with its own bytes, and closes.
func short(conn net.Conn) error {
	defer conn.Close()
	var buffer [messageLen]byte
	if _, err := io.ReadFull(conn, buffer[:]); err != nil {
		return err
	}
	_, err := conn.Write(buffer[:])
	return err
}

// echo answers what it reads, until the client closes.
func echo(conn net.Conn) error {
	defer conn.Close()
	var buffer [4096]byte
	for {
		n, err := conn.Read(buffer[:])
		if err != nil {
			return err
		}
		if _, err := conn.Write(buffer[:n]); err != nil {
			return err
		}
	}
}

// sink takes all there is.
func sink(conn net.Conn) error {
	defer conn.Close()
	buffer := make([]byte, bulkLen)
	for {
		if _, err := conn.Read(buffer); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// source gives as much as is taken.
func source(conn net.Conn) error {
	defer conn.Close()
	buffer := make([]byte, bulkLen)
	for {
		if _, err := conn.Write(buffer); err != nil {
			return err
		}
	}
}
