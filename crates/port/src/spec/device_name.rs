//! Names of network devices.

use super::error::Error;

/// Whether Linux takes `name` for a device; narrower than Linux, so that the name needs no quoting
/// anywhere.
///
/// # Errors
/// [`Error::Name`].
pub fn check_device_name(name: &str) -> Result<(), Error> {
    let sound = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if (1..=15).contains(&name.len())
        && name.bytes().all(sound)
        && name != "."
        && name != ".."
        && !name.starts_with('-')
    {
        Ok(())
    } else {
        Err(Error::Name(name.to_owned()))
    }
}
