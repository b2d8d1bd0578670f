//! What a worker counts.

/// What a worker counts beside its shard.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct WorkerCounters {
    /// Frames received.
    pub frames_in: u64,
    /// Segments among them that were joined with others, and what they became.
    pub segments_joined: u64,
    /// Frames that the stack was given for these.
    pub units_joined: u64,
    /// Frames sent.
    pub frames_out: u64,
    /// Frames received that were of another virtual LAN, or of none, and dropped.
    pub frames_foreign: u64,
    /// Frames that were not received soon enough, where the link tells.
    pub frames_dropped: u64,
    /// Frames that the device had no room for; what can wait is sent later.
    pub send_refused: u64,
    /// Frames that the device took and dropped, where it tells.
    pub send_dropped: u64,
    /// Reads and writes that the device refused.
    pub port_errors: u64,
    /// Links that were lost with their device: what is sent by one goes nowhere.
    pub links_lost: u64,
    /// Submissions served.
    pub submissions: u64,
    /// Rounds run.
    pub rounds: u64,
    /// Times slept.
    pub sleeps: u64,
    /// Doorbells and futexes rung for programs.
    pub wakeups: u64,
    /// Hints given.
    pub hints: u64,
    /// Requests that made no sense: the process was cut off.
    pub nonsense: u64,
    /// Connections that could not be handed to a program, for want of a slot.
    pub slots_exhausted: u64,
    /// Sockets that a program asked for beyond those that it may have.
    pub sockets_refused: u64,
    /// Sends beyond what the socket was allowed.
    pub overruns: u64,
    /// Times that a program came to hold so much send memory that its sockets might queue but little, or that they might again.
    pub send_memory_pressure: u64,
    /// Frames handed to the shard whose they are.
    pub handed: u64,
    /// Frames dropped because that one did not keep up.
    pub handed_dropped: u64,
    /// Submissions handed to the shard whose socket they are about: it had moved there.
    pub misrouted: u64,
    /// Sockets that went from one program's memory to another's.
    pub transfers: u64,
    /// Sockets that were lost in that, since the program that was left with them had no memory for them.
    pub transfers_failed: u64,
}
