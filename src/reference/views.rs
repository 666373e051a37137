//! Dashboards: which metrics are looked at together, and how. [`grafana`](super::grafana) renders them.

/// A dashboard.
pub struct Dashboard {
    /// Last part of its identifier and of the name of its file.
    pub id: &'static str,
    /// Title.
    pub title: &'static str,
    /// A choice at its head.
    pub choice: Option<Choice>,
    /// Panels, in rows from the left to the right.
    pub panels: &'static [Panel],
}

/// A choice at the head of a dashboard, which expressions name as `$NAME`, or in patterns as `${NAME:regex}`.
pub struct Choice {
    /// Name.
    pub name: &'static str,
    /// Values to choose between.
    pub values: Values,
}

/// Values of a choice.
pub enum Values {
    /// Values of a metric, of which the first is chosen at first.
    OfMetric(&'static str),
    /// Words, of which the first is chosen at first.
    Words(&'static [&'static str]),
}

/// A panel.
pub struct Panel {
    /// Title.
    pub title: &'static str,
    /// Sentence that says what the panel shows.
    pub about: &'static str,
    /// Module that has its metrics, with the option that they need, as `biolatency slow`; the agent itself has those of "".
    pub module: &'static str,
    /// Form in which it shows them.
    pub kind: Kind,
    /// Unit, by Grafana's name, where the metric's own does not fit.
    pub unit: Option<&'static str>,
    /// Metrics or expressions, each with a legend.
    pub targets: &'static [Target],
}

/// Form of a panel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Buckets over time.
    HeatMap,
    /// Lines over time.
    Lines,
    /// The latest number.
    Number,
    /// Rows of instances, columns of metrics.
    Table,
}

/// A line, a number, a column of a table, or all buckets of a heat map.
pub struct Target {
    /// Metric or expression of derived metrics (pmRegisterDerived(3)), or of PromQL.
    pub expression: &'static str,
    /// Legend; `$instance` is the name of the instance, `{{LABEL}}` a label in Prometheus.
    pub legend: &'static str,
}

impl Target {
    /// Returns the metric, of an expression that chooses instances the one whose they are.
    pub fn metric(&self) -> &'static str {
        let argument = self.expression.strip_prefix("matchinst(").and_then(|rest| rest.rsplit_once(", "));
        argument.map_or(self.expression, |(_, metric)| metric.trim_end_matches(')'))
    }

    /// Returns whether an expression chooses instances.
    pub fn is_chosen(&self) -> bool {
        self.metric() != self.expression
    }
}

const fn target(expression: &'static str, legend: &'static str) -> Target {
    Target { expression, legend }
}

macro_rules! panel {
    (@unit) => { None };
    (@unit $unit:literal) => { Some($unit) };
    ($kind:ident $title:literal, $about:literal, $module:literal $(, in $unit:literal)?: $($expression:expr => $legend:expr),+ $(,)?) => {
        Panel {
            title: $title,
            about: $about,
            module: $module,
            kind: Kind::$kind,
            unit: panel!(@unit $($unit)?),
            targets: &[$(target($expression, $legend)),+],
        }
    };
}

/// Three quantiles of histograms, as lines.
macro_rules! quantiles {
    ($title:literal, $about:literal, $module:literal: $($histogram:literal => $legend:literal),+ $(,)?) => {
        panel!(Lines $title, $about, $module: $(
            concat!($histogram, ".p50") => concat!($legend, "p50"),
            concat!($histogram, ".p99") => concat!($legend, "p99"),
            concat!($histogram, ".max") => concat!($legend, "max"),
        )+)
    };
}

/// Metrics below a node, as the columns of a table.
macro_rules! columns {
    ($title:literal, $about:literal, $module:literal, $node:literal: $($column:literal)+) => {
        panel!(Table $title, $about, $module: $(concat!($node, $column) => $column),+)
    };
}

/// A metric of the chosen disk.
macro_rules! of_disk {
    ($metric:literal) => {
        concat!("matchinst(/^${disk:regex}$/, bcc.disk.dev.", $metric, ")")
    };
}

const DISKS: Choice = Choice { name: "disk", values: Values::OfMetric("bcc.disk.dev.name") };
const CGROUPS: Choice = Choice { name: "cgroup", values: Values::OfMetric("bcc.cgroup.disk.name") };
const FILE_SYSTEMS: Choice = Choice { name: "fs", values: Values::Words(&["ext4", "xfs", "btrfs", "nfs", "zfs"]) };

/// All dashboards.
pub static DASHBOARDS: &[Dashboard] = &[
    Dashboard {
        id: "overview",
        title: "eBPF overview",
        choice: None,
        panels: &[
            panel!(Number "Modules", "How many modules run and how many failed; bcc.agent.module.status says why.", "":
                "bcc.agent.summary.modules.running" => "running",
                "bcc.agent.summary.modules.failed" => "failed"),
            panel!(Number "Lost events", "Events a second that modules had no room for; bcc.agent.lost.reason says which option to raise.", "", in "cps":
                "bcc.agent.summary.losses" => "lost"),
            panel!(Table "Configuration", "What the agent says of its configuration.", "":
                "bcc.agent.summary.configuration" => "configuration"),
            panel!(HeatMap "Reads of disks by latency", "How many reads took how long, from queueing to completion.", "biolatency", in "µs":
                "bcc.disk.all.read.total.bucket" => ""),
            panel!(HeatMap "Writes to disks by latency", "How many writes took how long, from queueing to completion.", "biolatency", in "µs":
                "bcc.disk.all.write.total.bucket" => ""),
            quantiles!("Latency of disks", "Quantiles of the last minute, from queueing to completion.", "biolatency":
                "bcc.disk.all.read.total" => "reads ", "bcc.disk.all.write.total" => "writes "),
            panel!(Lines "Requests of disks", "Requests a second that completed.", "biolatency", in "iops":
                "bcc.disk.all.read.total.count" => "reads",
                "bcc.disk.all.write.total.count" => "writes",
                "bcc.disk.all.flush.total.count" => "flushes",
                "bcc.disk.all.discard.total.count" => "discards"),
            panel!(HeatMap "Waits for a CPU", "How many tasks waited how long in a run queue.", "runqlat", in "µs": "bcc.runq.all.bucket" => ""),
            quantiles!("Latency of the run queue", "Quantiles of the last minute, from runnable to running.", "runqlat": "bcc.runq.all" => ""),
            panel!(Table "Disks", "Quantiles of the last minute by disk, and the part of reads in the queue.", "biolatency":
                "bcc.disk.dev.read.total.p99" => "reads p99",
                "bcc.disk.dev.read.total.max" => "reads max",
                "bcc.disk.dev.read.queue.p99" => "in the queue p99",
                "bcc.disk.dev.write.total.p99" => "writes p99",
                "bcc.disk.dev.write.total.max" => "writes max"),
            panel!(Table "Traffic by process", "Bytes a second that processes send and receive.", "netproc", in "binBps":
                "bcc.proc.net.tcp.send.bytes" => "TCP sent",
                "bcc.proc.net.tcp.recv.bytes" => "TCP received",
                "bcc.proc.net.udp.send.bytes" => "UDP sent",
                "bcc.proc.net.udp.recv.bytes" => "UDP received"),
        ],
    },
    Dashboard {
        id: "disk",
        title: "eBPF block I/O",
        choice: Some(DISKS),
        panels: &[
            panel!(HeatMap "Reads by latency", "How many reads of the disk took how long.", "biolatency", in "µs":
                "matchinst(/::${disk:regex}$/, bcc.disk.dev.read.total.bucket)" => ""),
            panel!(HeatMap "Writes by latency", "How many writes to the disk took how long.", "biolatency", in "µs":
                "matchinst(/::${disk:regex}$/, bcc.disk.dev.write.total.bucket)" => ""),
            panel!(Lines "Latency of reads", "Quantiles of the last minute, from queueing to completion.", "biolatency":
                of_disk!("read.total.p50") => "$instance p50",
                of_disk!("read.total.p90") => "$instance p90",
                of_disk!("read.total.p99") => "$instance p99",
                of_disk!("read.total.max") => "$instance max"),
            panel!(Lines "Latency of writes", "Quantiles of the last minute, from queueing to completion.", "biolatency":
                of_disk!("write.total.p50") => "$instance p50",
                of_disk!("write.total.p90") => "$instance p90",
                of_disk!("write.total.p99") => "$instance p99",
                of_disk!("write.total.max") => "$instance max"),
            panel!(Lines "Queue or device", "Quantiles of the time that reads wait for their turn, and of the time that the disk takes.", "biolatency":
                of_disk!("read.queue.p99") => "$instance queue p99",
                of_disk!("read.device.p99") => "$instance device p99"),
            panel!(Lines "Requests", "Requests a second that completed.", "biolatency", in "iops":
                of_disk!("read.total.count") => "$instance reads",
                of_disk!("write.total.count") => "$instance writes",
                of_disk!("flush.total.count") => "$instance flushes"),
            panel!(Lines "Bytes", "Bytes a second that were transferred.", "biolatency", in "binBps":
                of_disk!("read.bytes") => "$instance read",
                of_disk!("write.bytes") => "$instance written"),
            columns!("Slowest requests", "The slowest request of each disk in the last minute, with its process.", "biolatency exemplars", "bcc.disk.slowest.":
                "ended" "operation" "time" "device" "bytes" "pid" "command" "cgroup_path"),
            columns!("I/O by process", "Requests of the last interval by process and disk.", "biotop", "bcc.proc.io.perdev.":
                "pid" "comm" "direction" "disk" "io" "bytes" "duration"),
        ],
    },
    Dashboard {
        id: "cpu",
        title: "eBPF CPU and waits",
        choice: None,
        panels: &[
            panel!(HeatMap "Waits for a CPU", "How many tasks waited how long in a run queue.", "runqlat", in "µs": "bcc.runq.all.bucket" => ""),
            quantiles!("Latency of the run queue", "Quantiles of the last minute, from runnable to running.", "runqlat": "bcc.runq.all" => ""),
            panel!(Lines "Run queue by CPU", "Latency by the CPU on which the task then ran.", "runqlat per_cpu": "bcc.runq.cpu.p99" => "$instance p99"),
            panel!(Lines "Turns", "How often tasks come to run.", "runqlat", in "cps": "bcc.runq.all.count" => "turns"),
            panel!(Lines "Where threads wait", "Waits a second by reason.", "offcpu", in "cps":
                "bcc.sched.offcpu.disk.count" => "disk",
                "bcc.sched.offcpu.fault.count" => "page faults",
                "bcc.sched.offcpu.net.count" => "sockets",
                "bcc.sched.offcpu.lock.count" => "locks",
                "bcc.sched.offcpu.poll.count" => "poll",
                "bcc.sched.offcpu.timer.count" => "timers"),
            panel!(Lines "System calls", "System calls a second by name.", "syscount", in "cps": "bcc.proc.syscall.count" => "$instance"),
            panel!(Lines "Programs", "Successful execs a second by command.", "exectop", in "cps": "bcc.proc.exec.count" => "$instance"),
            panel!(Lines "Tasks", "New processes and threads a second.", "sysfork", in "cps": "bcc.proc.sysfork" => "tasks"),
            columns!("Kernel mutexes", "The functions that wait for mutexes and hold them.", "klockstat", "bcc.kernel.lock.mutex.":
                "spin.total" "spin.max" "spin.count" "hold.max"),
        ],
    },
    Dashboard {
        id: "tcp",
        title: "eBPF network",
        choice: None,
        panels: &[
            columns!("Connections now", "Bytes of the last interval by connection.", "tcptop", "bcc.proc.io.net.tcptop.":
                "pid" "comm" "laddr" "lport" "daddr" "dport" "rx" "tx"),
            columns!("Connections that ended", "The latest, with their age.", "tcplife", "bcc.proc.io.net.tcp.":
                "pid" "comm" "laddr" "lport" "daddr" "dport" "rx" "tx" "duration"),
            panel!(Lines "Retransmits", "Segments a second that are sent again, by connection.", "tcpretrans", in "cps": "bcc.io.net.tcp.retrans.count" => "$instance"),
            quantiles!("Connects", "Time from the first SYN to the answer.", "tcpconnect": "bcc.net.tcp.connect" => ""),
            panel!(Lines "Connects that fail", "Connections a second that were not established.", "tcpconnect", in "cps":
                "bcc.net.tcp.connects.refused.count" => "refused",
                "bcc.net.tcp.connects.timedout.count" => "timed out",
                "bcc.net.tcp.connects.unreachable.count" => "unreachable"),
            quantiles!("Round trips", "Times of TCP sessions that closed, from segment to acknowledgement.", "tcprtt": "bcc.net.tcp.rtt" => ""),
            panel!(Lines "Drops", "Packets a second that the kernel dropped, by the reason that it gives.", "netdrops", in "cps": "bcc.net.drop.count" => "$instance"),
            panel!(Lines "Resets", "TCP resets a second.", "netdrops", in "cps":
                "bcc.net.tcp.resets.sent.count" => "sent",
                "bcc.net.tcp.resets.received.count" => "received"),
            quantiles!("Name servers", "Time from a question over UDP to its answer.", "dns": "bcc.net.dns" => ""),
            panel!(Lines "Questions that fail", "Questions a second that name servers refuse or do not answer.", "dns", in "cps":
                "bcc.net.dns.errors.servfail.count" => "failure of the server",
                "bcc.net.dns.errors.nxdomain.count" => "no such name",
                "bcc.net.dns.errors.refused.count" => "refused",
                "bcc.net.dns.timeouts.count" => "no answer"),
            panel!(Table "Traffic by process", "Bytes a second that processes send and receive.", "netproc", in "binBps":
                "bcc.proc.net.tcp.send.bytes" => "TCP sent",
                "bcc.proc.net.tcp.recv.bytes" => "TCP received"),
        ],
    },
    Dashboard {
        id: "kernel",
        title: "eBPF kernel",
        choice: None,
        panels: &[
            panel!(Lines "Softirqs", "Runs a second by vector.", "softirqs", in "cps": "bcc.irq.soft.run.count" => "$instance"),
            panel!(Lines "Time of softirqs", "Slowest per cent of runs in the last minute.", "softirqs": "bcc.irq.soft.run.p99" => "$instance p99"),
            panel!(Lines "Interrupts", "Runs of handlers a second, by interrupt and handler.", "hardirqs", in "cps": "bcc.irq.hard.run.count" => "$instance"),
            panel!(Lines "Time of interrupts", "Slowest per cent of handlers in the last minute.", "hardirqs": "bcc.irq.hard.run.p99" => "$instance p99"),
            panel!(Lines "Pauses for memory", "Pauses a second that tasks take to reclaim memory, or above the limit of dirty pages.", "stalls", in "cps":
                "bcc.mem.stall.direct.count" => "reclaim",
                "bcc.mem.stall.memcg.count" => "reclaim of a cgroup",
                "bcc.mem.stall.compact.count" => "compaction",
                "bcc.mem.stall.dirty.count" => "dirty pages"),
            panel!(Lines "Exits of virtual machines", "Exits a second, and of these to the machine's emulator.", "kvm", in "cps":
                "bcc.kvm.exits.count" => "$instance",
                "bcc.kvm.user.all.count" => "$instance to the emulator"),
            columns!("BPF programs", "All of the machine, with the time that they took while statistics are on.", "bpfstat", "bcc.bpf.prog.":
                "name" "type" "owner" "memory" "runs.count" "run.time"),
        ],
    },
    Dashboard {
        id: "files",
        title: "eBPF file systems",
        choice: Some(FILE_SYSTEMS),
        panels: &[
            panel!(HeatMap "Reads by latency", "How many reads took how long in the file system.", "ext4dist", in "µs": "bcc.fs.$fs.read.bucket" => ""),
            panel!(HeatMap "Writes by latency", "How many writes took how long in the file system.", "ext4dist", in "µs": "bcc.fs.$fs.write.bucket" => ""),
            panel!(Lines "Latency", "Slowest per cent of operations in the last minute.", "ext4dist":
                "bcc.fs.$fs.open.p99" => "opens p99",
                "bcc.fs.$fs.read.p99" => "reads p99",
                "bcc.fs.$fs.write.p99" => "writes p99",
                "bcc.fs.$fs.fsync.p99" => "syncs p99"),
            panel!(Lines "Operations", "Operations a second.", "ext4dist", in "ops":
                "bcc.fs.$fs.open.count" => "opens",
                "bcc.fs.$fs.read.count" => "reads",
                "bcc.fs.$fs.write.count" => "writes",
                "bcc.fs.$fs.fsync.count" => "syncs"),
            panel!(Lines "Page cache", "Pages a second that were found there, read, and dirtied.", "cachestat", in "cps":
                "bcc.mem.vmstat.hits" => "hits",
                "bcc.mem.vmstat.misses" => "misses",
                "bcc.mem.vmstat.dirtied" => "dirtied"),
            columns!("Slow operations", "The latest operations on files that took long.", "fsslower", "bcc.file.slow.":
                "pid" "comm" "file_op" "fs" "filename" "bytes" "lat"),
        ],
    },
    Dashboard {
        id: "cgroups",
        title: "eBPF cgroups",
        choice: Some(CGROUPS),
        panels: &[
            panel!(Table "Cgroups", "Quantiles of the last minute and bytes a second by service, container or pod.", "cgroup_disk":
                "bcc.cgroup.disk.read.total.p99" => "reads p99",
                "bcc.cgroup.disk.write.total.p99" => "writes p99",
                "bcc.cgroup.disk.read.bytes" => "read",
                "bcc.cgroup.disk.write.bytes" => "written"),
            panel!(HeatMap "Reads by latency", "How many reads of the cgroup took how long.", "cgroup_disk", in "µs":
                "matchinst(/::${cgroup:regex}$/, bcc.cgroup.disk.read.total.bucket)" => ""),
            panel!(HeatMap "Writes by latency", "How many writes of the cgroup took how long.", "cgroup_disk", in "µs":
                "matchinst(/::${cgroup:regex}$/, bcc.cgroup.disk.write.total.bucket)" => ""),
            panel!(HeatMap "Waits for a CPU", "How many tasks of the cgroup waited how long.", "cgroup_runq", in "µs":
                "matchinst(/::${cgroup:regex}$/, bcc.cgroup.runq.bucket)" => ""),
            panel!(Lines "Run queue", "Slowest per cent of waits for a CPU in the last minute.", "cgroup_runq":
                "matchinst(/^${cgroup:regex}$/, bcc.cgroup.runq.p99)" => "$instance p99"),
            panel!(Lines "Network", "Bytes a second that processes of the cgroup send and receive.", "cgroup_net", in "binBps":
                "matchinst(/^${cgroup:regex}$/, bcc.cgroup.net.tcp.send.bytes)" => "$instance TCP sent",
                "matchinst(/^${cgroup:regex}$/, bcc.cgroup.net.tcp.recv.bytes)" => "$instance TCP received"),
        ],
    },
    Dashboard {
        id: "agent",
        title: "eBPF agent",
        choice: None,
        panels: &[
            columns!("Modules", "What each module is doing, and why one does not run.", "", "bcc.agent.module.": "state" "status"),
            columns!("Kernel", "What the kernel offers to BPF programs.", "", "bcc.agent.kernel.": "feature" "status"),
            panel!(Lines "Lost events", "Events a second that modules had no room for.", "", in "cps": "bcc.agent.lost.events" => "$instance"),
            panel!(Lines "Processor time", "Of the agent, and of BPF programs while statistics are on (pmstore bcc.agent.program.stats 1).", "", in "percentunit":
                "bcc.agent.summary.cpu.agent" => "agent",
                "bcc.agent.summary.cpu.programs" => "programs"),
            panel!(Lines "Memory", "Of maps and programs in the kernel, and of the agent's process.", "", in "bytes":
                "bcc.agent.summary.memory.kernel" => "kernel",
                "bcc.agent.memory.resident" => "agent"),
            panel!(Table "Tables", "How full the maps of modules are.", "":
                "bcc.agent.map.entries.used" => "used",
                "bcc.agent.map.entries.capacity" => "of",
                "bcc.agent.map.memory" => "bytes"),
        ],
    },
];

/// Series of the chosen hosts and disks.
macro_rules! chosen {
    ($series:literal) => {
        concat!($series, "{instance=~\"$host\",disk=~\"$disk\"}")
    };
}

/// Buckets of the chosen hosts and disks, together.
macro_rules! chosen_buckets {
    ($series:literal) => {
        concat!("sum by (le) (increase(", $series, "{instance=~\"$host\",disk=~\"$disk\"}[$__rate_interval]))")
    };
}

/// The dashboard for Prometheus: what consumers/prometheus/scrape.yml reads, and the series that corebcc.rules.yml records.
pub static PROMETHEUS_DASHBOARD: Dashboard = Dashboard {
    id: "fleet",
    title: "eBPF of all hosts",
    choice: None,
    panels: &[
        panel!(Number "Hosts", "How many hosts have an agent that answers.", "": "count(count by (instance) (bcc_agent_module_up))" => "hosts"),
        panel!(Number "Modules down", "How many modules do not run; pminfo -f bcc.agent.module.status on the host says why.", "":
            "sum(1 - bcc_agent_module_up{instance=~\"$host\"})" => "down"),
        panel!(Number "Lost events", "Events a second that modules had no room for.", "", in "cps":
            "sum(rate(bcc_agent_lost_events{instance=~\"$host\"}[5m]))" => "lost"),
        panel!(HeatMap "Reads of disks by latency", "How many reads of the chosen hosts took how long.", "biolatency prometheus", in "s":
            chosen_buckets!("bcc_disk_dev_read_total_seconds_bucket") => "{{le}}"),
        panel!(HeatMap "Writes to disks by latency", "How many writes of the chosen hosts took how long.", "biolatency prometheus", in "s":
            chosen_buckets!("bcc_disk_dev_write_total_seconds_bucket") => "{{le}}"),
        panel!(Lines "All disks together", "Quantiles of the reads and writes of all chosen hosts, from their added buckets.", "biolatency prometheus", in "s":
            "histogram_quantile(0.5, sum by (le) (rate(bcc_disk_dev_read_total_seconds_bucket{instance=~\"$host\"}[5m])))" => "reads p50",
            "histogram_quantile(0.99, sum by (le) (rate(bcc_disk_dev_read_total_seconds_bucket{instance=~\"$host\"}[5m])))" => "reads p99",
            "histogram_quantile(0.99, sum by (le) (rate(bcc_disk_dev_write_total_seconds_bucket{instance=~\"$host\"}[5m])))" => "writes p99"),
        panel!(Lines "Requests of disks", "Requests a second that completed, by host.", "biolatency prometheus", in "iops":
            "sum by (instance) (rate(bcc_disk_dev_read_total_seconds_count{instance=~\"$host\"}[5m]))" => "{{instance}} reads",
            "sum by (instance) (rate(bcc_disk_dev_write_total_seconds_count{instance=~\"$host\"}[5m]))" => "{{instance}} writes"),
        panel!(Lines "Slowest disks, reads", "The ten disks with the highest p99 of reads.", "biolatency prometheus", in "s":
            concat!("topk(10, ", chosen!("corebcc:disk_read_seconds:p99"), ")") => "{{instance}} {{disk}}"),
        panel!(Lines "Slowest disks, writes", "The ten disks with the highest p99 of writes.", "biolatency prometheus", in "s":
            concat!("topk(10, ", chosen!("corebcc:disk_write_seconds:p99"), ")") => "{{instance}} {{disk}}"),
        panel!(HeatMap "Waits for a CPU", "How many tasks of the chosen hosts waited how long in a run queue.", "runqlat prometheus", in "s":
            "sum by (le) (increase(bcc_runq_all_seconds_bucket{instance=~\"$host\"}[$__rate_interval]))" => "{{le}}"),
        panel!(Lines "Run queue", "The ten hosts with the highest p99 of waits for a CPU.", "runqlat prometheus", in "s":
            "topk(10, corebcc:runq_seconds:p99{instance=~\"$host\"})" => "{{instance}}"),
    ],
};
