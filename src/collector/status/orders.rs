//! Results of the orders that clients gave.

use super::super::guard::held;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// The result of the last order for each section, and for the agent under the empty name.
#[derive(Default)]
pub struct Orders(Mutex<BTreeMap<String, Section>>);

#[derive(Default)]
struct Section {
    /// Number of orders under way.
    waiting: usize,
    said: String,
}

impl Orders {
    /// Notes that an order was given.
    pub fn begin(&self, section: &str) {
        held(&self.0).entry(section.to_owned()).or_default().waiting += 1;
    }

    /// Notes the result of an order. Its names and metrics are served before a client can read the result.
    pub fn end(&self, section: &str, said: String) {
        let mut sections = held(&self.0);
        let section = sections.entry(section.to_owned()).or_default();
        *section = Section { waiting: section.waiting.saturating_sub(1), said };
    }

    /// Returns the result of the last order, `under way` while there is one, empty if there was none.
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
