//! Rules for the threat model: each row of its tables names the tests that hold it, as `FILE#TEST`,
//! and they exist.

use crate::checkout::{File, Problem};

/// The page.
const PAGE: &str = "docs/threat-model.md";

/// Checks the page, if it is among the files.
pub fn check(files: &[File], problems: &mut Vec<Problem>) {
    let Some(page) = files.iter().find(|file| file.path == PAGE) else {
        return;
    };
    let mut in_table = false;
    for (index, line) in page.text.lines().enumerate() {
        if !line.starts_with('|') {
            in_table = false;
            continue;
        }
        if !in_table {
            // The heading; the line of dashes below it names nothing either.
            in_table = true;
            continue;
        }
        if line.chars().all(|c| "|-: ".contains(c)) {
            continue;
        }
        let places: Vec<&str> = places(line).collect();
        if places.is_empty() {
            problems.push(Problem::at(
                PAGE,
                index + 1,
                "no test holds this: name one as `FILE#TEST`",
            ));
        }
        for place in places.iter().filter(|place| !exists(place, files)) {
            problems.push(Problem::at(
                PAGE,
                index + 1,
                format!(
                    "`{place}` does not exist: FILE#TEST with a function of the file is wanted"
                ),
            ));
        }
    }
}

/// The places that a row names.
fn places(row: &str) -> impl Iterator<Item = &str> {
    let quoted = row.split('`').skip(1).step_by(2);
    quoted.filter(|word| word.contains(".rs#"))
}

/// Whether `FILE#TEST` is a function of a file.
fn exists(place: &str, files: &[File]) -> bool {
    let Some((path, test)) = place.split_once('#') else {
        return false;
    };
    let file = files.iter().find(|file| file.path == path);
    file.is_some_and(|file| file.text.contains(&format!("fn {test}(")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(rows: &str) -> usize {
        let file = |path: &str, text: String| File {
            path: path.into(),
            text,
        };
        let files = [
            file(PAGE, format!("| promise | test |\n|---|---|\n{rows}\n")),
            file("crates/a/tests/b.rs", "#[test]\nfn holds() {}\n".into()),
        ];
        let mut problems = Vec::new();
        check(&files, &mut problems);
        problems.len()
    }

    #[test]
    fn a_row_with_a_test_that_exists_passes() {
        assert_eq!(said("| so | `crates/a/tests/b.rs#holds` |"), 0);
    }

    #[test]
    fn a_row_without_one_is_found() {
        assert_eq!(said("| so | `crates/a/tests/b.rs#hold` |"), 1);
        assert_eq!(said("| so | `crates/a/tests/c.rs#holds` |"), 1);
        assert_eq!(said("| so | a test |"), 1);
    }
}
