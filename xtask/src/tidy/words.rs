//! Words that the project does not contain: it speaks of itself alone, and of no single machine.

use crate::checkout::{File, Problem, contains_word};

/// Applies this module's rule to one file.
pub fn check(file: &File, problems: &mut Vec<Problem>) {
    if file.path == "Cargo.lock" {
        return;
    }
    for (index, line) in file.text.lines().enumerate() {
        let lower = line.to_lowercase();
        for (word, why) in unwanted() {
            if contains_word(&lower, word, |c| c.is_alphanumeric() || c == '-') {
                problems.push(Problem::at(
                    &file.path,
                    index + 1,
                    format!("`{word}`: {why}"),
                ));
            }
        }
        if names_an_issue(&lower) {
            problems.push(Problem::at(
                &file.path,
                index + 1,
                "a number of a thread: say what the thing is instead",
            ));
        }
    }
}

/// Unwanted words with the reason. Each is cut in two here, so that this file does not contain it.
fn unwanted() -> [(&'static str, &'static str); 10] {
    let machine = "a path of one machine";
    let making = "speak of the project, not of how it is made";
    [
        (concat!("/wo", "rk/"), machine),
        (concat!("/ro", "ot/"), machine),
        (concat!("/ho", "me/"), machine),
        (concat!("/tmp/tar", "get"), machine),
        (concat!("mr", "build"), machine),
        (concat!("suba", "gent"), making),
        (concat!("ag", "ent"), making),
        (concat!("ag", "ents"), making),
        (concat!("ll", "m"), making),
        (concat!("language ", "model"), making),
    ]
}

/// Numbers of a tracker, with or without `#`: they mean nothing in the text itself.
fn names_an_issue(line: &str) -> bool {
    line.match_indices(concat!("iss", "ue "))
        .any(|(at, found)| {
            let rest = line[at + found.len()..].trim_start_matches('#');
            rest.starts_with(|c: char| c.is_ascii_digit())
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> usize {
        let mut problems = Vec::new();
        check(
            &File {
                path: "README.md".into(),
                text: text.into(),
            },
            &mut problems,
        );
        problems.len()
    }

    #[test]
    fn paths_of_a_machine_are_found() {
        assert_eq!(count(concat!("see /ro", "ot/notes")), 1);
        assert_eq!(count("see /etc/hosts, the root, workers"), 0);
    }

    #[test]
    fn words_about_the_making_are_found_whole() {
        assert_eq!(count(concat!("an ag", "ent wrote")), 1);
        assert_eq!(count(concat!("User-Ag", "ent: curl")), 0);
    }

    #[test]
    fn numbers_of_a_tracker_are_found() {
        assert_eq!(count(concat!("fixes iss", "ue #12")), 1);
        assert_eq!(count(concat!("an iss", "ue with 12 rings")), 0);
    }
}
