//! The form of a list: TOML, of which no more than this is needed.
//!
//! ```toml
//! title = "Transmission Control Protocol"
//!
//! [[requirement]]
//! id = "MUST-1"                    # the RFC's own number, or the statement's; may be missing
//! section = "3.1"                  # may be missing
//! level = "MUST"                   # MUST, SHOULD or MAY; what is forbidden has the same
//! says = "..."                     # what is required
//! tests = ["name", "name"]         # over several lines if need be
//! code = ["crates/tcp/src/rtt.rs#sample"]
//! excuse = "..."                   # why it is not done, or not so
//! ```

/// How much is required.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    Must,
    Should,
    May,
}

impl Level {
    pub const ALL: [Level; 3] = [Level::Must, Level::Should, Level::May];

    /// As in the lists.
    pub fn name(self) -> &'static str {
        match self {
            Level::Must => "MUST",
            Level::Should => "SHOULD",
            Level::May => "MAY",
        }
    }
}

/// One requirement.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Line of its heading, from 1.
    pub line: usize,
    pub id: Option<String>,
    pub section: Option<String>,
    pub level: Level,
    pub says: String,
    pub tests: Vec<String>,
    /// `FILE#NAME`.
    pub code: Vec<String>,
    pub excuse: Option<String>,
}

impl Entry {
    /// What it is called: its number and its section, as far as it has them.
    pub fn name(&self) -> String {
        let parts = [self.id.as_deref(), self.section.as_deref()];
        parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
    }

    /// Whether one of its tests has its number in its name, as `a2_a4_...` has A2 and A4.
    pub fn is_named_by_a_test(&self) -> bool {
        let id = self.id.as_deref().unwrap_or_default().to_lowercase();
        self.tests
            .iter()
            .any(|test| test.split('_').any(|word| word == id))
    }
}

/// A list.
#[derive(Clone, Debug)]
pub struct List {
    /// Its file's name without ending.
    pub name: String,
    pub title: String,
    pub entries: Vec<Entry>,
}

impl List {
    /// Whether its tests carry the numbers of its statements in their names.
    pub fn is_named_by_statement(&self) -> bool {
        !self.name.starts_with("rfc")
    }
}

/// A line, and what is wrong there.
type Problem = (usize, String);

/// What an entry says so far.
#[derive(Default)]
struct Draft {
    line: usize,
    id: Option<String>,
    section: Option<String>,
    level: Option<Level>,
    says: Option<String>,
    tests: Option<Vec<String>>,
    code: Option<Vec<String>>,
    excuse: Option<String>,
}

impl Draft {
    fn finish(self) -> Result<Entry, Problem> {
        let missing = |what: &str| (self.line, format!("the requirement has no `{what}`"));
        if self.id.is_none() && self.section.is_none() {
            return Err(missing("id` and no `section"));
        }
        Ok(Entry {
            level: self.level.ok_or_else(|| missing("level"))?,
            says: self.says.clone().ok_or_else(|| missing("says"))?,
            line: self.line,
            id: self.id,
            section: self.section,
            tests: self.tests.unwrap_or_default(),
            code: self.code.unwrap_or_default(),
            excuse: self.excuse,
        })
    }
}

/// Reads the list `name`; an error says at which line and what.
pub fn read(name: &str, text: &str) -> Result<List, Problem> {
    let mut title = None;
    let mut entries = Vec::new();
    let mut draft: Option<Draft> = None;
    let mut lines = text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let (number, line) = (index + 1, line.trim());
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if line == "[[requirement]]" {
            let next = Draft {
                line: number,
                ..Draft::default()
            };
            if let Some(done) = draft.replace(next) {
                entries.push(done.finish()?);
            }
            continue;
        }
        let Some((key, value)) = line.split_once(" = ") else {
            return Err((number, format!("`{line}` is not KEY = VALUE")));
        };
        // An array may go on over the following lines.
        let mut value = value.to_string();
        while value.starts_with('[') && !value.ends_with(']') {
            let Some((_, more)) = lines.next() else {
                return Err((number, "the array does not end".into()));
            };
            value.push(' ');
            value.push_str(more.trim());
        }
        let wrong = |message: String| (number, message);
        let Some(draft) = &mut draft else {
            if key != "title" || title.replace(string(&value).map_err(wrong)?).is_some() {
                return Err((number, format!("`{key}` does not belong here")));
            }
            continue;
        };
        let doubled = match key {
            "id" => draft.id.replace(string(&value).map_err(wrong)?).is_some(),
            "section" => draft
                .section
                .replace(string(&value).map_err(wrong)?)
                .is_some(),
            "level" => draft.level.replace(level(&value).map_err(wrong)?).is_some(),
            "says" => draft.says.replace(string(&value).map_err(wrong)?).is_some(),
            "excuse" => draft
                .excuse
                .replace(string(&value).map_err(wrong)?)
                .is_some(),
            "tests" => draft.tests.replace(array(&value).map_err(wrong)?).is_some(),
            "code" => draft.code.replace(array(&value).map_err(wrong)?).is_some(),
            _ => return Err((number, format!("`{key}` is no key of a requirement"))),
        };
        if doubled {
            return Err((number, format!("`{key}` stands twice")));
        }
    }
    if let Some(done) = draft {
        entries.push(done.finish()?);
    }
    Ok(List {
        name: name.into(),
        title: title.ok_or_else(|| (0, "the list has no `title`".to_string()))?,
        entries,
    })
}

/// A string without escapes.
fn string(value: &str) -> Result<String, String> {
    let inner = value
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'))
        .filter(|inner| !inner.is_empty() && !inner.contains(['"', '\\']));
    match inner {
        Some(inner) => Ok(inner.into()),
        None => Err(format!("{value} is no plain string")),
    }
}

fn array(value: &str) -> Result<Vec<String>, String> {
    let inner = value
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .ok_or_else(|| format!("{value} is no array"))?;
    inner
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
        .map(string)
        .collect()
}

fn level(value: &str) -> Result<Level, String> {
    let name = string(value)?;
    Level::ALL
        .into_iter()
        .find(|level| level.name() == name)
        .ok_or_else(|| format!("{name} is none of MUST, SHOULD and MAY"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_read() {
        let list = read(
            "rfc1",
            "# What it is\ntitle = \"T\"\n\n[[requirement]]\nid = \"MUST-1\"\nsection = \"3.1\"\nlevel = \"SHOULD\"\nsays = \"So, and so.\"\n\
             tests = [\n    \"a\",\n    \"b\",\n]\ncode = [\"f#x\"]\nexcuse = \"No.\"\n\n[[requirement]]\nsection = \"4\"\nlevel = \"MAY\"\nsays = \"S\"\n",
        )
        .unwrap();
        assert_eq!((list.title.as_str(), list.entries.len()), ("T", 2));
        let first = &list.entries[0];
        assert_eq!(
            (first.name(), first.level),
            ("MUST-1 3.1".into(), Level::Should)
        );
        assert_eq!(
            (&first.tests[..], first.line),
            (&["a".to_string(), "b".into()][..], 4)
        );
        assert_eq!(first.excuse.as_deref(), Some("No."));
        assert_eq!(list.entries[1].name(), "4");
    }

    #[test]
    fn anything_else_is_refused_with_its_line() {
        for (text, line) in [
            ("[[requirement]]\nid = \"A\"\nlevel = \"MUST\"\n", 1),
            ("title = \"T\"\nlevel = \"MUST\"", 2),
            ("title = \"T\"\n[[requirement]]\nlevel = \"WILL\"", 3),
            ("title = \"T\"\n[[requirement]]\nwhy = \"x\"", 3),
            ("title = \"T\"\n[[requirement]]\nid = \"A\"\nid = \"B\"", 4),
            ("title = \"T\"\n[[requirement]]\ntests = [\"A\",", 3),
            ("title = \"T\"\n[[requirement]]\nsays = \"a \\\" b\"", 3),
            ("title = \"T\"\nnonsense", 2),
            (
                "title = \"T\"\n[[requirement]]\nlevel = \"MUST\"\nsays = \"x\"",
                2,
            ),
        ] {
            assert_eq!(read("rfc1", text).unwrap_err().0, line, "{text}");
        }
    }
}
