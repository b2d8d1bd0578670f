//! The library's reference: every public item shows how it is used.

use crate::checkout::{File, Problem};

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

/// Every public item of the library has an example in its own documentation; what is shown under
/// another name, where it is named.
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

/// What the library shows of a crate below, with its own documentation: the lines of that, the
/// crate, the modules that it is in, and its name there.
struct Shown<'a> {
    documentation: Vec<&'a str>,
    source: String,
    modules: Vec<&'a str>,
    name: &'a str,
}

/// So do the methods of what the library shows of the crates below, where they are defined. Those
/// of a trait are for others to write or to call: the example of the trait has all of them.
pub fn check_below(files: &[File], problems: &mut Vec<Problem>) {
    for file in files.iter().filter(|file| file.path.starts_with(LIBRARY)) {
        for shown in shown_by(&file.text) {
            let is_its = |file: &&File| {
                let parts: Vec<&str> = file.path.split(['/', '.']).collect();
                let within = |module| parts.contains(module);
                file.path.starts_with(&shown.source) && shown.modules.iter().all(within)
            };
            for file in files.iter().filter(is_its) {
                check_methods(file, &shown, problems);
            }
        }
    }
}

/// All that a file of the library shows of other crates.
fn shown_by(text: &str) -> Vec<Shown<'_>> {
    let mut all = Vec::new();
    let mut documentation = Vec::new();
    for line in text.lines() {
        if let Some(text) = line.strip_prefix("///") {
            documentation.push(text);
        } else if !line.starts_with("#[") {
            let documentation = std::mem::take(&mut documentation);
            if let Some(path) = line.strip_prefix("pub use millrace_") {
                let path = path.trim_end_matches(';').split(" as ").next();
                let mut parts = path.unwrap_or_default().split("::");
                let source = format!("crates/{}/src/", parts.next().unwrap_or_default());
                let mut modules: Vec<&str> = parts.collect();
                all.extend(modules.pop().map(|name| Shown {
                    documentation,
                    source,
                    modules,
                    name,
                }));
            }
        }
    }
    all
}

/// The methods of a type or trait, as far as they are in this file.
fn check_methods(file: &File, of: &Shown<'_>, problems: &mut Vec<Problem>) {
    // Where the block that is read ends, and whether it is a trait's.
    let mut block: Option<(String, bool)> = None;
    let mut shown = false;
    for (index, line) in file.text.lines().enumerate() {
        let text = line.trim_start();
        let indentation = &line[..line.len() - text.len()];
        let Some((end, is_trait)) = &block else {
            let is_trait = text.starts_with("pub trait ");
            if begins(text) == Some(of.name) {
                block = Some((format!("{indentation}}}"), is_trait));
                shown = false;
            }
            continue;
        };
        if line == end {
            block = None;
        } else if let Some(text) = text.strip_prefix("///") {
            shown |= text.trim_start().starts_with("```");
        } else if !text.starts_with("#[") {
            // What is deeper is in a body.
            let is_method = indentation.len() == end.len() + 3;
            let name = match is_trait {
                true => text
                    .strip_prefix("fn ")
                    .and_then(|rest| rest.split(['(', '<']).next()),
                false => item(text),
            };
            if let Some(name) = name.filter(|_| is_method) {
                let call = format!("{name}(");
                let in_trait = || of.documentation.iter().any(|line| line.contains(&call));
                if !(if *is_trait { in_trait() } else { shown }) {
                    let message =
                        format!("`{}::{name}` has no example: show how it is used", of.name);
                    problems.push(Problem::at(&file.path, index + 1, message));
                }
            }
            shown = false;
        }
    }
}

/// The type whose methods, or the trait whose functions, begin after this line.
fn begins(line: &str) -> Option<&str> {
    if !line.ends_with('{') || line.contains(" for ") {
        return None;
    }
    let name = match line.strip_prefix("pub trait ") {
        Some(rest) => rest,
        None => match line.strip_prefix("impl")?.strip_prefix('<') {
            Some(generic) => generic.split_once("> ")?.1,
            None => line.strip_prefix("impl ")?,
        },
    };
    name.split(|c: char| !c.is_alphanumeric() && c != '_')
        .next()
}

/// The name of the public item that begins on this line. Modules are shown by what is in them, and
/// items of this crate where they are.
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

    /// What is said of a file of a crate below, of which the library shows this.
    fn count_below(shown: &str, path: &str, text: &str) -> usize {
        let file = |path: &str, text: &str| File {
            path: path.into(),
            text: text.into(),
        };
        let files = [file("crates/millrace/src/a.rs", shown), file(path, text)];
        let mut problems = Vec::new();
        check_below(&files, &mut problems);
        problems.len()
    }

    #[test]
    fn methods_of_what_is_shown_need_an_example() {
        let shown = "#[doc(inline)]\npub use millrace_tcp::time::Span as TimeSpan;\n";
        let docs = SHOWN
            .lines()
            .map(|line| format!("    {line}\n"))
            .collect::<String>();
        for (block, text, problems) in [
            ("impl Span {", "    pub fn wait() {}\n", 1),
            ("impl<'a> Span<'a> {", "    pub const NONE: u8 = 1;\n", 1),
            (
                "impl Span {",
                "    fn wait() {}\n    pub(crate) fn other() {}\n",
                0,
            ),
            ("impl Span {", &format!("{docs}    pub fn wait() {{}}\n"), 0),
            (
                "impl Span {",
                &format!("{docs}    pub fn wait() {{}}\n\n    /// No.\n    pub fn no() {{}}\n"),
                1,
            ),
            ("impl Wait for Span {", "    pub fn wait() {}\n", 0),
            ("impl Other {", "    pub fn wait() {}\n", 0),
        ] {
            let text = format!("{block}\n{text}}}\n");
            assert_eq!(
                count_below(shown, "crates/tcp/src/time.rs", &text),
                problems,
                "{text}"
            );
            for elsewhere in ["crates/wire/src/time.rs", "crates/tcp/src/b.rs"] {
                assert_eq!(count_below(shown, elsewhere, &text), 0, "{elsewhere}");
            }
        }
    }

    #[test]
    fn functions_of_a_trait_are_in_its_example() {
        let text = "pub trait Port {\n    /// Waits.\n    fn wait(&self);\n\n    fn go(&self) -> bool {\n        true\n    }\n}\n";
        for (call, problems) in [
            ("", 2),
            ("/// port.wait();\n", 1),
            ("/// port.wait();\n/// port.go();\n", 0),
        ] {
            let shown =
                format!("/// A port.\n{call}#[doc(inline)]\npub use millrace_port::Port;\n");
            assert_eq!(
                count_below(&shown, "crates/port/src/lib.rs", text),
                problems,
                "{call}"
            );
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
