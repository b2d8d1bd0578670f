//! Every drop, refusal and limit by name.

macro_rules! counters {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// Counts since the start. Plain values with one writer.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])+ pub $name: u64,)+
        }

        impl Counters {
            /// Name and value of every counter, in the order of the definition.
            ///
            /// ```
            /// # use millrace_shard as millrace;
            /// let counters = millrace::Counters { frames_in: 3, ..Default::default() };
            /// assert!(counters.iter().any(|count| count == ("frames_in", 3)));
            /// ```
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)+].into_iter()
            }

            /// Adds `other` to this: the sum over shards.
            ///
            /// ```
            /// # use millrace_shard as millrace;
            /// let shards = [1, 2].map(|frames_in| millrace::Counters { frames_in,
            /// ..Default::default() });
            /// let mut all = millrace::Counters::default();
            /// shards.iter().for_each(|counters| all.add(counters));
            /// assert_eq!(all.frames_in, 3);
            /// ```
            pub fn add(&mut self, other: &Counters) {
                $(self.$name += other.$name;)+
            }
        }
    };
}

counters! {
    /// Frames received.
    frames_in,
    /// Bytes of frames received.
    bytes_in,
    /// Frames (or segmentation units) sent.
    frames_out,
    /// Bytes of frames sent.
    bytes_out,
    /// Frames received that are another shard's.
    frames_misrouted,
    /// Connections that went to another shard.
    connections_given,
    /// Connections that came from another shard.
    connections_taken,
    /// Connections that were to go and for which there was no room anywhere, for want of memory.
    connections_lost,
    /// Times the port had no room.
    egress_full,
    /// Frames shorter than their headers say, or of a type not served.
    ethernet_dropped,
    /// Frames to another hardware address.
    ethernet_not_ours,
    /// ARP packets that are malformed or make no sense.
    arp_dropped,
    /// ARP requests sent.
    arp_requests_out,
    /// ARP replies sent.
    arp_replies_out,
    /// Announcements of our own addresses sent over ARP, those in defence against other claims
    /// among them.
    arp_announcements_out,
    /// Another host claims our address.
    arp_conflicts,
    /// Messages of neighbour discovery that fail a check of RFC 4861, or make no sense.
    nd_dropped,
    /// Neighbour solicitations sent, probes for duplicates among them.
    nd_solicitations_out,
    /// Neighbour advertisements sent.
    nd_advertisements_out,
    /// Reports of the groups that this host listens to.
    mld_reports_out,
    /// Another host claims an IPv6 address of ours that is in use.
    nd_conflicts,
    /// IPv6 addresses that are not used because another host has them.
    duplicate_addresses,
    /// Routers that were not remembered because there were enough.
    routers_refused,
    /// Neighbours that did not answer.
    neighbours_failed,
    /// Neighbours evicted because the cache was full.
    neighbours_evicted,
    /// Neighbours of a program with more than its share of the cache that gave way to another's.
    neighbours_limited,
    /// Neighbours refused because the cache was full of those in use.
    neighbours_refused,
    /// Packets dropped while they waited for a neighbour's hardware address.
    neighbour_queue_dropped,
    /// IP packets with malformed headers.
    ip_malformed,
    /// IPv4 packets with a wrong header checksum.
    ip_checksum,
    /// IP packets to an address that is not ours, broadcast and multicast included.
    ip_not_ours,
    /// IP packets from an address that cannot be a source.
    ip_bad_source,
    /// IP fragments received.
    ip_fragments,
    /// Packets put together from fragments.
    ip_reassembled,
    /// Fragments dropped because they overlap others, are too small to say what they belong to, or
    /// belong to a packet that was dropped for that.
    ip_fragments_condemned,
    /// Fragments dropped because there were too many.
    ip_fragments_refused,
    /// Packets of which fragments did not come in time.
    ip_reassembly_timeouts,
    /// IP packets of a protocol not served.
    ip_unknown_protocol,
    /// Packets without a route.
    ip_no_route,
    /// Messages of IPv4 group management that are malformed.
    igmp_dropped,
    /// Messages of IPv4 group management sent.
    igmp_reports_out,
    /// ICMP messages that are malformed, or have a wrong checksum.
    icmp_dropped,
    /// Echo requests answered.
    icmp_echo_replies,
    /// Echo requests not answered because of the rate limit.
    icmp_echo_limited,
    /// ICMP errors sent.
    icmp_errors_out,
    /// ICMP errors not sent because of the rate limit.
    icmp_errors_limited,
    /// ICMP errors received that belong to a connection.
    icmp_errors_in,
    /// ICMP errors received that belong to nothing.
    icmp_errors_unmatched,
    /// Destinations whose path is smaller than the link, and not remembered for others because
    /// there were enough.
    paths_refused,
    /// TCP segments received.
    segments_in,
    /// TCP segments (or segmentation units) sent.
    segments_out,
    /// TCP segments that turned round inside the shard.
    segments_local,
    /// TCP segments with a malformed header.
    tcp_malformed,
    /// TCP segments with a wrong checksum.
    tcp_checksum,
    /// TCP segments for no connection and no listener.
    tcp_no_socket,
    /// Resets sent for segments that belong to no connection.
    resets_out,
    /// Resets not sent because of the rate limit.
    resets_limited,
    /// Datagrams received by sockets.
    udp_in,
    /// Datagrams sent.
    udp_out,
    /// Datagrams that a program gave to send and that could not be.
    udp_refused,
    /// Datagrams that turned round inside the shard.
    udp_local,
    /// Datagrams between sockets of two shards dropped because too many were waiting.
    udp_crossing_full,
    /// Datagrams with lengths that make no sense.
    udp_malformed,
    /// Datagrams with a wrong checksum, or over IPv6 without one.
    udp_checksum,
    /// Datagrams for no socket.
    udp_no_port,
    /// Datagrams dropped because their socket's receive buffer was full.
    udp_receive_full,
    /// Answers dropped because too many were waiting.
    replies_dropped,
    /// SYNs dropped because the listener's queue of established connections was full.
    listen_overflows,
    /// Final ACKs of a handshake ignored because the listener's queue was full.
    accept_queue_full,
    /// Half-open connections that were given up: no answer to the SYN-ACK.
    half_open_expired,
    /// SYNs answered with a cookie because listeners of one program had their share of half-open
    /// connections.
    half_open_limited,
    /// SYNs answered with a cookie.
    cookies_sent,
    /// Connections that a cookie established.
    cookies_accepted,
    /// ACKs whose cookie was wrong.
    cookies_refused,
    /// Connections accepted with payload on their SYN, before the handshake was complete (TCP Fast
    /// Open).
    fast_opens,
    /// SYNs whose cookie for that was wrong.
    fast_opens_refused,
    /// SYNs with payload that took the slow way because there were enough that had not completed
    /// their handshake.
    fast_opens_limited,
    /// Cookies given to others.
    fast_open_cookies_out,
    /// SYNs sent with payload and not answered.
    fast_opens_lost,
    /// Cookies of others that were not remembered because there were enough.
    fast_open_cookies_refused,
    /// Connections that began here.
    active_opens,
    /// Connections that were accepted.
    passive_opens,
    /// Connections that failed before they were established.
    failed_opens,
    /// Connections reset by the peer.
    resets_in,
    /// Connections that timed out.
    timed_out,
    /// Connections reset because data was unread or arrived after close.
    aborted_on_close,
    /// Connections reset because there were too many orphans.
    orphans_refused,
    /// Connections that no program holds, reset because what they still had to send was wanted for
    /// others.
    orphans_starved,
    /// Connections that went through TIME-WAIT.
    time_waits,
    /// Connections in TIME-WAIT whose place a new one took that began here.
    time_wait_reused,
    /// Connections for which there was no room in TIME-WAIT.
    time_wait_overflow,
    /// Sockets refused because of the limit.
    sockets_refused,
    /// Connects refused because no port was free.
    ports_exhausted,
    /// Sockets not bound because their program had its share of the ports that are chosen for
    /// programs.
    ports_limited,
    /// Segments whose payload was not stored for want of memory.
    receive_memory_exhausted,
    /// Segments out of order that were not stored: they would have taken too much memory for what
    /// they bring, or memory was short.
    out_of_order_refused,
    /// Bytes of memory given back to the machine when nobody had wanted them for a while.
    memory_given_back,
    /// Connections whose bytes out of order were dropped because memory was short.
    out_of_order_pruned,
    /// Writes cut short for want of memory.
    send_memory_exhausted,
}
