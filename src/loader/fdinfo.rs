//! The kernel's lines about an open BPF object (`/proc/self/fdinfo`, proc(5)).

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::str::FromStr;

/// Returns the lines about a map, a program or a link.
pub fn fdinfo(object: BorrowedFd<'_>) -> Option<String> {
    let mut text = [0; 1024];
    // One read: the file's size is not known before, and `read_to_string` would feel its way.
    let length = File::open(format!("/proc/self/fdinfo/{}", object.as_raw_fd())).ok()?.read(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text[..length]).into_owned())
}

/// Returns the number behind a key, such as `map_id:`.
pub fn number_in<T: FromStr>(fdinfo: &str, key: &str) -> Option<T> {
    fdinfo.lines().find_map(|line| line.strip_prefix(key))?.trim().parse().ok()
}
