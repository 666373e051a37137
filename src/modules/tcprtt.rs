//! Round-trip times of TCP, in all and by remote network. Kernel side: bpf/tcprtt.bpf.c.

use super::shared::groups::tell;
use super::shared::numbers::{by_network, set_networks, NETWORKS};
use super::shared::places::{ByPlace, PlacedHistograms};
use super::shared::tcp::STATE;
use crate::bpf::types::{self, mark, place_owner, rtt_peer, rtt_row};
use crate::kit::*;
use crate::{beyond, maps, options, tracepoint};

mod times {
    const SMOOTHED: &str = "Smoothed by the kernel (RFC 6298): of each session when it closes, or with samples = segment after each segment that came.";
    const LEAST: &str =
        "The least that the kernel measured in the last minutes of each session (tcp_min_rtt_wlen), when it closes.";
    crate::histograms! {
        "net.tcp";
        tables "all sessions", "each bucket", 465 466 469, Shape::Single;
        1 "rtt" "round trips of TCP" "from segment to acknowledgement" SMOOTHED;
        2 "minrtt" "TCP sessions that closed" "of their least round trip" LEAST;
        with UNTIMED: u64 = 0 "rtt.untimed.count" COUNTER COUNT "TCP sessions that closed without a round-trip time";
    }
    use super::*;

    const ROW: SeriesRows<rtt_row> = SeriesRows::of_one(ROWS);

    pub static SERIES_OF_ONE: SeriesDef = SeriesDef {
        tables: TABLES,
        histograms: &[ROW.part(rtt_row::rtt), ROW.part(rtt_row::minrtt)],
        counters: &[(UNTIMED, ROW.part(rtt_row::untimed))],
        ..SeriesDef::NEW
    };
}

mod peers {
    const NOTE: &str =
        "Series are networks of the remote address (option \"networks\"). The series \"other\" has sessions with networks that are not in the \
                        list, and with those without a row of their own, when 1,024 have one.";
    crate::histograms! {
        "net.tcp";
        tables "each network", "each bucket of each network", 467 468 2011, Shape::Named { max: 1 << 12 }, if "networks";
        1 "rtt.peer" "round trips of TCP to the network" "from segment to acknowledgement" NOTE;
        with SESSIONS: u64 = 0 "peer.sessions.count" COUNTER COUNT "TCP sessions with the network that closed";
        with RETRANS: u64 = 1 "peer.retrans.count" COUNTER COUNT "segments that were sent again in TCP sessions with the network, counted when these close";
        with NAME: str = 2 "peer.name" DISCRETE NONE "network, for the variables of a dashboard";
    }
    use super::*;

    pub static BY_NETWORK: ByPlace<rtt_peer> = ByPlace {
        owners: NETS,
        rows: PEERS,
        marks: MARKS,
        histograms: &[rtt_peer::rtt],
        counters: &[(SESSIONS, rtt_peer::sessions), (RETRANS, rtt_peer::retrans)],
        name: NAME,
        beyond: beyond!("networks-full: sessions with networks", counted, [rtt_peer::sessions]),
    };
}

maps! {
    rows ROWS: rtt_row = "rtt_rows";
    rows NETS: place_owner = "rtt_nets", taken id;
    rows PEERS: rtt_peer = "rtt_peers", taken used, marked in "rtt_marks";
    rows MARKS: mark = "rtt_marks";
}

options! {
    /// Round trips that bcc.net.tcp.rtt counts: one of each session when it closes, or one of each segment that came. Segments cost 40 ns each.
    samples: Samples = Samples::Session;
    /// Count by remote network, too, as bcc.net.tcp.rtt.peer and bcc.net.tcp.peer: by prefix, or those of a list.
    networks: Networks = Networks::default();
    histograms;
}

/// Moments at which a round-trip time is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Samples {
    Session,
    Segment,
}

impl OptionType for Samples {
    const EXPECTED: &'static str = "`session` or `segment`";
    fn read(value: &OptionValue<'_>) -> Result<Self, SetupError> {
        match value.text().trim() {
            "session" => Ok(Samples::Session),
            "segment" => Ok(Samples::Segment),
            _ => Err(value.error(Self::EXPECTED)),
        }
    }
    fn show(&self) -> String {
        match self {
            Samples::Session => "session".into(),
            Samples::Segment => "segment".into(),
        }
    }
}

static PROBE: Hook = tracepoint!("tcp_probe", "a kernel with BTF and CONFIG_INET");

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "tcprtt",
    summary: "round-trip times of TCP, by remote network too",
    overhead: Overhead::low("10 ns per change of a TCP socket's state"),
    needs: "CONFIG_INET",
    tables: &[
        &times::TABLE,
        &times::BY_BUCKET,
        &peers::TABLE,
        &peers::BY_BUCKET,
        &times::IN_SECONDS,
        &peers::IN_SECONDS,
    ],
    options: OPTIONS,
    hooks: &[&STATE, &PROBE],
    maps: MAPS,
    make: |setup| Ok(Box::new(Tcprtt::new(Options::read(setup.section)?))),
    ..Spec::NEW
};

struct Tcprtt {
    options: Options,
    times: NamedHistograms,
    peers: Option<PlacedHistograms<rtt_peer>>,
}

impl Tcprtt {
    fn new(options: Options) -> Tcprtt {
        let (window, buckets) = (options.window.window(), options.buckets);
        let times = NamedHistograms::of_one(&times::SERIES_OF_ONE, window, buckets);
        let peers = by_network(&peers::BY_NETWORK, &options.networks, window, buckets);
        Tcprtt { options, times, peers }
    }
}

impl Module for Tcprtt {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        plan.attach(&STATE);
        if self.options.samples == Samples::Segment {
            constants.rtt_segments = true;
            plan.attach(&PROBE);
        }
        plan.entries(ROWS.def.name, host.cpus);
        if let Some(peers) = &self.peers {
            let Some(size) = peers.plan(NETWORKS, host, plan) else { return };
            constants.rtt_by_net = true;
            (constants.rtt_mask, constants.rtt_shift) = (size.mask, size.shift);
            constants.rtt_shared = size.shift > 0;
            tell(size.shift, "a network", "10 ns more per session or segment");
            set_networks(&self.options.networks, &mut constants.rtt_networks);
        }
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        let (prometheus, has_peers) = (self.options.prometheus, self.peers.is_some());
        NamedHistograms::add_tables(Running::of(*self), &[&times::SERIES_OF_ONE], prometheus, |module| {
            Some(&mut module.times)
        })
        .when(has_peers, |running| {
            PlacedHistograms::add_tables(running, peers::TABLES, prometheus, |module| module.peers.as_mut())
        })
        .started()
    }
}
