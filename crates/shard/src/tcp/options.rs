//! Options of sockets for streams.

use millrace_sockopt::Opt;
use millrace_tcp::Instant;

use crate::base::Base;
use crate::error::Error;
use crate::memory::Memory;
use crate::socket::Kind;
use crate::socket::marks::Marks;
use crate::tcp::segment::IpFields;
use crate::tcp::state::Tcp;

impl Tcp {
    /// Sets an option, whose value is in range, of the socket at `index` for streams.
    pub(crate) fn set_stream_option<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        index: u32,
        option: Opt,
        now: Instant,
    ) -> Result<(), Error> {
        let buffers = base.env.config.buffers;
        let socket = base.sockets.get_mut(index).ok_or(Error::NoSocket)?;
        if let Opt::FastOpenKeys(keys) = option {
            if let Some(listener) = socket.listener_mut() {
                listener.fast_open_keys = Some(Box::new(keys));
            }
            return Ok(());
        }
        let before = socket.options.clone();
        let is_bound = socket.marks.contains(Marks::BOUND) || socket.stream().is_some();
        if matches!(option, Opt::V6Only(_)) && is_bound {
            return Err(Error::Invalid);
        }
        let mut options = **before;
        options.take_over(option, buffers.send_max, buffers.receive_max)?;
        let options = base.sharing.share(&options);
        socket.options = options.clone();
        let (owner_reuse, bound) = (before.reuse, socket.marks.contains(Marks::BOUND));
        socket
            .marks
            .set(Marks::NOTSENT_LOW, options.notsent_low != 0);
        let port = match &mut socket.kind {
            Kind::Bound { local } => local.port(),
            Kind::Datagram(_) => return Err(Error::NotSupported),
            Kind::Listener(listener) => listener.local.port(),
            Kind::Stream(stream) => {
                let limit = match options.receive_buffer {
                    Some(set) if options.receive_buffer != before.receive_buffer => set.get(),
                    Some(_) => stream.receive_limit,
                    None => stream.receive_limit.max(options.receive_low * 2),
                };
                if limit != stream.receive_limit {
                    stream.receive_limit = limit;
                    stream.connection.set_receive_limit(limit);
                }
                if let Some(limit) = options.send_buffer {
                    stream.send_limit = limit.get();
                }
                stream.fields = IpFields::new(
                    &stream.endpoints.tuple(),
                    &options,
                    stream.fields.flow_label(),
                );
                if options.tcp != before.tcp {
                    stream
                        .connection
                        .configure(&base.env.config.tcp, &options.settings, now);
                }
                if let Opt::QuickAck(on) = option {
                    stream.connection.set_quick_ack(on);
                }
                if options.reuse.address != owner_reuse.address
                    && !socket.marks.contains(Marks::DEAD)
                {
                    let local = stream.endpoints.tuple().local();
                    self.ports.remove_connection(local, owner_reuse.address);
                    self.ports.add_connection(local, options.reuse.address);
                }
                stream.endpoints.tuple().ports().0
            }
        };
        if bound && let Some(registered) = self.ports.bound_mut(port, index) {
            registered.reuse = options.reuse;
        }
        self.apply_state_change(base, index);
        Ok(())
    }
}
