//! The counters of a worker.

/// The counters of a worker; its shard has others.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct WorkerCounters {
    /// Frames received.
    pub frames_in: u64,
    /// Received segments that were joined with others.
    pub segments_joined: u64,
    /// Units that those segments were joined into.
    pub units_joined: u64,
    /// Frames sent.
    pub frames_out: u64,
    /// Frames that were dropped, since they came from another virtual LAN or from none.
    pub frames_foreign: u64,
    /// Frames that came faster than they were received, where the link tells.
    pub frames_dropped: u64,
    /// Frames for which the device had no room. They are sent later if they can wait.
    pub send_refused: u64,
    /// Frames that the device took and dropped, where the link tells.
    pub send_dropped: u64,
    /// Reads and writes that failed at the device.
    pub port_errors: u64,
    /// Links that were lost with their device.
    pub links_lost: u64,
    /// Requests of programs served.
    pub submissions: u64,
    /// Rounds run.
    pub rounds: u64,
    /// Times that the thread slept.
    pub sleeps: u64,
    /// Doorbells rung and futexes woken for programs.
    pub wakeups: u64,
    /// Hints given to pollers.
    pub hints: u64,
    /// Requests that made no sense. Their process was cut off.
    pub nonsense: u64,
    /// Connections for which a program had no slot.
    pub slots_exhausted: u64,
    /// Sockets that were refused, since the program had as many as it may have.
    pub sockets_refused: u64,
    /// Sends of more than the slot allowed.
    pub overruns: u64,
    /// Times that the send limits of a program's sockets changed, because it came to hold much send
    /// memory or held it no more.
    pub send_memory_pressure: u64,
    /// Frames handed to other shards.
    pub handed: u64,
    /// Frames dropped because another shard did not keep up.
    pub handed_dropped: u64,
    /// Requests passed on to the shard that a socket has moved to.
    pub misrouted: u64,
    /// Sockets that moved from one program's memory to another's.
    pub transfers: u64,
    /// Sockets that were lost on that way, since the other program had no memory for them.
    pub transfers_failed: u64,
}
