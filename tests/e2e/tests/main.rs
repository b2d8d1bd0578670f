//! Every end-to-end test, in one program: one to link, and its tests run side by side. A file is a
//! module here; its name is the first part of the names of its tests.

mod across;
mod bound;
mod busy_poll;
mod bypass;
mod clients;
mod configuration;
mod connections;
mod devices;
mod examples;
mod fabric;
mod followed;
mod input;
mod interleavings;
mod iperf;
mod ipv6;
mod iscsi;
mod life;
mod links;
mod load;
mod moving;
mod mtcp;
mod names;
mod nginx;
mod nic;
mod options;
mod others;
mod pools;
mod processes;
mod python;
mod redis;
mod relay;
mod rights;
mod roles;
mod servers;
mod shared;
mod sockets;
mod strangers;
mod tenants;
mod threads;
mod tools;
mod tun_proxy;
mod wire;

/// A file that is no module has tests that nobody runs.
#[test]
fn every_file_is_a_module() {
    let directory = millrace_e2e::world::checkout().join("tests/e2e/tests");
    let listed = std::fs::read_dir(&directory).expect("the tests are here");
    for entry in listed.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(module) = name.strip_suffix(".rs").filter(|name| *name != "main") else {
            continue;
        };
        let line = format!("\nmod {module};\n");
        assert!(
            include_str!("main.rs").contains(&line),
            "{name} is no module of tests/e2e/tests/main.rs: add `mod {module};` there"
        );
    }
}
