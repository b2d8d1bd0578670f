//! The text of a link of messages: its node, and options after commas.

use std::fmt;
use std::str::FromStr;

use super::{Error, Fabric, Spec};

impl FromStr for Fabric {
    type Err = Error;

    /// The text behind `fabric:`.
    fn from_str(text: &str) -> Result<Fabric, Error> {
        let unknown = |word: &str| Error::FabricOption(word.to_owned());
        let (text, over) = match text.split_once(",over=") {
            Some((text, over)) => {
                let over: Spec = over.parse()?;
                // A device of its own, and no fabric over a fabric.
                if !over.has_frames() || over.shares_addresses() {
                    return Err(unknown(&format!("over={over}")));
                }
                (text, Some(Box::new(over)))
            }
            None => (text, None),
        };
        let mut words = text.split(',');
        let node = words.next().unwrap_or(text);
        let mut fabric = Fabric::new(node.parse().map_err(|_| unknown(node))?);
        fabric.over = over;
        for word in words {
            let unknown = || unknown(word);
            let (name, value) = word.split_once('=').ok_or_else(unknown)?;
            let switch = || match value {
                "on" => Ok(true),
                "off" => Ok(false),
                _ => Err(unknown()),
            };
            match name {
                "mtu" => {
                    let mtu = value.parse().ok();
                    fabric.mtu = mtu.filter(|mtu| (crate::MTU_MIN..=crate::MTU_MAX).contains(mtu));
                    fabric.mtu.ok_or_else(unknown)?;
                }
                "inline" => fabric.inline = switch()?,
                "elide" => fabric.elide_checksums = switch()?,
                "batch" => fabric.batch = switch()?,
                "dir" if !value.is_empty() => fabric.directory = Some(value.to_owned()),
                "peer" => {
                    let parts = value.split_once('@');
                    let entry =
                        parts.and_then(|(ip, node)| Some((ip.parse().ok()?, node.parse().ok()?)));
                    fabric.table.push(entry.ok_or_else(unknown)?);
                }
                _ => return Err(unknown()),
            }
        }
        Ok(fabric)
    }
}

impl fmt::Display for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.node)?;
        if let Some(mtu) = self.mtu {
            write!(f, ",mtu={mtu}")?;
        }
        for (is_on, name) in [
            (self.inline, "inline"),
            (self.elide_checksums, "elide"),
            (self.batch, "batch"),
        ] {
            if !is_on {
                write!(f, ",{name}=off")?;
            }
        }
        if let Some(directory) = &self.directory {
            write!(f, ",dir={directory}")?;
        }
        for (address, node) in &self.table {
            write!(f, ",peer={address}@{node}")?;
        }
        match &self.over {
            Some(over) => write!(f, ",over={over}"),
            None => Ok(()),
        }
    }
}
