//! Configuration files: `millrace up --config FILE` and `millrace config`.
//!
//! A key of the file is the name of a flag of `millrace up` without its dashes. The file is turned
//! into words of a command line, which clap reads. So a key takes the values of its flag, and a new
//! flag is a new key.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, bail, ensure};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, CommandFactory as _, Parser as _};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::arguments::{Arguments, Command, ConfigArguments, ConfigCommand, UpArguments};
use crate::output::print;

/// Flags of `millrace up` that say how it starts, not what the engine is.
const NO_KEYS: [&str; 3] = ["config", "foreground", "help"];
/// How similar a key must be to an unknown one to be proposed (0 to 1).
const SIMILAR: f64 = 0.6;
/// The width of the comments of the example.
const WIDTH: usize = 96;

/// A value for each key, which stands in the example where the flag has no default.
const EXAMPLES: [(&str, &str); 19] = [
    ("name", r#""lab""#),
    ("link", r#""tap:lab0""#),
    ("addr", r#"["10.8.0.2/24", "fd00:8::2/64"]"#),
    ("host-addr", r#"["10.8.0.1/24"]"#),
    ("gateway", r#"["10.8.0.1"]"#),
    ("route", r#"["10.0.0.0/8 via 10.8.0.1"]"#),
    ("vlan", "7"),
    ("loopback", "false"),
    ("shards-max", "4"),
    ("balance", "false"),
    ("io-threads", "1"),
    ("cores", r#""0-3,6""#),
    ("no-follow", "false"),
    ("no-join", "false"),
    ("ecn", "false"),
    ("audit", r#""/var/log/millrace-lab.log""#),
    ("user", r#""millrace""#),
    ("no-seccomp", "false"),
    ("dumpable", "false"),
];

pub fn config(arguments: &ConfigArguments) -> anyhow::Result<ExitCode> {
    match &arguments.command {
        ConfigCommand::Check { file } => check(file)?,
        ConfigCommand::Show { file } => print(&show(file)?)?,
        ConfigCommand::Example => print(&example())?,
    }
    Ok(ExitCode::SUCCESS)
}

fn check(file: &Path) -> anyhow::Result<()> {
    let (up, _) = parse(file, |_| false, &[])?;
    let name = up.name.context("the engine has no name")?;
    let config = up.link.config(name, false);
    let config = config.with_context(|| file.display().to_string())?;
    millrace_engine::topology::cores_of_programs(&config)
        .with_context(|| file.display().to_string())?;
    print(&format!("{}: no errors\n", file.display()))
}

/// The arguments of `up` with those of its --config file. Where both have a value, that of the
/// command line counts.
pub fn merged(arguments: UpArguments) -> anyhow::Result<UpArguments> {
    let Some(file) = &arguments.config else {
        return Ok(arguments);
    };
    let words: Vec<OsString> = std::env::args_os().collect();
    let matches = Arguments::command().try_get_matches_from(&words)?;
    let up = matches.subcommand_matches("up").context("no `up`")?;
    let is_given = |id: &str| up.value_source(id) == Some(ValueSource::CommandLine);
    // After the name of this program and `up`.
    parse(file, is_given, words.get(2..).unwrap_or_default()).map(|(up, _)| up)
}

/// Reads a file, without the keys that `is_given` otherwise, and adds `more` words.
fn parse(
    file: &Path,
    is_given: impl Fn(&str) -> bool,
    more: &[OsString],
) -> anyhow::Result<(UpArguments, ArgMatches)> {
    let text = fs::read_to_string(file)
        .with_context(|| format!("cannot read the configuration {}", file.display()))?;
    let (mut words, has_name) = words(file, &text, &is_given)?;
    if !has_name && !is_given("name") {
        let stem = file.file_stem().unwrap_or_default().to_string_lossy();
        words.push(format!("--name={stem}"));
    }
    let line = ["millrace", "up"].map(OsString::from).into_iter();
    let line = line.chain(words.into_iter().map(OsString::from));
    let line: Vec<OsString> = line.chain(more.iter().cloned()).collect();
    let matches = Arguments::command().try_get_matches_from(&line);
    let matches =
        matches.map_err(|error| anyhow::anyhow!("{}: {}", file.display(), brief(&error)))?;
    let Command::Up(up) = Arguments::try_parse_from(&line)?.command else {
        bail!("these are the arguments of another command");
    };
    let matches = matches.subcommand_matches("up").context("no `up`")?.clone();
    Ok((up, matches))
}

/// The flags that have a key.
fn flags() -> Vec<Arg> {
    let mut command = Arguments::command();
    command.build();
    let up = command.find_subcommand("up");
    let all = up.into_iter().flat_map(clap::Command::get_arguments);
    all.filter(|flag| flag.get_long().is_some_and(|name| !NO_KEYS.contains(&name)))
        .cloned()
        .collect()
}

fn is_switch(flag: &Arg) -> bool {
    matches!(flag.get_action(), ArgAction::SetTrue)
}

fn is_list(flag: &Arg) -> bool {
    matches!(flag.get_action(), ArgAction::Append)
}

/// The words of the command line that stand for a file, and whether the file has a name.
fn words(
    file: &Path,
    text: &str,
    is_given: impl Fn(&str) -> bool,
) -> anyhow::Result<(Vec<String>, bool)> {
    let place = |at: usize| {
        let line = text[..at.min(text.len())].matches('\n').count() + 1;
        format!("{}:{line}", file.display())
    };
    let table = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        anyhow::anyhow!("{}: {}", place(at), error.message())
    })?;
    let flags = flags();
    let mut all = Vec::new();
    let mut has_name = false;
    for (key, value) in table.get_ref() {
        let name: &str = key.get_ref();
        let place = place(key.span().start);
        let flag = flags.iter().find(|flag| flag.get_long() == Some(name));
        let Some(flag) = flag else {
            bail!("{place}: there is no key `{name}`{}", nearest(name, &flags));
        };
        let words = words_of(flag, name, value).with_context(|| place.clone())?;
        // The name is needed here only for the line to be complete.
        let line = ["millrace", "up", "--config", "-"].map(str::to_owned);
        let line = line.into_iter().chain(words.iter().cloned());
        if let Err(error) = Arguments::command().try_get_matches_from(line) {
            bail!("{place}: {}", brief(&error));
        }
        has_name |= name == "name";
        if !is_given(flag.get_id().as_str()) {
            all.extend(words);
        }
    }
    Ok((all, has_name))
}

/// The words of the command line that stand for a key with a value.
fn words_of(flag: &Arg, name: &str, value: &Spanned<DeValue<'_>>) -> anyhow::Result<Vec<String>> {
    match value.get_ref() {
        DeValue::Boolean(on) if is_switch(flag) => {
            let word = on.then(|| format!("--{name}"));
            Ok(word.into_iter().collect())
        }
        other if is_switch(flag) => bail!("`{name}` is true or false, and no {}", other.type_str()),
        DeValue::Array(values) if is_list(flag) => {
            let each = values.iter().map(|value| word_of(name, value.get_ref()));
            each.collect()
        }
        value => word_of(name, value).map(|word| vec![word]),
    }
}

fn word_of(name: &str, value: &DeValue<'_>) -> anyhow::Result<String> {
    match value {
        DeValue::String(text) => Ok(format!("--{name}={text}")),
        DeValue::Integer(number) => {
            ensure!(number.radix() == 10, "`{name}` takes a decimal number");
            Ok(format!("--{name}={}", number.as_str()))
        }
        other => bail!(
            "`{name}` takes no {}; see `millrace config example`",
            other.type_str()
        ),
    }
}

/// What to say of the key that was probably meant.
fn nearest(name: &str, flags: &[Arg]) -> String {
    let keys = flags.iter().filter_map(Arg::get_long);
    let scored = keys.map(|key| (strsim::jaro_winkler(name, key), key));
    match scored.max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((score, key)) if score >= SIMILAR => format!("; the nearest is `{key}`"),
        _ => "; `millrace config example` shows all keys".to_owned(),
    }
}

/// The first line of what clap says.
fn brief(error: &clap::Error) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}

/// The values that count, in the notation of the file.
fn show(file: &Path) -> anyhow::Result<String> {
    let (_, matches) = parse(file, |_| false, &[])?;
    let mut text = String::new();
    for flag in flags() {
        let name = flag.get_long().unwrap_or_default();
        let id = flag.get_id().as_str();
        let value = if is_switch(&flag) {
            matches.get_flag(id).to_string()
        } else if let Some(raw) = matches.get_raw(id) {
            let values: Vec<String> = raw.map(|raw| quoted(&raw.to_string_lossy())).collect();
            match is_list(&flag) {
                true => format!("[{}]", values.join(", ")),
                false => values.join(" "),
            }
        } else {
            continue;
        };
        writeln!(text, "{name} = {value}")?;
    }
    Ok(text)
}

/// A value as TOML has it.
fn quoted(text: &str) -> String {
    match text.parse::<u32>() {
        Ok(number) => number.to_string(),
        Err(_) => format!("{text:?}"),
    }
}

/// A file with every key and its help, in comments.
fn example() -> String {
    let mut text = "\
# The configuration of an engine: millrace up --config FILE.
# Remove the `#` before a key to set it. `millrace config check FILE` finds errors.
"
    .to_owned();
    for flag in flags() {
        let name = flag.get_long().unwrap_or_default();
        let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
        text.push('\n');
        let mut line = "#".to_owned();
        for word in help.split_whitespace() {
            if line.len() + 1 + word.len() > WIDTH {
                text += &line;
                text.push('\n');
                line = "#".to_owned();
            }
            line.push(' ');
            line += word;
        }
        text += &line;
        text += &format!("\n#{name} = {}\n", example_of(&flag, name));
    }
    text
}

fn example_of(flag: &Arg, name: &str) -> String {
    let default = flag.get_default_values().first();
    let listed = EXAMPLES.iter().find(|(key, _)| *key == name);
    match (listed, default) {
        (Some((_, value)), _) => (*value).to_owned(),
        (None, Some(value)) => quoted(&value.to_string_lossy()),
        (None, None) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        let error = words(Path::new("lab.toml"), text, |_| false).expect_err(text);
        format!("{error:#}")
    }

    #[test]
    fn every_flag_has_a_key_with_an_example_and_every_key_a_flag() {
        let text = example();
        for flag in flags() {
            let name = flag.get_long().expect("it was asked for");
            let start = format!("#{name} = ");
            let line = text.lines().find_map(|line| line.strip_prefix(&start));
            let value = line.unwrap_or_else(|| panic!("--{name} is not in the example"));
            let line = format!("{name} = {value}");
            let (words, _) = words(Path::new("x.toml"), &line, |_| false).expect(&line);
            assert_eq!(words.is_empty(), value == "false", "{line}");
        }
        for (key, _) in EXAMPLES {
            let is_flag = flags().iter().any(|flag| flag.get_long() == Some(key));
            assert!(is_flag, "{key}");
        }
    }

    #[test]
    fn errors_name_file_and_line_and_the_nearest_key() {
        for (text, said) in [
            (
                "\nadr = 1",
                "lab.toml:2: there is no key `adr`; the nearest is `addr`",
            ),
            (
                "mtu = 1500\nshard = 2",
                "lab.toml:2: there is no key `shard`; the nearest is `shards`",
            ),
            (
                "foreground = true",
                "lab.toml:1: there is no key `foreground`",
            ),
            ("mtu = 10", "lab.toml:1: invalid value '10' for '--mtu"),
            ("mtu = true", "lab.toml:1: `mtu` takes no boolean"),
            ("mtu = [1500]", "lab.toml:1: `mtu` takes no array"),
            (
                "loopback = 1",
                "lab.toml:1: `loopback` is true or false, and no integer",
            ),
            (
                "addr = [\"10.9.0.0/24\"]",
                "lab.toml:1: invalid value '10.9.0.0/24'",
            ),
            ("[addr]\nx = 1", "lab.toml:1: `addr` takes no table"),
            ("name = \"a\"\nmtu = ", "lab.toml:2: "),
            ("mtu = 1500\nmtu = 1500", "lab.toml:2: "),
        ] {
            let error = error(text);
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn a_file_says_what_the_command_line_does_not() {
        let text = "addr = [\"10.8.0.2/24\", \"10.8.0.3/24\"]\nmtu = 1400\n\
                    route = \"10.0.0.0/8 via 10.8.0.1\"\nloopback = true\necn = false\n";
        let file = std::env::temp_dir().join(format!("millrace-lab-{}.toml", std::process::id()));
        fs::write(&file, text).expect("a file");
        let more = ["--mtu", "9000"].map(OsString::from);
        let (up, _) = parse(&file, |id| id == "mtu", &more).expect("sound");
        let shown = show(&file).expect("sound");
        fs::remove_file(&file).expect("it is there");
        assert_eq!((up.link.mtu, up.link.addr.len()), (9000, 2));
        assert_eq!(up.link.route, ["10.0.0.0/8 via 10.8.0.1"]);
        assert!(up.link.loopback && !up.link.ecn);
        assert!(
            up.name
                .is_some_and(|name| name.starts_with("millrace-lab-"))
        );
        for line in [
            "mtu = 1400",
            "addr = [\"10.8.0.2/24\", \"10.8.0.3/24\"]",
            "shards = 1",
            "ecn = false",
        ] {
            assert!(shown.lines().any(|shown| shown == line), "{line}: {shown}");
        }
    }
}
