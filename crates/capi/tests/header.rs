//! `include/millrace.h` says what the code does.

use std::path::Path;

/// The header as the code has it.
fn generate() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("a configuration");
    let mut builder = cbindgen::Builder::new().with_config(config);
    for part in ["engine", "stack", "socket", "transfer", "epoll"] {
        builder = builder.with_src(root.join(format!("src/boundary/{part}.rs")));
    }
    let mut text = Vec::new();
    builder.generate().expect("good Rust").write(&mut text);
    String::from_utf8(text).expect("text")
}

/// With `MILLRACE_HEADER=write` in the environment it is written anew.
#[test]
fn the_header_is_what_the_code_is() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/millrace.h");
    let generated = generate();
    if std::env::var_os("MILLRACE_HEADER").is_some() {
        std::fs::write(&path, &generated).expect("a header");
    }
    let committed = std::fs::read_to_string(&path).expect("a header");
    assert!(
        committed == generated,
        "include/millrace.h is not what the code says: MILLRACE_HEADER=write cargo test -p millrace-capi --test header"
    );
}

/// Every function that the header names has a symbol version, and nothing else has.
#[test]
fn every_function_has_a_version() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let versions = std::fs::read_to_string(root.join("millrace.map")).expect("versions");
    let named = |text: &str, prefix: &str| -> Vec<String> {
        let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        let mut names: Vec<String> = words
            .filter(|word| word.starts_with(prefix))
            .map(str::to_owned)
            .collect();
        names.sort();
        names.dedup();
        names
    };
    let functions: Vec<String> = generate()
        .lines()
        .filter(|line| !line.starts_with("//"))
        .flat_map(|line| named(line, "mr_"))
        .collect();
    let mut functions: Vec<String> = functions;
    functions.sort();
    functions.dedup();
    assert_eq!(named(&versions, "mr_"), functions);
    let declared: String = ["mtcp_api.h", "mtcp_epoll.h"]
        .map(|name| std::fs::read_to_string(root.join("include").join(name)).expect("a header"))
        .concat();
    let called = declared
        .lines()
        .filter_map(|line| line.split("//").next()?.split_once('('))
        .map(|(before, _)| before.rsplit([' ', '*']).next().unwrap_or(before));
    let mut functions: Vec<String> = called
        .filter(|name| name.starts_with("mtcp_"))
        .map(str::to_owned)
        .collect();
    functions.sort();
    assert_eq!(named(&versions, "mtcp_"), functions);
}
