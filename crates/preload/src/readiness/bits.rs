//! The bits of epoll and poll, which are the same numbers.

/// EPOLLIN and EPOLLRDNORM.
pub const IN: u32 = 0x001 | 0x040;
/// EPOLLPRI.
pub const PRI: u32 = 0x002;
/// EPOLLOUT and EPOLLWRNORM.
pub const OUT: u32 = 0x004 | 0x100;
/// EPOLLERR.
pub const ERR: u32 = 0x008;
/// EPOLLHUP.
pub const HUP: u32 = 0x010;
/// POLLNVAL.
pub const NVAL: u32 = 0x020;
/// EPOLLRDHUP.
pub const RDHUP: u32 = 0x2000;
/// EPOLLEXCLUSIVE.
pub const EXCLUSIVE: u32 = 1 << 28;
/// EPOLLONESHOT.
pub const ONESHOT: u32 = 1 << 30;
/// EPOLLET.
pub const EDGE: u32 = 1 << 31;
/// Reported even if the program does not ask for it.
pub const ALWAYS: u32 = ERR | HUP;
