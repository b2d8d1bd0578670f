/* The XDP program: which frames are the stack's, before the kernel's own stack sees them. Everything else passes.
 *
 * `cargo xtask bpf` makes program.o of it.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>

char terms[] SEC("license") = "Dual MIT/GPL";

/* The stack's address on the link, set before the program is loaded. */
const volatile __u8 station[8] = {};

/* A socket for each queue of the device. */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 256);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} sockets SEC(".maps");

static __always_inline int steer(struct xdp_md *context)
{
	const __u8 *frame = (const __u8 *)(long)context->data;
	const __u8 *end = (const __u8 *)(long)context->data_end;

	if (frame + ETH_HLEN > end)
		return XDP_PASS;
	for (int i = 0; i < ETH_ALEN; i++)
		if (frame[i] != station[i])
			return XDP_PASS;
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
