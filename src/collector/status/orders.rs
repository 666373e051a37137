//! What became of the orders that clients gave to change what runs.

use super::super::guard::held;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// What became of the last order to each section, and, under no name, of the last one for all.
#[derive(Default)]
pub struct Orders(Mutex<BTreeMap<String, Section>>);

#[derive(Default)]
struct Section {
    /// Orders that are not carried out yet.
    waiting: usize,
    said: String,
}

impl Orders {
    /// Notes that an order was given.
    pub fn begin(&self, section: &str) {
        held(&self.0).entry(section.to_owned()).or_default().waiting += 1;
    }

    /// Notes what became of the first order that waits. Whoever reads it finds the names and metrics that follow from the order.
    pub fn end(&self, section: &str, said: String) {
        let mut sections = held(&self.0);
        let section = sections.entry(section.to_owned()).or_default();
        *section = Section { waiting: section.waiting.saturating_sub(1), said };
    }

    /// What became of the last order, `under way` while one waits; nothing where there was none.
    pub fn said(&self, section: &str) -> String {
        match held(&self.0).get(section) {
            Some(Section { waiting: 0, said }) => said.clone(),
            Some(_) => "under way".into(),
            None => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_under_way_until_the_last_one_is_done() {
        let orders = Orders::default();
        orders.begin("biotop");
        orders.begin("biotop");
        orders.end("biotop", "done".into());
        assert_eq!((orders.said("biotop").as_str(), orders.said("").as_str()), ("under way", ""));
        orders.end("biotop", "nothing has changed".into());
        assert_eq!(orders.said("biotop"), "nothing has changed");
    }
}
