package main

import (
	"encoding/binary"
	"fmt"
	"net"
	"sync"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

const (
	// Bytes that a bulk server reads and writes at once: as tests/programs/server.c.
	bulkLen = 256 << 10
	// The header of virtio-net, and what of it is used: linux/virtio_net.h.
	vnetLen       = 10
	needsChecksum = 1
	gsoTCPv4      = 1
	// The largest frame that the kernel hands over: a packet of 65,535 bytes.
	frameMax = header.EthernetMinimumSize + 65535
	// Frames up to here are copied into a buffer of their size, so that one of the largest is not held for each.
	smallMax = 4096
)

// tapLink is a TAP device with the offloads that the kernel gives to it, both ways: units of up to 64 KB, and checksums that nobody computes. gVisor's own fdbased endpoint
// has them on packet sockets alone; on TAP it would carry frames of 1,514 bytes with checksums.
type tapLink struct {
	fd      int
	address tcpip.LinkAddress

	mu         sync.RWMutex
	dispatcher stack.NetworkDispatcher
}

var _ stack.LinkEndpoint = (*tapLink)(nil)
var _ stack.GSOEndpoint = (*tapLink)(nil)

// openTap creates the device.
func openTap(name string, address tcpip.LinkAddress) (stack.LinkEndpoint, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("/dev/net/tun: %w", err)
	}
	request, err := unix.NewIfreq(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return nil, fmt.Errorf("creating %s: %w", name, err)
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, unix.TUN_F_CSUM|unix.TUN_F_TSO4); err != nil {
		return nil, fmt.Errorf("offloads of %s: %w", name, err)
	}
	return &tapLink{fd: fd, address: address}, nil
}

// openWire is a packet socket on a device, as gVisor's sandboxes have it but for the offloads, which a wire has none of: bursts of up to eight frames for a system call.
func openWire(name string, address tcpip.LinkAddress) (stack.LinkEndpoint, error) {
	device, err := net.InterfaceByName(name)
	if err != nil {
		return nil, err
	}
	// ETH_P_ALL in the network's order.
	const all = unix.ETH_P_ALL << 8
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all)
	if err != nil {
		return nil, fmt.Errorf("a packet socket: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1); err != nil {
		return nil, fmt.Errorf("PACKET_IGNORE_OUTGOING: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20); err != nil {
		return nil, fmt.Errorf("SO_RCVBUFFORCE: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: device.Index}); err != nil {
		return nil, fmt.Errorf("binding to %s: %w", name, err)
	}
	return fdbased.New(&fdbased.Options{
		FDs:                []int{fd},
		MTU:                mtu,
		EthernetHeader:     true,
		Address:            address,
		PacketDispatchMode: fdbased.RecvMMsg,
	})
}

// receive hands over what comes, until the device is gone.
func (l *tapLink) receive() {
	var head [vnetLen]byte
	large := buffer.NewViewSize(frameMax)
	for {
		n, err := unix.Readv(l.fd, [][]byte{head[:], large.AsSlice()})
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			fail(fmt.Errorf("reading from the device: %w", err))
		}
		if n -= vnetLen; n < header.EthernetMinimumSize {
			continue
		}
		var frame *buffer.View
		if n <= smallMax {
			frame = buffer.NewViewWithData(large.AsSlice()[:n])
		} else {
			frame = large
			frame.CapLength(n)
			large = buffer.NewViewSize(frameMax)
		}
		packet := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithView(frame)})
		// The kernel at the other end made it, and there is no wire between.
		packet.RXChecksumValidated = true
		if l.ParseHeader(packet) {
			l.mu.RLock()
			dispatcher := l.dispatcher
			l.mu.RUnlock()
			if dispatcher != nil {
				dispatcher.DeliverNetworkPacket(packet.NetworkProtocolNumber, packet)
			}
		}
		packet.DecRef()
	}
}

func (l *tapLink) WritePackets(packets stack.PacketBufferList) (int, tcpip.Error) {
	for sent, packet := range packets.AsSlice() {
		var head [vnetLen]byte
		if options := packet.GSOOptions; options.Type != stack.GSONone {
			if options.NeedsCsum {
				head[0] = needsChecksum
				binary.LittleEndian.PutUint16(head[6:], header.EthernetMinimumSize+options.L3HdrLen)
				binary.LittleEndian.PutUint16(head[8:], options.CsumOffset)
			}
			if packet.Data().Size() > int(options.MSS) {
				head[1] = gsoTCPv4
				binary.LittleEndian.PutUint16(head[2:], uint16(packet.HeaderSize()))
				binary.LittleEndian.PutUint16(head[4:], options.MSS)
			}
		}
		if _, err := unix.Writev(l.fd, append([][]byte{head[:]}, packet.AsSlices()...)); err != nil {
			return sent, tcpip.TranslateErrno(err.(unix.Errno))
		}
	}
	return packets.Len(), nil
}

func (l *tapLink) Attach(dispatcher stack.NetworkDispatcher) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dispatcher == nil && dispatcher != nil {
		go l.receive()
	}
	l.dispatcher = dispatcher
}

func (l *tapLink) IsAttached() bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.dispatcher != nil
}

func (l *tapLink) AddHeader(packet *stack.PacketBuffer) {
	ethernet := header.Ethernet(packet.LinkHeader().Push(header.EthernetMinimumSize))
	ethernet.Encode(&header.EthernetFields{
		SrcAddr: packet.EgressRoute.LocalLinkAddress,
		DstAddr: packet.EgressRoute.RemoteLinkAddress,
		Type:    packet.NetworkProtocolNumber,
	})
}

func (l *tapLink) ParseHeader(packet *stack.PacketBuffer) bool {
	bytes, ok := packet.LinkHeader().Consume(header.EthernetMinimumSize)
	if !ok {
		return false
	}
	ethernet := header.Ethernet(bytes)
	packet.NetworkProtocolNumber = ethernet.Type()
	to := ethernet.DestinationAddress()
	return to == l.address || to[0]&1 == 1
}

func (l *tapLink) MTU() uint32                             { return mtu }
func (l *tapLink) SetMTU(uint32)                           {}
func (l *tapLink) MaxHeaderLength() uint16                 { return header.EthernetMinimumSize }
func (l *tapLink) LinkAddress() tcpip.LinkAddress          { return l.address }
func (l *tapLink) SetLinkAddress(tcpip.LinkAddress)        {}
func (l *tapLink) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareEther }
func (l *tapLink) Wait()                                   {}
func (l *tapLink) Close()                                  {}
func (l *tapLink) SetOnCloseAction(func())                 {}
func (l *tapLink) GSOMaxSize() uint32 {
	return 1 << 16
}
func (l *tapLink) SupportedGSO() stack.SupportedGSO { return stack.HostGSOSupported }

func (l *tapLink) Capabilities() stack.LinkEndpointCapabilities {
	// Not that of sending: with it nothing has a checksum, and what is outside of a connection, as a SYN-ACK, says nothing of it.
	return stack.CapabilityResolutionRequired | stack.CapabilityRXChecksumOffload
}
