//! The agents in memory that a statement is tried on: the reference agent and the product, with what is known of each.

use crate::product::{self, Product};
use crate::reference::pmcd::{self, Pmcd};
use crate::reference::{pmid, Reference, DOMAIN, EMPTY, LAST, THREE};
use corebcc::agent::Source;
use corebcc::pcp::{Desc, Indom, InstId, Pmid};

/// Facts about what an agent serves.
pub struct Facts {
    /// Domain of its identifiers.
    pub domain: u32,
    /// Nodes of its names: the first one, another inner one, and a leaf.
    pub root: &'static str,
    pub inner: &'static str,
    pub leaf: &'static str,
    /// A metric with one value.
    pub single: Pmid,
    /// A metric with a value for each instance of a domain, in the order of their numbers, and a number that none has.
    pub many: Pmid,
    pub indom: Indom,
    pub instances: &'static [(InstId, &'static str)],
    pub missing: InstId,
    /// A metric whose domain has no instances.
    pub empty: (Pmid, Indom),
    /// Identifiers under which nothing is served.
    pub unknown: [Pmid; 3],
    pub unknown_indom: Indom,
    /// A store that is accepted, and one that is not.
    pub store: Vec<u8>,
    pub refused_store: Vec<u8>,
}

impl Facts {
    /// Returns the numbers of the instances.
    pub fn ids(&self) -> Vec<InstId> {
        self.instances.iter().map(|(id, _)| *id).collect()
    }
}

/// An agent with a conversation of its own.
pub trait Served {
    fn facts(&self) -> Facts;
    fn set_slot(&mut self, slot: i32);
    /// Sends one PDU, and returns all replies.
    fn send(&mut self, request: &[u8]) -> Vec<u8>;
    /// Sends a request, and returns the one PDU that answers it, once no module delays it.
    fn ask(&mut self, request: &[u8]) -> Vec<u8>;
    /// Returns the descriptors of all metrics, without aliases.
    fn descs(&self) -> Vec<Desc>;

    #[track_caller]
    fn tell(&mut self, pdu: &[u8]) {
        let out = self.send(pdu);
        assert!(out.is_empty(), "{} answered by {}", pmcd::frame(pdu).ty, out.escape_ascii());
    }

    /// Sends a request that is answered by an ERROR, and returns its code.
    #[track_caller]
    fn error(&mut self, request: &[u8]) -> i32 {
        pmcd::error_code(request, &self.ask(request))
    }

    /// Returns the value sets of these metrics, which are in their order.
    #[track_caller]
    fn fetch(&mut self, pmids: &[Pmid]) -> Vec<pmcd::Set> {
        let sets = pmcd::result(&self.ask(&pmcd::fetch(pmids)));
        assert_eq!(sets.iter().map(|set| set.pmid).collect::<Vec<_>>(), pmids);
        sets
    }
}

/// Tries a statement on each agent.
pub fn each(statement: impl Fn(&mut dyn Served)) {
    println!("the reference agent");
    statement(&mut Pmcd::connected());
    println!("the product");
    statement(&mut Product::started());
}

/// Returns the descriptors of all metrics of a source, without aliases.
pub fn descs(source: &dyn Source) -> Vec<Desc> {
    let mut pmids: Vec<Pmid> = source.names().into_iter().map(|(_, pmid)| pmid).collect();
    pmids.sort();
    pmids.dedup();
    pmids.into_iter().map(|pmid| source.desc(pmid).unwrap()).collect()
}

impl Served for Pmcd<Reference> {
    fn facts(&self) -> Facts {
        Facts {
            domain: DOMAIN,
            root: "capt",
            inner: "capt.v",
            leaf: "capt.v.i32",
            single: pmid(0, 1),
            many: pmid(1, 0),
            indom: THREE,
            instances: &[(0, "bin-100"), (5, "sda 8:0"), (LAST, "last")],
            missing: 6,
            empty: (pmid(2, 0), EMPTY),
            unknown: [pmid(0, 12), pmid(9, 0), pmid(4095, 1023)],
            unknown_indom: Indom::new(DOMAIN, 9),
            store: pmcd::store(pmid(3, 0), corebcc::pcp::IN_NULL, 1),
            refused_store: pmcd::store(pmid(0, 1), corebcc::pcp::IN_NULL, 1),
        }
    }

    fn set_slot(&mut self, slot: i32) {
        self.slot = slot;
    }

    fn send(&mut self, request: &[u8]) -> Vec<u8> {
        self.send(request)
    }

    fn ask(&mut self, request: &[u8]) -> Vec<u8> {
        self.ask(request)
    }

    fn descs(&self) -> Vec<Desc> {
        descs(self.agent.source())
    }
}

impl Served for Product {
    fn facts(&self) -> Facts {
        product::facts()
    }

    fn set_slot(&mut self, slot: i32) {
        self.pmcd.slot = slot;
    }

    fn send(&mut self, request: &[u8]) -> Vec<u8> {
        self.pmcd.send(request)
    }

    fn ask(&mut self, request: &[u8]) -> Vec<u8> {
        self.answer(request)
    }

    fn descs(&self) -> Vec<Desc> {
        descs(self.pmcd.agent.source())
    }
}
