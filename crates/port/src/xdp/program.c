/* The XDP program: which frames are the stack's, before the kernel's own stack sees them. Everything else passes.
 *
 * `cargo xtask bpf` makes program.o of it.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define ADDRESSES 8
/* Whose a port is: bits of an entry of `ports`. */
#define TCP_OURS 1
#define UDP_OURS 2
/* More fragments, or an offset: the ports are not to be seen. */
#define FRAGMENT 0x3fff

char terms[] SEC("license") = "Dual MIT/GPL";

/* Set before the program is loaded. The stack's own address on the link; */
const volatile __u8 station[8] = {};
/* or, where it has the kernel's, that what goes to addresses of both and to ports of ours is ours; */
const volatile __u8 shared = 0;
/* or all there is. */
const volatile __u8 everything = 0;

/* A socket for each queue of the device. */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 256);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} sockets SEC(".maps");

/* The addresses that both have, all zero where there is none. They come and go while the program runs. */
struct addresses {
	__u32 v4[ADDRESSES];
	__u64 v6[ADDRESSES][2];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct addresses));
} addresses SEC(".maps");

/* By port. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u8));
} ports SEC(".maps");

static __always_inline int is_own(const struct addresses *own, __u32 address)
{
	for (int i = 0; i < ADDRESSES; i++)
		if (own->v4[i] && own->v4[i] == address)
			return 1;
	return 0;
}

static __always_inline int is_own_v6(const struct addresses *own, const struct in6_addr *address)
{
	__u64 words[2];

	__builtin_memcpy(words, address, sizeof(words));
	if (!(words[0] | words[1]))
		return 0;
	for (int i = 0; i < ADDRESSES; i++)
		if (own->v6[i][0] == words[0] && own->v6[i][1] == words[1])
			return 1;
	return 0;
}

static __always_inline int is_ours(__u8 protocol, __be16 port)
{
	__u32 key = bpf_ntohs(port);
	__u8 *whose = bpf_map_lookup_elem(&ports, &key);

	if (!whose)
		return 0;
	return *whose & (protocol == IPPROTO_TCP ? TCP_OURS : UDP_OURS);
}

/* Whether a packet is of a flow of ours; `at` is its IPv4 header. */
static __always_inline int is_flow(const struct addresses *own, const __u8 *at, const __u8 *end)
{
	const struct iphdr *ip = (const void *)at;

	if ((const __u8 *)(ip + 1) > end || ip->ihl < 5 || !is_own(own, ip->daddr) ||
	    ip->frag_off & bpf_htons(FRAGMENT))
		return 0;
	at += ip->ihl * 4;
	if (ip->protocol == IPPROTO_TCP || ip->protocol == IPPROTO_UDP) {
		if (at + 4 > end)
			return 0;
		return is_ours(ip->protocol, *(const __be16 *)(at + 2));
	}
	if (ip->protocol != IPPROTO_ICMP)
		return 0;
	/* An error is for whoever sent what it quotes. */
	const struct iphdr *quoted = (const void *)(at + 8);

	if ((const __u8 *)(quoted + 1) > end)
		return 0;
	if (*at != 3 && *at != 11 && *at != 12)
		return 0;
	if (quoted->ihl < 5 || !is_own(own, quoted->saddr) ||
	    (quoted->protocol != IPPROTO_TCP && quoted->protocol != IPPROTO_UDP))
		return 0;
	at += 8 + quoted->ihl * 4;
	if (at + 2 > end)
		return 0;
	return is_ours(quoted->protocol, *(const __be16 *)at);
}

/* The same; `at` is its IPv6 header. What has extension headers, fragments among it, is the kernel's. */
static __always_inline int is_flow_v6(const struct addresses *own, const __u8 *at, const __u8 *end)
{
	const struct ipv6hdr *ip = (const void *)at;

	if ((const __u8 *)(ip + 1) > end || !is_own_v6(own, &ip->daddr))
		return 0;
	at += sizeof(*ip);
	if (ip->nexthdr == IPPROTO_TCP || ip->nexthdr == IPPROTO_UDP) {
		if (at + 4 > end)
			return 0;
		return is_ours(ip->nexthdr, *(const __be16 *)(at + 2));
	}
	if (ip->nexthdr != IPPROTO_ICMPV6)
		return 0;
	/* As above. Neighbour discovery is no error. */
	const struct ipv6hdr *quoted = (const void *)(at + 8);

	if ((const __u8 *)(quoted + 1) + 2 > end)
		return 0;
	if (*at < 1 || *at > 4)
		return 0;
	if (!is_own_v6(own, &quoted->saddr) ||
	    (quoted->nexthdr != IPPROTO_TCP && quoted->nexthdr != IPPROTO_UDP))
		return 0;
	return is_ours(quoted->nexthdr, *(const __be16 *)(quoted + 1));
}

/* Whether a frame is of a flow of ours, in addresses that the kernel has as well. */
static __always_inline int is_shared_flow(const __u8 *frame, const __u8 *end)
{
	const struct ethhdr *link = (const void *)frame;
	const struct addresses *own;
	__u32 only = 0;

	if (frame[0] & 1)
		return 0;
	own = bpf_map_lookup_elem(&addresses, &only);
	if (!own)
		return 0;
	if (link->h_proto == bpf_htons(ETH_P_IP))
		return is_flow(own, frame + ETH_HLEN, end);
	if (link->h_proto == bpf_htons(ETH_P_IPV6))
		return is_flow_v6(own, frame + ETH_HLEN, end);
	return 0;
}

static __always_inline int steer(struct xdp_md *context)
{
	const __u8 *frame = (const __u8 *)(long)context->data;
	const __u8 *end = (const __u8 *)(long)context->data_end;

	if (frame + ETH_HLEN > end)
		return XDP_PASS;
	if (everything) {
		/* Nothing to look at. */
	} else if (shared) {
		if (!is_shared_flow(frame, end))
			return XDP_PASS;
	} else {
		for (int i = 0; i < ETH_ALEN; i++)
			if (frame[i] != station[i])
				return XDP_PASS;
	}
	/* A queue without a socket is the kernel's. */
	return bpf_redirect_map(&sockets, context->rx_queue_index, XDP_PASS);
}

SEC("xdp")
int whole(struct xdp_md *context)
{
	return steer(context);
}

/* For a device whose frames come in pieces: drivers do more to have them whole where nobody says that he takes pieces. */
SEC("xdp.frags")
int pieces(struct xdp_md *context)
{
	return steer(context);
}
