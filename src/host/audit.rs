//! Sessions of audit, which begin when somebody logs in (pam_loginuid(8)).

use std::fs;

/// Returns the number of the latest session that has a process (`/proc/PID/sessionid`); 0 if none has.
pub fn latest_session() -> u32 {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let session = |entry: fs::DirEntry| {
        let name = entry.file_name();
        name.to_str()?.parse::<u32>().ok()?;
        fs::read_to_string(entry.path().join("sessionid")).ok()?.trim().parse().ok()
    };
    entries.filter_map(session).filter(|&session| session != u32::MAX).max().unwrap_or_default()
}
