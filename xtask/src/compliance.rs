//! Which requirement is shown by which test.
//!
//! The lists are `docs/compliance/*.toml`, one for each RFC and one for the hostile inputs. Each
//! entry says what is required, in our own words, and then one of three things: the tests that show
//! it, the place in the code that does it, or an excuse with its reason. This module checks that
//! what they name exists. [`read`] is the form of the lists.

mod read;

use std::collections::HashSet;
use std::fmt::Write as _;

use crate::checkout::{File, Problem, contains_word};

pub use read::{Entry, Level, List};

/// Where the lists are.
pub const LISTS: &str = "docs/compliance/";

/// How an entry stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Tests show it.
    Tested,
    /// The code does it; nothing but reading shows it.
    Coded,
    /// It is not done, or not as required, for a reason.
    Excused,
    /// Nothing is said.
    Uncovered,
}

impl Standing {
    const ALL: [Standing; 4] = [
        Standing::Tested,
        Standing::Coded,
        Standing::Excused,
        Standing::Uncovered,
    ];

    /// How it is printed.
    fn name(self) -> &'static str {
        match self {
            Standing::Tested => "tested",
            Standing::Coded => "in code",
            Standing::Excused => "excused",
            Standing::Uncovered => "uncovered",
        }
    }
}

impl Entry {
    /// How it stands. An excuse goes before the tests that show what is done instead.
    pub fn standing(&self) -> Standing {
        if self.excuse.is_some() {
            Standing::Excused
        } else if !self.tests.is_empty() {
            Standing::Tested
        } else if !self.code.is_empty() {
            Standing::Coded
        } else {
            Standing::Uncovered
        }
    }
}

/// Reads the lists among `files` and checks them: what is named exists, and no MUST is left
/// uncovered without an excuse.
pub fn check(files: &[File], problems: &mut Vec<Problem>) -> Vec<List> {
    let tests = tests_of(files);
    let mut lists = Vec::new();
    for file in files {
        let Some(name) = file
            .path
            .strip_prefix(LISTS)
            .and_then(|name| name.strip_suffix(".toml"))
        else {
            continue;
        };
        match read::read(name, &file.text) {
            Ok(list) => {
                for entry in &list.entries {
                    check_entry(file, &list, entry, &tests, files, problems);
                }
                lists.push(list);
            }
            Err((line, message)) => problems.push(Problem::at(&file.path, line, message)),
        }
    }
    lists
}

fn check_entry(
    file: &File,
    list: &List,
    entry: &Entry,
    tests: &HashSet<&str>,
    files: &[File],
    problems: &mut Vec<Problem>,
) {
    let mut problem = |message: String| {
        problems.push(Problem::at(&file.path, entry.line, message));
    };
    let same_id = |other: &&Entry| {
        other.id.is_some() && other.id == entry.id && other.section == entry.section
    };
    if list.entries.iter().filter(same_id).count() > 1 {
        problem(format!("{} stands twice", entry.name()));
    }
    if entry.standing() == Standing::Uncovered && entry.level == Level::Must {
        problem(format!(
            "{} is neither tested nor done nor excused",
            entry.name()
        ));
    }
    for test in &entry.tests {
        if !tests.contains(test.as_str()) {
            problem(format!("no test has the name {test}"));
        }
    }
    if list.is_named_by_statement() && !entry.tests.is_empty() && !entry.is_named_by_a_test() {
        problem(format!("no test of {} has it in its name", entry.name()));
    }
    for place in &entry.code {
        if !exists(place, files) {
            problem(format!(
                "{place} does not exist: FILE#NAME with a name that stands in the file is wanted"
            ));
        }
    }
}

/// Whether `FILE#NAME` names a word of a file.
fn exists(place: &str, files: &[File]) -> bool {
    place.split_once('#').is_some_and(|(path, name)| {
        files.iter().any(|file| {
            file.path == path
                && file
                    .text
                    .lines()
                    .any(|line| contains_word(line, name, |c| c.is_alphanumeric() || c == '_'))
        })
    })
}

/// Names of all tests below `crates` and `tests`: functions with `#[test]` above them, and what the
/// end-to-end tests' macros make tests of.
fn tests_of(files: &[File]) -> HashSet<&str> {
    let mut tests = HashSet::new();
    for file in files {
        let is_source = file.path.ends_with(".rs")
            && (file.path.starts_with("crates/") || file.path.starts_with("tests/"));
        if !is_source {
            continue;
        }
        let mut is_test = false;
        let mut in_macro = false;
        for line in file.text.lines().map(str::trim) {
            if line == "#[test]" {
                is_test = true;
            } else if is_test && let Some(rest) = line.strip_prefix("fn ") {
                tests.extend(rest.split(['(', '<']).next());
                is_test = false;
            } else if matches!(
                line,
                "statements! {" | "on_both_stacks! {" | "on_millrace! {"
            ) {
                in_macro = true;
            } else if in_macro && line.starts_with('}') {
                in_macro = false;
            } else if in_macro {
                tests.extend(
                    line.split([',', ' '])
                        .map(str::trim)
                        .filter(|word| !word.is_empty()),
                );
            }
        }
    }
    tests
}

/// A table: how many entries of each list and level stand how.
pub fn summary(lists: &[List]) -> String {
    let mut out = String::new();
    let row = |out: &mut String, name: &str, level: &str, counts: [String; 4]| {
        let _ = writeln!(
            out,
            "{name:<10} {level:<7} {:>8} {:>8} {:>8} {:>9}",
            counts[0], counts[1], counts[2], counts[3]
        );
    };
    let heads = Standing::ALL.map(|standing| standing.name().to_string());
    row(&mut out, "", "", heads);
    for list in lists {
        for level in Level::ALL {
            let of_level: Vec<&Entry> = list
                .entries
                .iter()
                .filter(|entry| entry.level == level)
                .collect();
            if of_level.is_empty() {
                continue;
            }
            let counts = Standing::ALL.map(|standing| {
                let count = of_level
                    .iter()
                    .filter(|entry| entry.standing() == standing)
                    .count();
                count.to_string()
            });
            row(&mut out, &list.name, level.name(), counts);
        }
    }
    out
}

/// Every entry of a list, with its excuse.
pub fn details(list: &List) -> String {
    let mut out = format!("{}: {}\n", list.name, list.title);
    for entry in &list.entries {
        let _ = writeln!(
            out,
            "{:<9} {:<6} {} {}",
            entry.standing().name(),
            entry.level.name(),
            entry.name(),
            entry.says
        );
        if let Some(excuse) = &entry.excuse {
            let _ = writeln!(out, "{:17}{excuse}", "");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File {
            path: path.into(),
            text: text.into(),
        }
    }

    /// What is said about a list, with these files beside it.
    fn said(name: &str, list: &str) -> Vec<String> {
        let files = [
            file(
                "crates/tcp/tests/a.rs",
                "#[test]\nfn a1_shown() {}\nfn helper() {}\n\n    #[test]\n    fn inner() {}\n",
            ),
            file("tests/e2e/tests/b.rs", "statements! {\n    listed\n}\n"),
            file("crates/tcp/src/c.rs", "fn place() {}\n"),
            file(&format!("{LISTS}{name}.toml"), list),
        ];
        let mut problems = Vec::new();
        check(&files, &mut problems);
        problems.into_iter().map(|found| found.message).collect()
    }

    fn entry(rest: &str) -> String {
        format!(
            "title = \"T\"\n\n[[requirement]]\nid = \"MUST-1\"\nsection = \"3.1\"\nlevel = \"MUST\"\nsays = \"So.\"\n{rest}\n"
        )
    }

    #[test]
    fn named_tests_and_places_exist() {
        let good =
            "tests = [\"a1_shown\", \"inner\", \"listed\"]\ncode = [\"crates/tcp/src/c.rs#place\"]";
        assert!(said("rfc1", &entry(good)).is_empty());
        assert_eq!(
            said("rfc1", &entry("tests = [\"helper\"]")),
            ["no test has the name helper"]
        );
        for place in [
            "crates/tcp/src/c.rs#plac",
            "crates/tcp/src/d.rs#place",
            "crates/tcp/src/c.rs",
        ] {
            assert_eq!(
                said("rfc1", &entry(&format!("code = [\"{place}\"]"))).len(),
                1
            );
        }
    }

    #[test]
    fn a_must_is_covered_or_excused() {
        assert_eq!(said("rfc1", &entry("")).len(), 1);
        assert!(said("rfc1", &entry("excuse = \"Because.\"")).is_empty());
        let should = entry("").replace("level = \"MUST\"", "level = \"SHOULD\"");
        assert!(said("rfc1", &should).is_empty());
    }

    #[test]
    fn no_requirement_stands_twice() {
        let twice = entry(
            "excuse = \"Because.\"\n\n[[requirement]]\nid = \"MUST-1\"\nsection = \"3.1\"\nlevel = \"MUST\"\nsays = \"So.\"\nexcuse = \"So.\"",
        );
        assert_eq!(said("rfc1", &twice).len(), 2);
    }

    #[test]
    fn tests_of_a_statement_have_it_in_their_names() {
        let statement = |id: &str, test: &str| {
            format!(
                "title = \"T\"\n\n[[requirement]]\nid = \"{id}\"\nlevel = \"MUST\"\nsays = \"So.\"\ntests = [\"{test}\"]\n"
            )
        };
        assert!(said("hostile", &statement("A1", "a1_shown")).is_empty());
        assert_eq!(said("hostile", &statement("A2", "a1_shown")).len(), 1);
    }

    #[test]
    fn what_stands_how_is_counted() {
        let files = [file(
            &format!("{LISTS}rfc1.toml"),
            &entry("excuse = \"Because.\""),
        )];
        let lists = check(&files, &mut Vec::new());
        let summary = summary(&lists);
        let row: Vec<&str> = summary.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(row, ["rfc1", "MUST", "0", "0", "1", "0"]);
        assert!(details(&lists[0]).contains("Because."));
    }
}
