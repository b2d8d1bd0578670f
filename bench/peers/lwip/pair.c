// Two lwIP stacks joined in memory, both ends together; what it is asked and what it prints is in bench/peers/README.md.
//
// Debian's build of lwIP as it comes, by its raw API, in one thread: windows of 65,535 bytes (TCP_WND, TCP_SND_BUF) with window scaling on, Nagle off,
// acknowledgements delayed as they come (every second segment, else by a timer of 250 ms), its own congestion control, no timestamps, memory from malloc. It
// makes and checks all checksums itself. lwIP's state is global, so each end is a copy of the library of its own (dlmopen). Its timers are called directly
// in virtual time, as without an operating system. Debian's build takes a lock for each use of memory, also with one thread.
//
// A connection of the server that waits in TIME-WAIT is let go after the round, as in the adapter of smoltcp. lwIP keeps it for two minutes, in a list that it looks through for
// each SYN, so that a short transaction would cost more the more there have been; and it answers a SYN from a port that waits there with a reset, which all 16,384 of its
// client's ports do after so many transactions.

#define _GNU_SOURCE
#define PROGRAM "millrace-peer-lwip"
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <lwip/etharp.h>
#include <lwip/init.h>
#include <lwip/netif.h>
#include <lwip/priv/tcp_priv.h>
#include <lwip/tcp.h>
#include <netif/ethernet.h>

#include "fail.h"

#define STACK "lwIP " LWIP_VERSION_STRING

#if !CHECKSUM_GEN_IP || !CHECKSUM_CHECK_IP || !CHECKSUM_GEN_TCP || !CHECKSUM_CHECK_TCP
#error "this lwIP was built without checksums: nothing could be compared"
#endif

enum {
	MESSAGE = 64,
	CHUNK = 64 << 10,
	MTU = 1500,
	FRAME_MAX = MTU + 14,
	PORT = 80,
	PARALLEL_MAX = 16383,       // lwIP chooses ports from 49,152, and leaves one free
	ROUND_US = 10,              // virtual time that one exchange takes
	LINK_BYTES_PER_US = 4096,   // how fast bulk data passes in virtual time: 4 GB/s
	STUCK_US = 100 * 1000000,   // virtual time without progress that is a failure
	TOGETHER = 64,              // of idle connections: how many open, or send, at a time
};

// A frame on its way: bytes, and the buffer that the receiver sees them in.
struct frame {
	struct pbuf_custom buffer;
	struct frame *next_free;
	uint16_t len;
	uint8_t bytes[FRAME_MAX];
};

static struct frame *free_frames;

// One end: a copy of the library, by what is called of it, and what it has sent.
struct end {
	void (*init)(void);
	struct netif *(*netif_add)(struct netif *, const ip4_addr_t *, const ip4_addr_t *, const ip4_addr_t *, void *, netif_init_fn, netif_input_fn);
	void (*netif_set_default)(struct netif *);
	void (*netif_set_up)(struct netif *);
	void (*netif_set_link_up)(struct netif *);
	netif_input_fn ethernet_input;
	netif_output_fn etharp_output;
	void (*etharp_tmr)(void);
	void (*tcp_tmr)(void);
	struct pbuf *(*pbuf_alloced_custom)(pbuf_layer, u16_t, pbuf_type, struct pbuf_custom *, void *, u16_t);
	struct pbuf *(*pbuf_alloc)(pbuf_layer, u16_t, pbuf_type);
	err_t (*pbuf_take)(struct pbuf *, const void *, u16_t);
	u8_t (*pbuf_free)(struct pbuf *);
	u16_t (*pbuf_copy_partial)(const struct pbuf *, void *, u16_t, u16_t);
	struct tcp_pcb *(*tcp_new)(void);
	err_t (*tcp_bind)(struct tcp_pcb *, const ip_addr_t *, u16_t);
	struct tcp_pcb *(*tcp_listen_with_backlog)(struct tcp_pcb *, u8_t);
	void (*tcp_accept)(struct tcp_pcb *, tcp_accept_fn);
	err_t (*tcp_connect)(struct tcp_pcb *, const ip_addr_t *, u16_t, tcp_connected_fn);
	void (*tcp_arg)(struct tcp_pcb *, void *);
	void (*tcp_recv)(struct tcp_pcb *, tcp_recv_fn);
	void (*tcp_err)(struct tcp_pcb *, tcp_err_fn);
	err_t (*tcp_write)(struct tcp_pcb *, const void *, u16_t, u8_t);
	err_t (*tcp_output)(struct tcp_pcb *);
	void (*tcp_recved)(struct tcp_pcb *, u16_t);
	err_t (*tcp_close)(struct tcp_pcb *);
	void (*tcp_abort)(struct tcp_pcb *);
	struct tcp_pcb **tcp_tw_pcbs;

	struct netif netif;
	struct frame **frames;
	size_t used, room;
};

static struct end client, server;

// What is asked for, and how far it is.
static enum { SHORT, PING, BULK, IDLE } mode;
static uint64_t count, started, done, received;
static size_t opened, accepted;
static uint64_t now_us, timers_us, arp_us;
static uint8_t message[MESSAGE], chunk[CHUNK], taken[UINT16_MAX];

// A connection of the client's; of bulk also what is left to send.
struct connection {
	struct tcp_pcb *pcb;
	uint64_t left;
};
static struct connection *connections;

static void *symbol(void *library, const char *name)
{
	void *found = dlsym(library, name);
	if (!found)
		fail("%s", dlerror());
	return found;
}

static void load(struct end *end)
{
	void *library = dlmopen(LM_ID_NEWLM, "liblwip.so.0", RTLD_NOW | RTLD_LOCAL);
	if (!library)
		fail("%s", dlerror());
	end->init = symbol(library, "lwip_init");
	end->netif_add = symbol(library, "netif_add");
	end->netif_set_default = symbol(library, "netif_set_default");
	end->netif_set_up = symbol(library, "netif_set_up");
	end->netif_set_link_up = symbol(library, "netif_set_link_up");
	end->ethernet_input = symbol(library, "ethernet_input");
	end->etharp_output = symbol(library, "etharp_output");
	end->etharp_tmr = symbol(library, "etharp_tmr");
	end->tcp_tmr = symbol(library, "tcp_tmr");
	end->pbuf_alloced_custom = symbol(library, "pbuf_alloced_custom");
	end->pbuf_alloc = symbol(library, "pbuf_alloc");
	end->pbuf_take = symbol(library, "pbuf_take");
	end->pbuf_free = symbol(library, "pbuf_free");
	end->pbuf_copy_partial = symbol(library, "pbuf_copy_partial");
	end->tcp_new = symbol(library, "tcp_new");
	end->tcp_bind = symbol(library, "tcp_bind");
	end->tcp_listen_with_backlog = symbol(library, "tcp_listen_with_backlog");
	end->tcp_accept = symbol(library, "tcp_accept");
	end->tcp_connect = symbol(library, "tcp_connect");
	end->tcp_arg = symbol(library, "tcp_arg");
	end->tcp_recv = symbol(library, "tcp_recv");
	end->tcp_err = symbol(library, "tcp_err");
	end->tcp_write = symbol(library, "tcp_write");
	end->tcp_output = symbol(library, "tcp_output");
	end->tcp_recved = symbol(library, "tcp_recved");
	end->tcp_close = symbol(library, "tcp_close");
	end->tcp_abort = symbol(library, "tcp_abort");
	end->tcp_tw_pcbs = symbol(library, "tcp_tw_pcbs");
}

static void free_frame(struct pbuf *buffer)
{
	// It stands at the beginning.
	struct frame *frame = (struct frame *)buffer;
	frame->next_free = free_frames;
	free_frames = frame;
}

static struct frame *take_frame(void)
{
	struct frame *frame = free_frames;
	if (frame) {
		free_frames = frame->next_free;
		return frame;
	}
	frame = malloc(sizeof *frame);
	if (!frame)
		fail("no memory for a frame");
	frame->buffer.custom_free_function = free_frame;
	return frame;
}

// The driver's part, as of a driver for speed: what lwIP sends is copied into a frame once, and the receiver has it there without another copy.
static err_t link_output(struct netif *netif, struct pbuf *packet)
{
	struct end *end = netif->state;
	if (packet->tot_len > FRAME_MAX)
		fail("a frame of %u bytes", packet->tot_len);
	if (end->used == end->room) {
		end->room = end->room ? 2 * end->room : 256;
		end->frames = realloc(end->frames, end->room * sizeof *end->frames);
		if (!end->frames)
			fail("no memory for %zu frames", end->room);
	}
	struct frame *frame = take_frame();
	end->frames[end->used++] = frame;
	frame->len = end->pbuf_copy_partial(packet, frame->bytes, packet->tot_len, 0);
	return ERR_OK;
}

static err_t netif_setup(struct netif *netif)
{
	struct end *end = netif->state;
	netif->name[0] = 'm';
	netif->name[1] = 'e';
	netif->mtu = MTU;
	netif->hwaddr_len = ETH_HWADDR_LEN;
	memcpy(netif->hwaddr, (uint8_t[]){2, 0, 0, 0, 0, end == &client ? 1 : 2}, ETH_HWADDR_LEN);
	netif->flags = NETIF_FLAG_BROADCAST | NETIF_FLAG_ETHARP | NETIF_FLAG_ETHERNET;
	netif->output = end->etharp_output;
	netif->linkoutput = link_output;
	return ERR_OK;
}

static void set_up(struct end *end)
{
	ip4_addr_t address, mask, gateway;
	load(end);
	end->init();
	IP4_ADDR(&address, 10, 0, 0, end == &client ? 1 : 2);
	IP4_ADDR(&mask, 255, 255, 255, 0);
	IP4_ADDR(&gateway, 0, 0, 0, 0);
	if (!end->netif_add(&end->netif, &address, &mask, &gateway, end, netif_setup, end->ethernet_input))
		fail("lwIP does not take the interface");
	end->netif_set_default(&end->netif);
	end->netif_set_link_up(&end->netif);
	end->netif_set_up(&end->netif);
}

// What the receiver sees of a frame: its own bytes, without another copy; where memory is looked at a copy of its size, as many may lie there for long.
static struct pbuf *arrived(struct end *to, struct frame *frame)
{
	if (mode != IDLE)
		return to->pbuf_alloced_custom(PBUF_RAW, frame->len, PBUF_REF, &frame->buffer, frame->bytes, FRAME_MAX);
	struct pbuf *packet = to->pbuf_alloc(PBUF_RAW, frame->len, PBUF_RAM);
	if (packet)
		to->pbuf_take(packet, frame->bytes, frame->len);
	free_frame(&frame->buffer.pbuf);
	return packet;
}

static void deliver(struct end *from, struct end *to)
{
	for (size_t at = 0; at < from->used; at++) {
		struct pbuf *packet = arrived(to, from->frames[at]);
		if (!packet)
			fail("no buffer for a frame");
		if (to->netif.input(packet, &to->netif) != ERR_OK)
			to->pbuf_free(packet);
	}
	from->used = 0;
}

static void exchange(void)
{
	deliver(&client, &server);
	deliver(&server, &client);
	// In TIME-WAIT it sends nothing.
	while (*server.tcp_tw_pcbs)
		server.tcp_abort(*server.tcp_tw_pcbs);
	now_us += ROUND_US;
	for (; timers_us + TCP_TMR_INTERVAL * 1000 <= now_us; timers_us += TCP_TMR_INTERVAL * 1000) {
		client.tcp_tmr();
		server.tcp_tmr();
	}
	for (; arp_us + ARP_TMR_INTERVAL * 1000 <= now_us; arp_us += ARP_TMR_INTERVAL * 1000) {
		client.etharp_tmr();
		server.etharp_tmr();
	}
}

static void send_message(struct end *end, struct tcp_pcb *pcb)
{
	err_t error = end->tcp_write(pcb, message, MESSAGE, TCP_WRITE_FLAG_COPY);
	if (error != ERR_OK || (error = end->tcp_output(pcb)) != ERR_OK)
		fail("a message cannot be sent: %s", words(error));
}

static void take_message(struct end *end, struct tcp_pcb *pcb, struct pbuf *packet)
{
	uint16_t len = end->pbuf_copy_partial(packet, taken, sizeof taken, 0);
	if (len != MESSAGE || memcmp(taken, message, MESSAGE) != 0)
		fail("%u bytes instead of a message", packet->tot_len);
	end->tcp_recved(pcb, len);
	end->pbuf_free(packet);
}

static void close_connection(struct end *end, struct tcp_pcb *pcb)
{
	err_t error = end->tcp_close(pcb);
	if (error != ERR_OK)
		fail("a connection cannot be closed: %s", words(error));
}

static void failed(void *argument, err_t error)
{
	fail("a connection failed: %s", words(error));
}

static void start_connection(struct connection *connection);

static err_t client_received(void *argument, struct tcp_pcb *pcb, struct pbuf *packet, err_t error)
{
	struct connection *connection = argument;
	if (packet) {
		take_message(&client, pcb, packet);
		if (mode == PING) {
			done++;
			send_message(&client, pcb);
		}
		return ERR_OK;
	}
	if (mode != SHORT)
		fail("the server closed a connection too early");
	close_connection(&client, pcb);
	done++;
	if (started < count)
		start_connection(connection);
	return ERR_OK;
}

static err_t client_connected(void *argument, struct tcp_pcb *pcb, err_t error)
{
	opened++;
	if (mode == SHORT)
		send_message(&client, pcb);
	return ERR_OK;
}

static void start_connection(struct connection *connection)
{
	ip_addr_t remote = IPADDR4_INIT_BYTES(10, 0, 0, 2);
	struct tcp_pcb *pcb = client.tcp_new();
	if (!pcb)
		fail("no memory for a connection");
	connection->pcb = pcb;
	client.tcp_arg(pcb, connection);
	client.tcp_recv(pcb, client_received);
	client.tcp_err(pcb, failed);
	tcp_nagle_disable(pcb);
	err_t error = client.tcp_connect(pcb, &remote, PORT, client_connected);
	if (error != ERR_OK)
		fail("connect: %s", words(error));
	started++;
}

static err_t server_received(void *argument, struct tcp_pcb *pcb, struct pbuf *packet, err_t error)
{
	if (!packet) {
		if (mode != SHORT)
			fail("the client closed a connection too early");
		return ERR_OK;
	}
	if (mode == IDLE) {
		if (packet->tot_len != MESSAGE)
			fail("%u bytes instead of a message", packet->tot_len);
		// It is not taken: lwIP keeps it, and offers it again every quarter of a second.
		done++;
		return ERR_MEM;
	}
	if (mode == BULK) {
		// The program has it in memory of its own, as it has from the others.
		for (uint16_t at = 0; at < packet->tot_len;)
			at += server.pbuf_copy_partial(packet, taken, sizeof taken, at);
		received += packet->tot_len;
		server.tcp_recved(pcb, packet->tot_len);
		server.pbuf_free(packet);
		return ERR_OK;
	}
	take_message(&server, pcb, packet);
	send_message(&server, pcb);
	if (mode == SHORT) {
		// What becomes of the connection now is the stack's business alone.
		server.tcp_recv(pcb, NULL);
		close_connection(&server, pcb);
	}
	return ERR_OK;
}

static err_t server_accepted(void *argument, struct tcp_pcb *pcb, err_t error)
{
	if (error != ERR_OK || !pcb)
		fail("accept: %s", words(error));
	accepted++;
	tcp_nagle_disable(pcb);
	server.tcp_recv(pcb, server_received);
	server.tcp_err(pcb, failed);
	return ERR_OK;
}

static void listen_at_port(void)
{
	ip_addr_t any = IPADDR4_INIT(IPADDR_ANY);
	struct tcp_pcb *pcb = server.tcp_new();
	if (!pcb)
		fail("no memory for a listener");
	err_t error = server.tcp_bind(pcb, &any, PORT);
	if (error != ERR_OK)
		fail("binding to port %d: %s", PORT, words(error));
	if (!(pcb = server.tcp_listen_with_backlog(pcb, 0xff)))
		fail("no memory for a listener");
	server.tcp_accept(pcb, server_accepted);
}

// Exchanges until `*progress` reaches `goal`.
static void exchange_until(const uint64_t *progress, uint64_t goal)
{
	uint64_t last = *progress, last_us = now_us;
	while (*progress < goal) {
		exchange();
		if (*progress != last) {
			last = *progress;
			last_us = now_us;
		} else if (now_us > last_us + STUCK_US) {
			fail("nothing has moved for %d s of virtual time", STUCK_US / 1000000);
		}
	}
}

// Opens all connections, so many at a time.
static void establish(size_t parallel, size_t together)
{
	uint64_t last_us = now_us;
	while (opened < parallel || accepted < parallel) {
		while (started < parallel && started < opened + together)
			start_connection(&connections[started]);
		exchange();
		if (now_us > last_us + STUCK_US)
			fail("%zu of %zu connections after %d s of virtual time", opened, parallel, STUCK_US / 1000000);
	}
}

static void send_bulk(struct connection *connection)
{
	struct tcp_pcb *pcb = connection->pcb;
	uint16_t room;
	while (connection->left > 0 && (room = tcp_sndbuf(pcb)) > 0) {
		uint16_t len = connection->left < room ? connection->left : room;
		err_t error = client.tcp_write(pcb, chunk, len, TCP_WRITE_FLAG_COPY);
		// It has no more segments; or no more room for them.
		if (error == ERR_MEM)
			break;
		if (error != ERR_OK)
			fail("bulk cannot be sent: %s", words(error));
		connection->left -= len;
	}
	client.tcp_output(pcb);
}

static uint64_t bulk(size_t parallel)
{
	uint64_t share = ((count << 20) + parallel - 1) / parallel, total = share * parallel;
	for (size_t at = 0; at < parallel; at++)
		connections[at].left = share;
	uint64_t last_us = now_us;
	while (received < total) {
		uint64_t before = received;
		for (size_t at = 0; at < parallel; at++)
			send_bulk(&connections[at]);
		exchange();
		now_us += (received - before) / LINK_BYTES_PER_US;
		if (received != before)
			last_us = now_us;
		else if (now_us > last_us + STUCK_US)
			fail("no byte for %d s of virtual time", STUCK_US / 1000000);
	}
	return received;
}

// Bytes resident of this process.
static double resident(void)
{
	unsigned long pages;
	FILE *file = fopen("/proc/self/statm", "r");
	if (!file || fscanf(file, "%*u %lu", &pages) != 1)
		fail("/proc/self/statm cannot be read");
	fclose(file);
	return (double)pages * sysconf(_SC_PAGESIZE);
}

// What connections take: `before` was resident when there was none.
static void idle(double before)
{
	establish(count, TOGETHER);
	double established = resident();
	for (size_t at = 0; at < count; at++) {
		send_message(&client, connections[at].pcb);
		if (at % TOGETHER == 0 || at + 1 == count)
			exchange();
	}
	exchange();
	if (done < count)
		fail("%llu of %llu messages have arrived", (unsigned long long)done, (unsigned long long)count);
	printf("{\"stack\":\"%s\",\"connections\":%llu,\"idle\":%.0f,\"active\":%.0f}\n", STACK, (unsigned long long)count,
	       (established - before) / count / 2, (resident() - established) / count);
}

static double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

static uint64_t number(const char *text)
{
	char *end;
	unsigned long long value = strtoull(text, &end, 10);
	return *text < '0' || *text > '9' || *end || value == 0 ? 0 : value;
}

int main(int argc, char **argv)
{
	static const char *const modes[] = {"short", "ping", "bulk", "idle"};
	const char *usage = "usage: millrace-peer-lwip short|ping|bulk COUNT PARALLEL, or millrace-peer-lwip idle COUNT";
	if (argc < 3)
		fail("%s", usage);
	while (mode <= IDLE && strcmp(argv[1], modes[mode]) != 0)
		mode++;
	count = number(argv[2]);
	if (mode > IDLE || argc != (mode == IDLE ? 3 : 4))
		fail("%s", usage);
	uint64_t parallel = mode == IDLE ? count : number(argv[3]);
	if (!count || !parallel)
		fail("%s", usage);
	if (parallel > PARALLEL_MAX)
		give_up(TOO_MUCH, "%lu connections: %d are the most, a port each of those that lwIP chooses", (unsigned long)parallel, PARALLEL_MAX);
	if (mode == SHORT && parallel > count)
		parallel = count;

	memset(message, 0x5a, sizeof message);
	memset(chunk, 0x5a, sizeof chunk);
	connections = calloc(parallel, sizeof *connections);
	if (!connections)
		fail("no memory for %lu connections", (unsigned long)parallel);
	set_up(&client);
	set_up(&server);
	listen_at_port();

	if (mode == IDLE) {
		idle(resident());
		return 0;
	}
	double start = seconds();
	uint64_t operations;
	if (mode == SHORT) {
		for (size_t at = 0; at < parallel; at++)
			start_connection(&connections[at]);
		exchange_until(&done, count);
		operations = done;
	} else {
		establish(parallel, parallel);
		start = seconds();
		if (mode == PING) {
			for (size_t at = 0; at < parallel; at++)
				send_message(&client, connections[at].pcb);
			exchange_until(&done, count);
			operations = done;
		} else {
			operations = bulk(parallel);
		}
	}
	printf("{\"stack\":\"%s\",\"operations\":%llu,\"seconds\":%.6f}\n", STACK, (unsigned long long)operations, seconds() - start);
	return 0;
}
