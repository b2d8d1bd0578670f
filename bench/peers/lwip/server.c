// lwIP as a server, one thread: on a TAP device that it creates, or on one that is there by a packet socket. What it does is what tests/programs/server.c does in the mode
// of that name.
//
//   millrace-peer-lwip-server tap|wire short|echo|sink|source DEVICE ADDRESS PORT     prints "ready"; ends on SIGTERM
//
// Debian's build of lwIP as it comes, by its raw API, configured as in pair.c: windows of 65,535 bytes, Nagle off, acknowledgements delayed as they come. Frames of
// 1,514 bytes, one system call for each; checksums made and checked by lwIP. Connections that wait in TIME-WAIT are let go (pair.c says why).

#define PROGRAM "millrace-peer-lwip-server"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <lwip/etharp.h>
#include <lwip/init.h>
#include <lwip/netif.h>
#include <lwip/priv/tcp_priv.h>
#include <lwip/tcp.h>
#include <netif/ethernet.h>

#include "fail.h"

enum {
	MESSAGE = 64,
	CHUNK = 64 << 10,
	MTU = 1500,
	FRAME_MAX = MTU + 14,
	BURST = 32,      // frames taken before what waits to be sent and the timers are looked at
	PIECES_MAX = 16, // of a frame in lwIP's buffers
	WAITING_MAX = 8 << 20, // bytes that wait in a packet socket
};

static enum { SHORT, ECHO, SINK, SOURCE } mode;
static int device;
static struct netif netif;
static uint8_t taken[UINT16_MAX], chunk[CHUNK];

static err_t link_output(struct netif *own, struct pbuf *packet)
{
	struct iovec pieces[PIECES_MAX];
	int count = 0;
	for (struct pbuf *part = packet; part; part = part->next) {
		if (count == PIECES_MAX)
			return ERR_BUF;
		pieces[count++] = (struct iovec){part->payload, part->len};
	}
	// What the device does not take is lost, as on a wire.
	return writev(device, pieces, count) < 0 ? ERR_IF : ERR_OK;
}

static err_t setup(struct netif *own)
{
	own->name[0] = 'm';
	own->name[1] = 'e';
	own->mtu = MTU;
	own->hwaddr_len = ETH_HWADDR_LEN;
	memcpy(own->hwaddr, (uint8_t[]){2, 0, 0, 0, 0, 2}, ETH_HWADDR_LEN);
	own->flags = NETIF_FLAG_BROADCAST | NETIF_FLAG_ETHARP | NETIF_FLAG_ETHERNET;
	own->output = etharp_output;
	own->linkoutput = link_output;
	return ERR_OK;
}

static void close_connection(struct tcp_pcb *pcb)
{
	tcp_recv(pcb, NULL);
	tcp_sent(pcb, NULL);
	if (tcp_close(pcb) != ERR_OK)
		tcp_abort(pcb);
}

// Writes as much as there is room for.
static void fill(struct tcp_pcb *pcb)
{
	uint16_t room;
	while ((room = tcp_sndbuf(pcb)) > 0) {
		// It has no more segments; or no more room for them.
		if (tcp_write(pcb, chunk, room, TCP_WRITE_FLAG_COPY) != ERR_OK)
			break;
	}
	tcp_output(pcb);
}

static err_t sent(void *argument, struct tcp_pcb *pcb, u16_t len)
{
	fill(pcb);
	return ERR_OK;
}

static err_t received(void *argument, struct tcp_pcb *pcb, struct pbuf *packet, err_t error)
{
	if (!packet) {
		close_connection(pcb);
		return ERR_OK;
	}
	uint16_t len = pbuf_copy_partial(packet, taken, sizeof taken, 0);
	// A message of a client of short transactions comes in one piece.
	bool answers = mode == ECHO || (mode == SHORT && len == MESSAGE);
	if (answers && tcp_write(pcb, taken, len, TCP_WRITE_FLAG_COPY) == ERR_OK)
		tcp_output(pcb);
	tcp_recved(pcb, packet->tot_len);
	pbuf_free(packet);
	if (mode == SHORT)
		close_connection(pcb);
	return ERR_OK;
}

static err_t accepted(void *argument, struct tcp_pcb *pcb, err_t error)
{
	if (error != ERR_OK || !pcb)
		return ERR_VAL;
	tcp_nagle_disable(pcb);
	tcp_recv(pcb, received);
	if (mode == SOURCE) {
		tcp_sent(pcb, sent);
		fill(pcb);
	}
	return ERR_OK;
}

static uint64_t now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000ull + now.tv_nsec / 1000000;
}

// Creates a TAP device.
static void open_tap(const char *name)
{
	struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI};
	if (strlen(name) >= sizeof request.ifr_name)
		fail("%s: too long a name", name);
	strcpy(request.ifr_name, name);
	device = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
	if (device < 0 || ioctl(device, TUNSETIFF, &request) < 0)
		fail("creating %s: %s", name, strerror(errno));
}

// Takes what comes to a device that is there, and sends by it.
static void open_wire(const char *name)
{
	struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = if_nametoindex(name)};
	int on = 1, waiting = WAITING_MAX;
	if (address.sll_ifindex == 0)
		fail("%s: %s", name, strerror(errno));
	// Of no protocol until it is bound, so that nothing of other devices comes.
	device = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK, 0);
	if (device < 0)
		fail("a packet socket: %s", strerror(errno));
	if (setsockopt(device, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on) < 0)
		fail("PACKET_IGNORE_OUTGOING: %s", strerror(errno));
	if (setsockopt(device, SOL_SOCKET, SO_RCVBUFFORCE, &waiting, sizeof waiting) < 0)
		fail("SO_RCVBUFFORCE: %s", strerror(errno));
	if (bind(device, (struct sockaddr *)&address, sizeof address) < 0)
		fail("binding to %s: %s", name, strerror(errno));
}

// Takes in what has come, some of it at a time; whether there was anything.
static bool receive(void)
{
	static uint8_t frame[FRAME_MAX];
	for (int at = 0; at < BURST; at++) {
		ssize_t len = read(device, frame, sizeof frame);
		if (len < 0 && errno != EAGAIN && errno != EINTR)
			fail("reading from the device: %s", strerror(errno));
		if (len <= 0)
			return at > 0;
		// Not PBUF_POOL: in Debian's build (2.1.3) the buffers of a chain are written past their ends.
		struct pbuf *packet = pbuf_alloc(PBUF_RAW, len, PBUF_RAM);
		if (!packet)
			continue;
		pbuf_take(packet, frame, len);
		if (netif.input(packet, &netif) != ERR_OK)
			pbuf_free(packet);
	}
	return true;
}

int main(int argc, char **argv)
{
	static const char *const modes[] = {"short", "echo", "sink", "source"};
	const char *usage = "usage: millrace-peer-lwip-server tap|wire short|echo|sink|source DEVICE ADDRESS PORT";
	ip4_addr_t address, mask, gateway = {0};
	if (argc != 6 || !ip4addr_aton(argv[4], &address))
		fail("%s", usage);
	while (mode <= SOURCE && strcmp(argv[2], modes[mode]) != 0)
		mode++;
	if (mode > SOURCE)
		fail("%s", usage);
	if (strcmp(argv[1], "tap") == 0)
		open_tap(argv[3]);
	else if (strcmp(argv[1], "wire") == 0)
		open_wire(argv[3]);
	else
		fail("%s", usage);
	lwip_init();
	IP4_ADDR(&mask, 255, 255, 255, 0);
	if (!netif_add(&netif, &address, &mask, &gateway, NULL, setup, ethernet_input))
		fail("lwIP does not take the device");
	netif_set_default(&netif);
	netif_set_link_up(&netif);
	netif_set_up(&netif);
	struct tcp_pcb *listener = tcp_new();
	if (!listener)
		fail("no memory for a listener");
	err_t error = tcp_bind(listener, IP_ANY_TYPE, atoi(argv[5]));
	if (error != ERR_OK || !(listener = tcp_listen_with_backlog_and_err(listener, 0xff, &error)))
		fail("listening at %s, port %s: %s", argv[4], argv[5], words(error));
	tcp_accept(listener, accepted);
	puts("ready");
	fflush(stdout);
	for (uint64_t timers = now_ms(), arp = timers;;) {
		if (!receive()) {
			struct pollfd ready = {.fd = device, .events = POLLIN};
			// With connections there are timers.
			poll(&ready, 1, tcp_active_pcbs ? TCP_TMR_INTERVAL / 5 : ARP_TMR_INTERVAL);
		}
		while (tcp_tw_pcbs)
			tcp_abort(tcp_tw_pcbs);
		uint64_t now = now_ms();
		if (now >= timers + TCP_TMR_INTERVAL) {
			timers = now;
			tcp_tmr();
		}
		if (now >= arp + ARP_TMR_INTERVAL) {
			arp = now;
			etharp_tmr();
		}
	}
}
