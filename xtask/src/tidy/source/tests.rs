use super::*;

/// Messages about one file.
fn said(path: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    check(
        &File {
            path: path.into(),
            text: text.into(),
        },
        &mut problems,
    );
    problems.iter().map(ToString::to_string).collect()
}

#[test]
fn a_file_of_800_lines_passes_and_one_more_does_not() {
    assert_eq!(
        said("crates/cli/src/main.rs", &"\n".repeat(800)),
        Vec::<String>::new()
    );
    assert_eq!(said("crates/cli/src/main.rs", &"\n".repeat(801)).len(), 1);
    assert_eq!(said("Cargo.lock", &"\n".repeat(801)), Vec::<String>::new());
}

#[test]
fn unfinished_work_is_named_with_its_line() {
    for word in [
        concat!("// FIX", "ME"),
        concat!("to", "do!()"),
        concat!("db", "g!(x)"),
        concat!("#[ign", "ore = \"slow\"]"),
    ] {
        let said = said(
            "crates/cli/src/main.rs",
            &format!("fn main() {{}}\n{word}\n"),
        );
        assert_eq!(said.len(), 1, "{word}");
        assert!(
            said[0].starts_with("crates/cli/src/main.rs:2: "),
            "{said:?}"
        );
    }
}

#[test]
fn a_mark_inside_a_longer_word_is_no_mark() {
    assert_eq!(
        said(
            "crates/cli/src/main.rs",
            concat!("let name = \"/tmp/XX", "XXXX\";\n")
        ),
        Vec::<String>::new()
    );
}

#[test]
fn sans_io_crates_forbid_unsafe_in_so_many_words() {
    assert_eq!(said("crates/tcp/src/lib.rs", "//! TCP.\n").len(), 1);
    assert_eq!(
        said(
            "crates/tcp/src/lib.rs",
            "//! TCP.\n#![forbid(unsafe_code)]\n"
        ),
        Vec::<String>::new()
    );
    assert_eq!(
        said("crates/port/src/lib.rs", "//! Ports.\n"),
        Vec::<String>::new()
    );
}

#[test]
fn unsafe_stands_only_where_it_is_argued() {
    let text = "let x = unsafe { f() };\n";
    assert_eq!(said("crates/cli/src/main.rs", text).len(), 1);
    assert_eq!(
        said("crates/context/src/ring.rs", text),
        Vec::<String>::new()
    );
    assert_eq!(
        said(
            "crates/cli/src/main.rs",
            "// unsafe is elsewhere\nlet x = \"unsafe\"; #![forbid(unsafe_code)]\n"
        ),
        Vec::<String>::new()
    );
}

#[test]
fn sans_io_code_reads_no_clock() {
    assert_eq!(
        said(
            "crates/shard/src/arp.rs",
            "let now = std::time::Instant::now();\n"
        )
        .len(),
        2
    );
    assert_eq!(
        said(
            "crates/shard/src/arp.rs",
            "let now = Instant::from_micros(1);\n"
        ),
        Vec::<String>::new()
    );
    assert_eq!(
        said(
            "crates/engine/src/clock.rs",
            "let now = std::time::Instant::now();\n"
        ),
        Vec::<String>::new()
    );
}

#[test]
fn code_is_what_is_left_without_comments_and_strings() {
    assert_eq!(code_of(r#"let a = "x \" // y"; b // c"#), "let a = ; b ");
    assert_eq!(code_of("match c { '\"' => 1 } // d"), "match c {  => 1 } ");
    assert_eq!(code_of("/// unsafe"), "");
}

#[test]
fn words_have_edges() {
    assert!(has_word("an unsafe block", "unsafe"));
    assert!(!has_word("forbid(unsafe_code)", "unsafe"));
    assert!(has_word("x.Instant::now()", "Instant::now"));
}
