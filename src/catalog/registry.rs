//! The enabled modules as the agent sees them: names, descriptors, instances and values.

use super::enabled::ServedTable;
use super::instances::Instances;
use super::table_error::TableError;
use super::{histogram_help, Change, Clients, Controllers, Help};
use crate::agent::{Changes, Client, Label, LabelValue, Run, Selected, Source, Subject};
use crate::kit::{EveryMinute, Log2, MetricDef, SeriesLabel, Shape, Table, TableId};
use crate::pcp::{Atom, Desc, Indom, InstId, PmErr, Pmid, Type, IN_NULL};
use crate::state::Writer;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// Number of values that are passed on at once.
const RUN: usize = 64;

/// Time for which the instance domain of a removed table is still served, without instances: pmlogger asks for the instances of a
/// metric just after fetching it, and ends at an error.
const GONE: Duration = Duration::from_secs(600);

/// The thread that loads and refreshes the modules, as the thread that answers pmcd sees it.
pub trait Collect {
    /// Returns, once, when loading is over: all tables, each with the reason if it is not served.
    fn loaded(&mut self) -> Option<Vec<(TableId, Result<(), TableError>)>>;

    /// Returns the changes since the last call, in order.
    fn changes(&mut self) -> Vec<Change> {
        Vec::new()
    }

    /// Orders that modules are brought in line with the files. Nobody waits for it.
    fn reload(&mut self) {}

    /// True if a column takes orders, which only some clients may give.
    fn is_control(&self, _table: TableId, _column: usize) -> bool {
        false
    }

    /// Detaches all programs.
    fn stop(&mut self);

    /// True if the thread has panicked, so that no values will come any more.
    fn is_lost(&self) -> bool {
        false
    }

    /// Counts a fetch.
    fn fetch_begins(&mut self) {}

    /// Stores a value, given as text, in a column of a table, for an instance by its name (empty without instances). Returns
    /// [`TableError::Late`] if the answer does not come within a second, or within three for an order.
    fn store(&mut self, table: TableId, column: usize, instance: &[u8], value: &[u8]) -> Result<(), TableError>;

    /// Returns the tables that were too late for the request that wanted them, each with true if its module takes longer than a
    /// request waits.
    fn late(&mut self, _back: &mut dyn FnMut(TableId, Table, Result<(), TableError>, bool)) {}

    /// Refreshes these tables. They are back within a second, with the result; those whose module takes longer come back by
    /// [`Collect::late`].
    fn refresh(
        &mut self,
        tables: &mut dyn Iterator<Item = (TableId, Table)>,
        back: &mut dyn FnMut(TableId, Table, Result<(), TableError>),
    );
}

struct TableEntry {
    served: ServedTable,
    /// Result of loading and of the last refresh.
    state: Result<(), TableError>,
    /// The table; `None` while the collector has it.
    table: Option<Table>,
    /// True if the table was too late for a fetch because its module is slow: the next fetch uses it as it is.
    overdue: bool,
    instances: Instances,
    descs: Vec<Desc>,
}

/// All tables that the agent serves.
pub struct Registry {
    domain: u32,
    entries: Vec<TableEntry>,
    /// Clusters of the instance domains of removed tables, with the time of removal.
    gone: HashMap<u32, Instant>,
    /// The writer of the identifiers of names.
    writer: Option<Arc<Writer>>,
    clients: Clients,
    /// Changes that were not announced in a fetch yet.
    changes: Changes,
    help: Help,
    collector: Box<dyn Collect>,
    loaded: bool,
    /// Limits log lines about refused stores of several values, which any client may try.
    refusals: EveryMinute,
}

impl Registry {
    /// Serves these tables under a domain number. Identifiers of names are kept if there is a writer.
    pub fn new(
        domain: u32,
        tables: impl IntoIterator<Item = ServedTable>,
        help: Help,
        writer: Option<Arc<Writer>>,
        collector: Box<dyn Collect>,
    ) -> Registry {
        Registry {
            domain,
            entries: tables.into_iter().map(|served| TableEntry::new(domain, writer.as_deref(), served)).collect(),
            gone: HashMap::new(),
            writer,
            clients: Clients::default(),
            changes: Changes::empty(),
            help,
            collector,
            loaded: false,
            refusals: EveryMinute::default(),
        }
    }

    /// Takes the results of the collector. Returns true once loading is over.
    pub fn poll(&mut self) -> bool {
        if let Some(outcomes) = self.collector.loaded() {
            for (id, outcome) in outcomes {
                if let Some(entry) = self.entries.iter_mut().find(|entry| entry.served.id == id) {
                    entry.state = outcome;
                }
            }
            self.loaded = true;
        }
        for change in self.collector.changes() {
            self.apply(change);
        }
        self.loaded
    }

    /// Removes and adds tables. Clients find them by their names.
    fn apply(&mut self, Change { removed, added, controllers }: Change) {
        controllers.into_iter().for_each(|controllers| self.clients.allow(controllers));
        if removed.is_empty() && added.is_empty() {
            return;
        }
        let Registry { domain, entries, writer, changes, .. } = self;
        let now = SystemTime::now();
        self.gone.retain(|_, went| went.elapsed() < GONE);
        for entry in entries.iter_mut().filter(|entry| removed.contains(&entry.served.id)) {
            if let Some(writer) = writer {
                entry.instances.save(now, true, writer);
            }
            if entry.served.spec.shape != Shape::Single {
                self.gone.insert(entry.served.id.cluster(), Instant::now());
            }
        }
        entries.retain(|entry| !removed.contains(&entry.served.id));
        for (served, state) in added {
            if entries.iter().any(|entry| entry.served.id == served.id) {
                log::error!("{}: cluster {} is another table's", served.section, served.id.cluster());
                continue;
            }
            let entry = TableEntry::new(*domain, writer.as_deref(), served);
            entries.push(TableEntry { state, ..entry });
        }
        *changes |= Changes::NAMES;
    }

    /// Brings modules in line with the files.
    pub fn reload(&mut self) {
        self.collector.reload();
    }

    /// Sets the users and groups of clients that may give orders.
    pub fn allow(&mut self, controllers: Controllers) {
        self.clients.allow(controllers);
    }

    /// True if no values will come any more, because of a panic in the collector.
    pub fn is_lost(&self) -> bool {
        self.collector.is_lost()
    }

    /// Returns the names of the modules that could not be loaded.
    pub fn failed_modules(&self) -> Vec<&str> {
        let failed = self.entries.iter().filter(|entry| entry.has_failed());
        let mut names: Vec<&str> = Vec::new();
        for name in failed.map(|entry| entry.served.section.as_str()) {
            if !names.contains(&name) {
                names.push(name); // once for all of its tables
            }
        }
        names
    }

    /// Writes the state that outlives the agent. Must be called before [`Registry::stop`], since a pmcd that ends kills its agents a
    /// tenth of a second after closing their connections (`Shutdown` in pmcd.c), and before the connection is closed, since pmcd may
    /// then start the next agent, which reads that state.
    pub fn save(&mut self) {
        let Some(writer) = &self.writer else { return };
        for entry in &mut self.entries {
            entry.instances.save(SystemTime::now(), true, writer);
        }
        writer.finish();
    }

    /// Detaches all programs.
    pub fn stop(&mut self) {
        self.collector.stop();
    }

    fn entry(&self, cluster: u32) -> Option<usize> {
        self.entries.iter().position(|entry| entry.served.id.cluster() == cluster)
    }

    fn metric(&self, pmid: Pmid) -> Result<(&TableEntry, usize), PmErr> {
        let entry = (pmid.domain() == self.domain).then(|| self.entry(pmid.cluster())).flatten().ok_or(PmErr::PMID)?;
        let entry = &self.entries[entry];
        let column = entry.served.spec.metrics.iter().position(|metric| metric.item == pmid.item());
        column.map(|column| (entry, column)).ok_or(PmErr::PMID)
    }

    fn indom(&self, indom: Indom) -> Option<usize> {
        let entry = (indom.domain() == self.domain).then(|| self.entry(indom.serial())).flatten()?;
        (self.entries[entry].served.spec.shape != Shape::Single).then_some(entry)
    }

    /// Refreshes the tables of the entries that `wanted` selects, and takes back others that were late. It waits only for the former.
    fn refresh_entries(&mut self, wanted: &dyn Fn(&TableEntry) -> bool) {
        self.poll();
        let Registry { entries, collector, writer, .. } = self;
        collector.late(&mut |id, table, result, is_slow| {
            let entry = entries.iter_mut().find(|entry| entry.served.id == id && entry.lacks(&table));
            let Some(entry) = entry else { return };
            entry.take_back(table, result, writer.as_deref());
            entry.overdue = is_slow;
        });
        let mut tables: Vec<(TableId, Table)> = Vec::new();
        for entry in entries.iter_mut() {
            if entry.loaded().is_ok() && !entry.overdue && wanted(entry) {
                tables.extend(entry.table.take().map(|table| (entry.served.id, table)));
            }
        }
        collector.refresh(&mut tables.into_iter(), &mut |id, table, result| {
            if let Some(entry) = entries.iter_mut().find(|entry| entry.served.id == id && entry.lacks(&table)) {
                entry.take_back(table, result, writer.as_deref());
            }
        });
    }
}

impl TableEntry {
    fn new(domain: u32, writer: Option<&Writer>, served: ServedTable) -> TableEntry {
        let (cluster, spec) = (served.id.cluster(), served.spec);
        let name = format!("{domain}.{cluster}");
        let indom = if spec.shape == Shape::Single { Indom::NULL } else { Indom::new(domain, cluster) };
        let desc = |metric: &MetricDef| Desc {
            pmid: Pmid::new(domain, cluster, metric.item),
            ty: metric.ty,
            indom,
            sem: metric.sem,
            units: metric.units,
        };
        TableEntry {
            state: Err(TableError::Loading),
            table: Some(Table::of(spec)),
            overdue: false,
            instances: Instances::new(spec.shape, served.rows, writer.map(|writer| (writer, &name[..]))),
            descs: spec.metrics.iter().map(desc).collect(),
            served,
        }
    }

    fn has_failed(&self) -> bool {
        matches!(self.state, Err(TableError::NotLoaded(_)))
    }

    /// Returns the error code for clients if the table's module is not loaded.
    fn loaded(&self) -> Result<(), PmErr> {
        match &self.state {
            Err(error @ (TableError::Loading | TableError::NotLoaded(_))) => Err(error.code()),
            _ => Ok(()),
        }
    }

    /// True if the collector has the table of this entry and `table` fits it: one that comes back may be that of a module stopped
    /// since.
    fn lacks(&self, table: &Table) -> bool {
        self.table.is_none() && table.fits(self.served.spec)
    }

    fn take_back(&mut self, table: Table, result: Result<(), TableError>, writer: Option<&Writer>) {
        let now = SystemTime::now();
        self.state = result;
        self.instances.update(&table, now);
        if let Some(writer) = writer {
            self.instances.save(now, false, writer);
        }
        self.table = Some(table);
    }
}

impl Source for Registry {
    fn domain(&self) -> u32 {
        self.domain
    }

    fn names(&self) -> Vec<(String, Pmid)> {
        let mut names = Vec::new();
        for TableEntry { served, descs, .. } in &self.entries {
            names.extend(served.names().into_iter().map(|(name, column)| (name, descs[column].pmid)));
        }
        names
    }

    fn desc(&self, pmid: Pmid) -> Result<Desc, PmErr> {
        self.metric(pmid).map(|(entry, column)| entry.descs[column])
    }

    fn refresh(&mut self, pmids: &mut dyn Iterator<Item = Pmid>) {
        self.collector.fetch_begins();
        let mut clusters = [0u64; (Pmid::MAX_CLUSTER as usize + 1) / 64];
        for cluster in pmids.map(Pmid::cluster) {
            clusters[cluster as usize / 64] |= 1 << (cluster % 64);
        }
        let wanted = |entry: &TableEntry| {
            let cluster = entry.served.id.cluster() as usize;
            clusters[cluster / 64] & 1 << (cluster % 64) != 0
        };
        self.refresh_entries(&wanted);
        for entry in self.entries.iter_mut().filter(|entry| wanted(entry)) {
            entry.overdue = false;
        }
    }

    fn values(
        &self,
        _client: Client,
        pmid: Pmid,
        wanted: Selected<'_>,
        out: &mut dyn FnMut(InstId, Atom<'_>),
    ) -> Result<(), PmErr> {
        let (entry, column) = self.metric(pmid)?;
        entry.state.as_ref().map_err(TableError::code)?;
        let table = entry.table.as_ref().ok_or(TableError::Late.code())?;
        for (row, id) in entry.instances.ids().iter().enumerate() {
            if let (Some(id), Some(value)) = (id, table.value(row, column)) {
                if *id == IN_NULL || wanted(*id) {
                    out(*id, value);
                }
            }
        }
        Ok(())
    }

    fn runs(&self, pmid: Pmid, out: &mut dyn FnMut(Run<'_>)) -> bool {
        let Ok((entry, column)) = self.metric(pmid) else { return false };
        let (Ok(()), Some(table), Type::U64) = (&entry.state, &entry.table, entry.descs[column].ty) else {
            return false;
        };
        let (mut run, mut len, ids) = ([(0, 0); RUN], 0, entry.instances.ids());
        // Not a loop: `for_each` goes over each part of a chain by itself, in half the time.
        table.u64s(column).enumerate().for_each(|(row, number)| {
            let (Some(Some(id)), Some(number)) = (ids.get(row), number) else { return };
            run[len] = (*id, number);
            len += 1;
            if len == RUN {
                out(&run);
                len = 0;
            }
        });
        out(&run[..len]);
        true
    }

    fn instances(&mut self, indom: Indom, out: &mut dyn FnMut(InstId, &[u8])) -> Result<(), PmErr> {
        let Some(index) = self.indom(indom) else {
            let is_own = indom.domain() == self.domain && self.entry(indom.serial()).is_none();
            let went = self.gone.get(&indom.serial()).filter(|went| is_own && went.elapsed() < GONE);
            return went.map(|_| ()).ok_or(PmErr::INDOM);
        };
        let id = self.entries[index].served.id;
        self.refresh_entries(&|entry| entry.served.id == id);
        let entry = &self.entries[index];
        let late = entry.table.is_none() || entry.state == Err(TableError::Loading);
        if late && !matches!(entry.served.spec.shape, Shape::Rows { .. }) {
            // Not the empty domain: a client would take the instances for gone. And no error where names are known: pmlogger ends
            // at the first one that it gets for an instance domain.
            return entry.instances.each_known(out).ok_or(TableError::Late.code());
        }
        entry.instances.each(entry.table.as_ref(), out);
        Ok(())
    }

    fn text(&self, of: Subject, full: bool) -> Result<Cow<'_, str>, PmErr> {
        let (entry, column) = match of {
            Subject::Metric(pmid) => self.metric(pmid).map(|(entry, column)| (entry, Some(column))).ok(),
            Subject::Indom(indom) => self.indom(indom).map(|entry| (&self.entries[entry], None)),
            Subject::Domain | Subject::Cluster(_) => None,
        }
        .ok_or(PmErr::TEXT)?;
        let (spec, is_of_the_site) = (entry.served.spec, entry.served.is_of_the_site());
        let is_histogram = !spec.histograms.is_empty() && !is_of_the_site;
        let text: Option<Cow<'_, str>> = match column.map(|column| &spec.metrics[column]) {
            Some(metric) if is_of_the_site || !full => Some(metric.oneline.into()),
            Some(metric) if is_histogram => Some(histogram_help::of_metric(spec, metric).into()),
            Some(metric) => self.help.get(&format!("bcc.{}", metric.name), full).map(Cow::from),
            None if is_of_the_site => Some(spec.summary.into()),
            None if is_histogram => {
                histogram_help::of_domain(spec).map(|(oneline, text)| if full { text } else { oneline }.into())
            }
            None => self.help.get(&format!("BCC.{}", spec.cluster), full).map(Cow::from),
        };
        text.ok_or(PmErr::TEXT)
    }

    fn labels(&mut self, of: Subject) -> Result<Vec<Label>, PmErr> {
        Ok(match of {
            Subject::Domain => vec![label("agent", LabelValue::Str("bcc".into()))],
            Subject::Cluster(cluster) => match self.entry(cluster) {
                Some(entry) if self.entries[entry].served.pair().is_some() => {
                    let pair = self.entries[entry].served.pair().unwrap_or_default().to_owned();
                    vec![label("config", LabelValue::Str(pair.into()))]
                }
                Some(entry) if !self.entries[entry].served.section.is_empty() => {
                    let module = self.entries[entry].served.section.clone();
                    vec![label("bcc_module", LabelValue::Str(module.into()))]
                }
                _ => Vec::new(),
            },
            Subject::Indom(indom) => match self.indom(indom).map(|entry| self.entries[entry].served.spec.shape) {
                Some(Shape::Log2(_) | Shape::Seconds { .. }) => {
                    vec![label("statistic", LabelValue::Str("histogram".into()))]
                }
                Some(Shape::Buckets { .. }) => vec![
                    label("bound_unit", LabelValue::Str("microsec".into())),
                    label("statistic", LabelValue::Str("histogram".into())),
                ],
                _ => Vec::new(),
            },
            Subject::Metric(pmid) => match self.metric(pmid).map(|(entry, _)| entry.served.spec.metric_type) {
                Ok("") | Err(_) => Vec::new(),
                Ok(kind) => vec![label("metrictype", LabelValue::Str(kind.into()))],
            },
        })
    }

    fn instance_labels(&mut self, indom: Indom, wanted: Selected<'_>, out: &mut dyn FnMut(InstId, Vec<Label>)) {
        let Some(index) = self.indom(indom) else { return };
        let (id, shape) = (self.entries[index].served.id, self.entries[index].served.spec.shape);
        if self.entries[index].table.as_ref().is_some_and(Table::is_empty) {
            self.refresh_entries(&|entry| entry.served.id == id);
        }
        let entry = &self.entries[index];
        entry.instances.each_row(entry.table.as_ref(), &mut |row, id, _| {
            if !wanted(id) {
                return;
            }
            let mut labels = Vec::new();
            if let Shape::Log2(_) = shape {
                let (low, high) = Log2::bounds(id);
                let bound = |bound: u64| LabelValue::Int(i64::try_from(bound).unwrap_or(i64::MAX));
                labels.extend([label("lower_bound", bound(low)), label("upper_bound", bound(high))]);
            }
            let of_row = entry.table.iter().flat_map(|table| table.bucket(row).into_iter().chain(table.labels(row)));
            labels.extend(of_row.flatten().map(|(name, value)| label(name, value_of(value))));
            out(id, labels);
        });
    }

    /// Checks that a store has at most one order: pmcd waits for the answer, and serves nobody meanwhile. `pmstore` without `-i` is
    /// an order to every module.
    fn may_store(&mut self, client: Client, metrics: &[Pmid], values: usize) -> Result<(), PmErr> {
        let is_order = |pmid: &Pmid| {
            self.metric(*pmid).is_ok_and(|(entry, column)| self.collector.is_control(entry.served.id, column))
        };
        if values <= 1 || !metrics.iter().any(is_order) {
            return Ok(());
        }
        self.clients.may_control(client)?;
        if let Some(more) = self.refusals.due() {
            log::warn!(
                "expected one value to store, got {values}; name one instance, as `pmstore -i MODULE` does{more}"
            );
        }
        Err(PmErr::BADSTORE)
    }

    fn store(&mut self, client: Client, pmid: Pmid, inst: InstId, value: &Atom<'_>) -> Result<(), PmErr> {
        let (_, column) = self.metric(pmid)?;
        let index = self.entry(pmid.cluster()).ok_or(PmErr::PMID)?;
        let entry = &self.entries[index];
        entry.loaded()?;
        let id = entry.served.id;
        if self.collector.is_control(id, column) {
            self.clients.may_control(client)?;
        }
        let mut instance = Vec::new();
        entry.instances.each(entry.table.as_ref(), &mut |other, name| {
            if other == inst {
                name.clone_into(&mut instance);
            }
        });
        let stored = match value {
            // No metric that can be changed is anything else.
            Atom::Str(text) => self.collector.store(id, column, &instance, text),
            Atom::U32(number) => self.collector.store(id, column, &instance, number.to_string().as_bytes()),
            _ => Err(TableError::ReadOnly),
        };
        self.poll();
        stored.map_err(|error| error.code())
    }

    fn attribute(&mut self, client: Client, attribute: u32, value: &[u8]) {
        self.clients.learn(client, attribute, value);
    }

    fn client_gone(&mut self, client: Client) {
        self.clients.forget(client);
    }

    fn clients_unknown(&mut self) {
        self.clients.forget_all();
    }

    fn idle(&mut self) {
        // A table that came late is what the next fetch uses.
        for entry in self.entries.iter_mut().filter(|entry| entry.table.is_some() && !entry.overdue) {
            entry.table = Some(Table::of(entry.served.spec));
        }
    }

    fn take_changes(&mut self) -> Changes {
        std::mem::replace(&mut self.changes, Changes::empty())
    }
}

fn label(name: &'static str, value: LabelValue) -> Label {
    Label { name: name.into(), value, optional: false }
}

fn value_of(value: &SeriesLabel) -> LabelValue {
    match value {
        SeriesLabel::Text(text) => LabelValue::Str(text.clone().into()),
        SeriesLabel::Number(number) => LabelValue::Int(*number),
        SeriesLabel::Flag(flag) => LabelValue::Bool(*flag),
    }
}
