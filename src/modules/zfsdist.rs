//! Latency of the operations of OpenZFS. Kernel side: bpf/zfsdist.bpf.c.

crate::file_system! {
    module: "zfsdist",
    log2: LATENCY 7,
    by_operation: 336,
    by_bucket: 344,
    in_seconds: 440,
    name: "zfs",
    called: "OpenZFS",
    needs: "OpenZFS (modprobe zfs) and fentry or kprobes",
    open: "zpl_open",
    read: "zpl_iter_read",
    write: "zpl_iter_write",
    fsync: "zpl_fsync",
    constants: zfs_start_mask, zfs_filter,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    /// The filter is set in the constants of its own programs; tests/live/filter.rs and tests/live/files.rs show that they and
    /// ext4dist's use it.
    #[test]
    fn the_option_process_is_the_filter_of_its_own_programs() {
        for (line, filters) in [("process = somebody", true), ("", false)] {
            let config = Config::parse("test.conf", format!("[z]\n{line}\n").as_bytes()).unwrap();
            let section = config.section("z").unwrap();
            let setup = Setup::new(&section);
            let (mut plan, mut constants) = (Plan { number: 5, ..Plan::default() }, crate::bpf::constants());
            let host = Host { cpus: 2, ..Host::SMALL };
            (SPEC.make)(&setup).unwrap().plan(&host, &mut plan, &mut constants);
            assert_eq!((plan.filter.is_some(), constants.zfs_filter), (filters, u64::from(filters) << 5));
            assert_eq!((constants.ext4_filter, constants.xfs_filter), (0, 0));
        }
    }
}
