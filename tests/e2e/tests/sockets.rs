//! The statements of `tests/programs/sockets`, each on the kernel and on millrace, with one shard,
//! with two, and with two and an I/O thread: with both ends on the stack under test (`--loopback`),
//! and with the kernel at the other end of the link, where the near end accepts or connects.

use std::path::Path;

use millrace_e2e::world::checkout;
use millrace_e2e::{
    Link, PEER, Result, SUBJECT, Stack, World, command, compile, ensure, scenario, seconds,
};

/// Runs a statement in each of its settings.
fn check(world: &World, statement: &str) -> Result<()> {
    let program = compile::program("sockets")?;
    let (subject, peer) = (SUBJECT.to_string(), PEER.to_string());
    let loopback: [&[&str]; 2] = [&[], &["-c"]];
    let linked: [&[&str]; 2] = [
        &["-a", &subject, "-p", &peer],
        &["-c", "-a", &subject, "-p", &peer],
    ];
    let on_loopback = |words: &[&str]| match world.stack {
        Stack::Kernel => command(words),
        Stack::Millrace => {
            let shards = world.shards.to_string();
            let run = ["run", "--loopback", "--shards", &shards, "--"];
            world.millrace(&[&run, words].concat())
        }
    };
    let on_link = |words: &[&str]| match world.stack {
        // The kernel talks to itself over loopback, whatever the addresses.
        Stack::Kernel => command(words),
        Stack::Millrace => world.on_subject(words),
    };
    world.subject_namespace().set("core.somaxconn", "1000")?;
    // The kernel at the far end says of every datagram that nobody wants it.
    world.subject_namespace().set("ipv4.icmp_ratelimit", "0")?;
    if world.stack == Stack::Kernel {
        world
            .subject_namespace()
            .ip(&format!("addr add {PEER}/32 dev lo"))?;
    }
    // What turns round in a shard does not meet an I/O thread.
    let loopback = if world.io_threads == 0 {
        &loopback[..]
    } else {
        &[]
    };
    for arguments in loopback {
        let words = [&[&program[..]], *arguments, &[statement]].concat();
        world
            .start_on_subject(on_loopback(&words))?
            .wait(seconds(45))?
            .success()?;
    }
    for arguments in linked {
        let words = [&[&program[..]], arguments, &[statement]].concat();
        world
            .start_on_subject(on_link(&words))?
            .wait(seconds(45))?
            .success()?;
    }
    Ok(())
}

/// A handful, where two of three shards own queues and the third has an I/O thread.
#[test]
fn statements_hold_on_shards_of_both_kinds() {
    scenario::run_mixed(Link::Tap, 3, |world| {
        for statement in [
            "a_bound_client_keeps_its_port",
            "a_reset_ends_blocked_calls",
            "bind_gives_and_refuses_addresses",
            "closing_a_listener_resets_its_queue",
            "connect_is_refused",
            "connect_without_blocking",
        ] {
            ensure!(STATEMENTS.contains(&statement));
            check(world, statement)?;
        }
        Ok(())
    });
}

/// Makes a module with a test for each stack of each statement.
macro_rules! statements {
    ($($name:ident)*) => {
        const STATEMENTS: &[&str] = &[$(stringify!($name)),*];
        $(mod $name {
            use super::*;

            #[test]
            fn kernel() {
                scenario::run(Stack::Kernel, |world| check(world, stringify!($name)));
            }
            #[test]
            fn millrace() {
                scenario::run(Stack::Millrace, |world| check(world, stringify!($name)));
            }
            #[test]
            fn millrace_with_two_shards() {
                scenario::run_on_shards(2, |world| check(world, stringify!($name)));
            }
            #[test]
            fn millrace_with_a_pipeline() {
                scenario::run_on_pipeline(Link::Tap, 1, 2, |world| check(world, stringify!($name)));
            }
        })*
    };
}

statements! {
    a_bind_may_leave_the_port_to_connect
    a_bound_client_keeps_its_port
    a_close_by_syscall_is_seen
    a_closed_descriptor_leaves_its_sets
    a_cork_holds_back_and_lets_go
    a_listener_may_listen_anew
    a_low_water_mark_holds_events_back
    a_low_water_mark_may_be_high
    a_pacing_rate_bounds_a_stream
    a_reset_ends_blocked_calls
    a_socket_looks_like_one
    an_unconnected_socket_moves_nothing
    bind_gives_and_refuses_addresses
    buffer_sizes_hold
    closing_a_listener_resets_its_queue
    closing_unread_data_resets
    congestion_control_has_a_name
    connect_is_refused
    connect_without_blocking
    datagrams_may_be_bound_to_a_device
    defer_accept_gives_up_waiting
    defer_accept_waits_for_data
    descriptors_pass_over_unix_sockets_or_are_refused
    descriptors_take_the_lowest_number
    dup2_closes_what_it_replaces
    duplicates_are_one_socket
    e1_level_reports_until_read
    e1_level_reports_writable_until_full
    e2_no_event_is_ahead_of_its_data
    e2_no_listener_event_is_ahead_of_its_connection
    e3_edge_reports_on_add_if_ready
    e3_edge_reports_once_per_arrival
    e3_edge_reports_writable_after_full
    e4_add_races_with_arrival
    e4_add_wakes_a_sleeping_wait
    e4_modify_races_with_arrival
    e4_modify_wakes_a_sleeping_wait
    e4_one_shot_reports_once_until_armed_again
    e5_a_set_inside_poll_and_select_fires
    e5_nested_sets_fire
    e6_a_kernel_descriptor_wakes_a_sleeping_wait
    e6_a_mask_holds_while_waiting_and_no_longer
    e6_a_signal_interrupts_every_wait
    e6_one_set_holds_descriptors_of_all_kinds
    e8_timeouts_are_kept
    end_of_stream_and_reset_are_events
    epoll_ctl_refuses_what_it_should
    exclusive_wakes_one_and_loses_none
    exclusive_wakes_one_that_wants_it
    fast_open_accepts_with_the_syn
    fast_open_connects_with_the_first_write
    fast_open_keys_may_change
    fast_open_sends_and_connects_in_one_call
    fcntl_flags_hold
    flags_peek_dontwait_waitall_trunc
    half_closed_streams_flow_on
    i1_bad_arguments_are_refused
    i1_nothing_to_move_moves_nothing
    i2_close_does_not_end_a_blocked_read
    i2_shutdown_wakes_blocked_calls
    i6_no_descriptor_left_keeps_the_queue
    i7_restarting_signals_do_not
    i7_signals_interrupt_blocked_calls
    ioctls_tell_what_waits
    linger2_bounds_the_wait_for_the_peer
    listen_without_bind_takes_a_port
    many_connections_in_a_row
    many_ready_all_get_their_turn
    many_threads_wait_in_one_set
    names_of_both_ends
    nothing_urgent_and_no_errors_wait
    o1_options_are_implemented_or_refused
    o1_unknown_options_are_refused
    o2_datagram_spellings_work_on_streams
    o2_fortified_names_work
    o2_messages_move_bytes
    o2_ranges_are_closed
    o2_sendfile_sends_files
    o2_sendfile_stops_when_full
    o2_vectors_move_bytes
    o2_waits_by_number_work
    o3_linger_waits_until_all_has_arrived
    o3_linger_zero_resets
    o4_a_backlog_holds_one_more
    o4_a_backlog_is_bounded_by_the_system
    o4_a_backlog_queues_connections
    options_pass_from_listener_to_connection
    p1_accept_read_and_close_in_three_threads
    p1_many_threads_accept_from_one_listener
    p1_many_threads_each_with_its_own
    p1_one_thread_reads_while_another_writes
    p1_threads_listen_in_a_group
    p5_a_child_keeps_what_its_parent_closes
    p5_a_child_that_is_killed_takes_nothing_along
    p5_a_grandchild_serves_on
    p5_children_accept_from_one_listener
    p5_children_do_anything_while_threads_do
    p5_children_wait_in_their_own_sets
    p5_close_on_exec_is_honoured
    p5_exec_inherits_listeners
    p5_exec_inherits_sockets
    p5_fork_shares_sockets
    p5_spawned_programs_inherit_sockets
    p5_standard_streams_can_be_sockets
    p6_a_malloc_hook_uses_a_socket_amid_calls
    p6_a_signal_handler_uses_a_socket_amid_calls
    p6_signal_handlers_do_anything_in_the_middle_of_calls
    p6_threads_do_anything_to_each_others_descriptors
    poll_tells_of_bad_and_absent_descriptors
    quick_ack_is_a_push
    receive_and_send_timeouts_end_calls
    reuseaddr_serves_a_restart
    reuseport_lets_two_listen
    select_reports_each_direction
    shutdown_in_each_order
    sigpipe_is_sent_unless_told_not_to
    streams_may_be_bound_to_a_device
    streams_of_the_c_library_work
    t3_request_and_response_wait_for_nobody
    t4_a_full_buffer_loses_nothing
    t4_a_stopped_reader_resumes
    t4_large_blocking_writes
    t4_large_writes_without_blocking
    t4_small_reads
    t4_small_writes
    tcp_info_tells_the_state
    the_end_is_told_even_after_a_reset
    the_path_has_an_mtu
    u1_a_datagram_can_be_looked_at
    u1_a_datagram_is_cut_to_the_buffer
    u1_datagrams_keep_their_bounds
    u1_datagrams_longer_than_a_packet_arrive_whole
    u1_vectors_and_plain_calls_move_datagrams
    u2_a_connected_socket_hears_its_peer_alone
    u2_a_first_send_takes_a_port
    u2_a_reuseport_group_shares_senders
    u2_connect_names_and_unnames
    u2_datagrams_tell_their_sender
    u2_ports_are_taken_and_shared
    u2_the_closest_match_hears
    u3_a_closed_port_refuses
    u3_calls_of_streams_are_refused
    u3_nobody_there_is_an_error_of_the_connected
    u3_shutdown_ends_a_direction
    u3_shutdown_wakes_a_sleeping_receive
    u4_events_of_datagrams
    u4_waits_and_timeouts
    u5_a_full_buffer_keeps_the_old
    u5_many_datagrams_flow
    u5_many_messages_in_one_call
    u6_a_child_shares_a_datagram_socket
    u6_a_reuseport_group_of_threads_loses_nothing
    u6_clients_in_threads_speak_with_a_server_of_their_host
    u6_the_kernels_own_addresses_are_served
    u6_threads_send_each_datagram_once
    u6_threads_take_each_datagram_once
    u7_a_wildcard_socket_learns_its_address
    u7_broadcast_needs_leave
    u7_errors_wait_in_their_queue
    u7_options_of_datagrams_hold
    u7_path_mtu_discovery_is_a_choice
    u7_time_to_live_and_class_ride_along
    u8_groups_are_joined_by_device
    u8_groups_reach_over_the_link
    u8_many_datagrams_may_be_received_as_one
    u8_members_of_a_group_all_hear
    u8_one_send_makes_many_datagrams
    u8_pieces_are_corked_into_one
    u9_a_v6_socket_hears_v4_as_mapped
    u9_v6_datagrams_flow
    urgent_byte_alone_is_nothing_to_read
    urgent_byte_comes_apart
    urgent_byte_in_line
    urgent_byte_is_the_last_of_a_send
    urgent_byte_that_is_read_past_is_lost
    urgent_byte_wakes_a_sleeping_select
    v6_connects_to_mapped_addresses
    v6_listener_takes_v4_as_mapped
    v6_only_leaves_v4_to_others
    v6_options_hold
    v6_streams_flow_and_have_names
    v6_unconnected_sockets_show_nowhere
    waitall_waits_over_many_arrivals
    what_was_not_sent_yet_bounds_writing
    writing_to_who_has_gone_fails
}

#[test]
fn every_statement_is_a_test() -> Result<()> {
    let program = compile::program("sockets")?;
    let listed = std::process::Command::new(Path::new(&program))
        .arg("--list")
        .current_dir(checkout())
        .output()?;
    let listed = String::from_utf8(listed.stdout)?;
    let listed: Vec<&str> = listed.lines().collect();
    ensure!(
        listed == STATEMENTS,
        "`sockets --list` and this file differ:\n{listed:?}\n{STATEMENTS:?}"
    );
    Ok(())
}
