//! Waiting for sockets: epoll, poll and select, and sleeping in calls that block.

pub mod bits;
pub mod epoll;
pub mod epoll_sets;
pub mod interest_list;
pub mod nested_epoll;
pub mod poll;
pub mod poll_mask;
pub mod poller;
pub mod ready_list;
pub mod select;
pub mod sleep;
