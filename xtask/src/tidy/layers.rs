//! The floors: a crate depends only on crates of lower floors. The floors are read from
//! `ARCHITECTURE.md`, the edges from the manifests, so that the picture and the build cannot part.

use std::collections::BTreeMap;

use super::manifest;
use crate::checkout::{File, Problem};

/// Prefix of the package names of our crates.
const PREFIX: &str = "millrace-";

/// Applies the rule to the whole workspace.
pub fn check(files: &[File], problems: &mut Vec<Problem>) {
    let Some(architecture) = files.iter().find(|file| file.path == "ARCHITECTURE.md") else {
        problems.push(Problem::whole(
            "ARCHITECTURE.md",
            "the page that names the floors is missing",
        ));
        return;
    };
    let floors = floors(&architecture.text);
    for file in files {
        let Some(name) = file
            .path
            .strip_prefix("crates/")
            .and_then(|rest| rest.strip_suffix("/Cargo.toml"))
        else {
            continue;
        };
        let Some(&floor) = floors.get(name) else {
            problems.push(Problem::whole(
                &file.path,
                format!("`{name}` stands on no floor of ARCHITECTURE.md"),
            ));
            continue;
        };
        for (line, dependency) in dependencies(&file.text) {
            check_edge(file, line, (name, floor), &dependency, &floors, problems);
        }
    }
}

/// Where a crate stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Floor {
    /// On this floor, counted from 1.
    At(u32),
    /// Beside the house: it may use any crate and only tests may use it.
    Beside,
}

/// One dependency, checked.
fn check_edge(
    file: &File,
    line: usize,
    (name, floor): (&str, Floor),
    dependency: &Dependency,
    floors: &BTreeMap<String, Floor>,
    problems: &mut Vec<Problem>,
) {
    let below = match (floor, floors.get(&dependency.name)) {
        (_, None) => {
            return problems.push(Problem::at(
                &file.path,
                line,
                format!("`{}` stands on no floor", dependency.name),
            ));
        }
        (_, Some(Floor::Beside)) => dependency.is_dev,
        (Floor::Beside, Some(_)) => true,
        (Floor::At(own), Some(Floor::At(other))) => *other < own,
    };
    if !below {
        problems.push(Problem::at(
            &file.path,
            line,
            format!("`{name}` reaches up or sideways to `{}`", dependency.name),
        ));
    }
}

/// One of our crates in a manifest.
#[derive(Debug, PartialEq, Eq)]
struct Dependency {
    /// Its name without the prefix.
    name: String,
    /// Whether only tests use it.
    is_dev: bool,
}

/// Our crates that a manifest names, with the lines.
fn dependencies(text: &str) -> Vec<(usize, Dependency)> {
    let mut found = Vec::new();
    for (section, is_dev) in [
        ("dependencies", false),
        ("build-dependencies", false),
        ("dev-dependencies", true),
    ] {
        for (line, entry) in manifest::section(text, section) {
            let name = entry.split(['.', '=', ' ']).next().unwrap_or_default();
            if let Some(name) = name.strip_prefix(PREFIX) {
                found.push((
                    line,
                    Dependency {
                        name: name.into(),
                        is_dev,
                    },
                ));
            }
        }
    }
    found
}

/// The floors, from the first code block of the page: lines `floor N NAME ...`, more names of a
/// floor below it at the same column, and `beside NAME ...`.
fn floors(page: &str) -> BTreeMap<String, Floor> {
    let mut floors = BTreeMap::new();
    let mut current = None;
    for line in page
        .lines()
        .skip_while(|line| !line.starts_with("```"))
        .skip(1)
        .take_while(|line| !line.starts_with("```"))
    {
        let mut words = line.split_whitespace();
        let name = match words.next() {
            Some("floor") => {
                current = words
                    .next()
                    .and_then(|number| number.parse().ok())
                    .map(Floor::At);
                words.next()
            }
            Some("beside") => {
                current = Some(Floor::Beside);
                words.next()
            }
            name if line.starts_with(' ') => name,
            _ => None,
        };
        if let (Some(name), Some(floor)) = (name, current) {
            floors.insert(name.to_string(), floor);
        }
    }
    floors
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# A\n```\nfloor 3  shard   one core\nfloor 2  tcp     one connection\n         port    frames\nfloor 1  wire    views\n\
                        beside   sim     networks\n```\n```\nfloor 9  other\n```\n";

    fn problems(manifests: &[(&str, &str)]) -> Vec<String> {
        let mut files = vec![File {
            path: "ARCHITECTURE.md".into(),
            text: PAGE.into(),
        }];
        for (name, text) in manifests {
            files.push(File {
                path: format!("crates/{name}/Cargo.toml"),
                text: (*text).into(),
            });
        }
        let mut problems = Vec::new();
        check(&files, &mut problems);
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn floors_are_read_from_the_page() {
        let floors = floors(PAGE);
        assert_eq!(floors.len(), 5);
        assert_eq!(floors["port"], Floor::At(2));
        assert_eq!(floors["sim"], Floor::Beside);
    }

    #[test]
    fn downwards_is_allowed() {
        let manifest = "[dependencies]\nmillrace-tcp.workspace = true\nmillrace-wire = { path = \"../wire\" }\nlibc.workspace = true\n";
        assert_eq!(problems(&[("shard", manifest)]), Vec::<String>::new());
    }

    #[test]
    fn upwards_and_sideways_are_not() {
        let said = problems(&[(
            "tcp",
            "[dependencies]\nmillrace-shard.workspace = true\nmillrace-port.workspace = true\n",
        )]);
        assert_eq!(said.len(), 2);
        assert!(said[0].starts_with("crates/tcp/Cargo.toml:2: "), "{said:?}");
    }

    #[test]
    fn only_tests_use_what_stands_beside() {
        assert_eq!(
            problems(&[(
                "shard",
                "[dev-dependencies]\nmillrace-sim.workspace = true\n"
            )]),
            Vec::<String>::new()
        );
        assert_eq!(
            problems(&[("shard", "[dependencies]\nmillrace-sim.workspace = true\n")]).len(),
            1
        );
        assert_eq!(
            problems(&[("sim", "[dependencies]\nmillrace-shard.workspace = true\n")]),
            Vec::<String>::new()
        );
    }

    #[test]
    fn every_crate_has_its_floor() {
        assert_eq!(problems(&[("steer", "[package]\n")]).len(), 1);
    }
}
