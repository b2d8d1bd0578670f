//! The library's reference: every public item shows how it is used.

use super::{File, Problem};

/// The crate whose reference it is.
const LIBRARY: &str = "crates/millrace/src/";

/// Where its programs are, and how long one may be that is to be read in one go.
const PROGRAMS: [&str; 2] = ["crates/millrace/examples/", "crates/capi/examples/"];
const LINES_MAX: usize = 199;

/// An example is short.
pub fn check_program(file: &File, problems: &mut Vec<Problem>) {
    let lines = file.text.lines().count();
    if lines > LINES_MAX && PROGRAMS.iter().any(|place| file.path.starts_with(place)) {
        let message = format!("{lines} lines; an example has {LINES_MAX} at most");
        problems.push(Problem::whole(&file.path, message));
    }
}

/// Every public item of the library has an example in its own documentation; what is shown under another name, where it is named.
pub fn check(file: &File, problems: &mut Vec<Problem>) {
    if !file.path.starts_with(LIBRARY) || !file.path.ends_with(".rs") {
        return;
    }
    let mut shown = false;
    for (index, line) in file.text.lines().enumerate() {
        let line = line.trim_start();
        if let Some(text) = line.strip_prefix("///") {
            shown |= text.trim_start().starts_with("```");
            continue;
        }
        if line.starts_with("#[") {
            continue;
        }
        if let Some(name) = item(line)
            && !shown
        {
            problems.push(Problem::at(
                &file.path,
                index + 1,
                format!("`{name}` has no example: show how it is used"),
            ));
        }
        shown = false;
    }
}

/// The name of the public item that begins on this line. Modules are shown by what is in them, and items of this crate where they are.
fn item(line: &str) -> Option<&str> {
    let mut words = line.strip_prefix("pub ")?;
    for before in ["const ", "async "] {
        if let Some(rest) = words.strip_prefix(before)
            && rest.starts_with("fn ") | rest.starts_with("async ")
        {
            words = rest;
        }
    }
    let (kind, rest) = words.split_once(' ')?;
    match kind {
        "use" => rest
            .starts_with("millrace_")
            .then(|| rest.trim_end_matches(';')),
        "fn" | "struct" | "enum" | "union" | "trait" | "type" | "const" | "static" => rest
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .next(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        let file = File {
            path: path.into(),
            text: text.into(),
        };
        let mut problems = Vec::new();
        check(&file, &mut problems);
        problems.len()
    }

    const SHOWN: &str = "/// Waits.\n///\n/// ```\n/// wait();\n/// ```\n#[must_use]\n";

    #[test]
    fn items_with_an_example_pass() {
        for item in [
            "pub fn wait() {}",
            "    pub async fn wait() {}",
            "pub use millrace_tcp::State;",
            "pub const WAIT: u8 = 1;",
        ] {
            assert_eq!(
                count("crates/millrace/src/a.rs", &format!("{SHOWN}{item}\n")),
                0,
                "{item}"
            );
        }
    }

    #[test]
    fn items_without_one_are_found() {
        for item in [
            "pub fn wait() {}",
            "    pub const fn wait() {}",
            "pub struct Wait {",
            "pub use millrace_tcp::State;",
            "pub const WAIT: u8 = 1;",
        ] {
            // The example of the item before is not this one's.
            let text = format!("{SHOWN}pub fn other() {{}}\n/// Waits.\n{item}\n");
            assert_eq!(count("crates/millrace/src/a.rs", &text), 1, "{item}");
        }
    }

    #[test]
    fn a_long_example_is_found() {
        let count = |lines: usize| {
            let file = File {
                path: "crates/capi/examples/a.c".into(),
                text: "\n".repeat(lines),
            };
            let mut problems = Vec::new();
            check_program(&file, &mut problems);
            problems.len()
        };
        assert_eq!((count(LINES_MAX), count(LINES_MAX + 1)), (0, 1));
    }

    #[test]
    fn others_need_none() {
        for item in [
            "pub(crate) fn wait() {}",
            "pub mod wait;",
            "pub use stream::TcpStream;",
            "    pub len: usize,",
            "fn wait() {}",
        ] {
            assert_eq!(
                count("crates/millrace/src/a.rs", &format!("{item}\n")),
                0,
                "{item}"
            );
        }
        assert_eq!(count("crates/tcp/src/a.rs", "pub fn wait() {}\n"), 0);
    }
}
