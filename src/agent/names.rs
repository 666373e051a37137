//! The agent's part of the name space: complete names in the order of a tree walk, so that the names at or below a node
//! are contiguous. Answers the four PMNS requests.

use crate::{
    pcp::{PmErr, Pmid},
    pdu::Pdu,
};

/// Complete metric names and their identifiers, sorted component by component; a node `summary` comes before its siblings.
#[derive(Debug, Default)]
pub struct Names(Vec<(Vec<u8>, Pmid)>);

/// A direct child of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Child<'a> {
    /// Last component of its name.
    pub name: &'a [u8],
    /// True for a metric, false for a node with children of its own.
    pub leaf: bool,
}

impl Names {
    /// Makes the name space from names in any order, perhaps repeated; several names may share an identifier.
    pub fn new(names: Vec<(String, Pmid)>) -> Names {
        let mut sorted: Vec<_> = names.into_iter().map(|(name, pmid)| (name.into_bytes(), pmid)).collect();
        sorted.sort_by(|(a, _), (b, _)| components(a).cmp(components(b)));
        sorted.dedup();
        Names(sorted)
    }

    /// Answers a PMNS request; ignores other PDUs.
    pub fn reply(&self, request: &Pdu<'_>, out: &mut Vec<u8>) -> Result<(), PmErr> {
        const LEAF: i32 = 0;
        const NONLEAF: i32 = 1;
        let names = match request {
            Pdu::PmnsNames { names } => {
                let &[(_, name)] = names.as_slice() else { return Err(PmErr::NAME) };
                let pmid = self.pmid(name).ok_or(PmErr::NAME)?;
                Pdu::PmnsIds { status: 0, ids: vec![pmid] }.encode(0, out);
                return Ok(());
            }
            Pdu::PmnsIds { ids, .. } => {
                let &[pmid] = ids.as_slice() else { return Err(PmErr::PMID) };
                some(self.of(pmid).map(|name| (None, name)).collect()).ok_or(PmErr::PMID)?
            }
            Pdu::PmnsTraverse { name } => {
                some(self.leaves(name).map(|name| (None, name)).collect()).ok_or(PmErr::NAME)?
            }
            Pdu::PmnsChild { statuses, name } => {
                let children = self.children(name).ok_or(PmErr::NAME)?;
                let status = |leaf| statuses.then_some(if leaf { LEAF } else { NONLEAF });
                children.iter().map(|child| (status(child.leaf), child.name)).collect()
            }
            _ => return Err(PmErr::NYI),
        };
        Pdu::PmnsNames { names }.encode(0, out);
        Ok(())
    }

    /// Returns the metric of this name; `None` for an inner node.
    pub fn pmid(&self, name: &[u8]) -> Option<Pmid> {
        self.subtree(name).first().filter(|(first, _)| first == name).map(|&(_, pmid)| pmid)
    }

    /// Iterates over all names of a metric.
    pub fn of(&self, pmid: Pmid) -> impl Iterator<Item = &[u8]> {
        self.0.iter().filter(move |(_, id)| *id == pmid).map(|(name, _)| name.as_slice())
    }

    /// Iterates over the metrics at or below a node; empty if there is no such node.
    pub fn leaves(&self, node: &[u8]) -> impl Iterator<Item = &[u8]> {
        self.subtree(node).iter().map(|(name, _)| name.as_slice())
    }

    /// Returns the direct children of a node: empty for a metric, `None` if there is no such node.
    pub fn children<'a>(&'a self, node: &[u8]) -> Option<Vec<Child<'a>>> {
        let below = self.subtree(node);
        let mut children: Vec<Child> = Vec::new();
        for (name, _) in below {
            // The node itself, if it is a metric, has nothing after its own name.
            let Some((_, rest)) = name.split_at(node.len()).1.split_first() else { continue };
            let end = rest.iter().position(|&byte| byte == b'.');
            let child = Child { name: &rest[..end.unwrap_or(rest.len())], leaf: end.is_none() };
            match children.last_mut() {
                // Sorted: the names below one child are neighbours.
                Some(last) if last.name == child.name => last.leaf &= child.leaf,
                _ => children.push(child),
            }
        }
        (!below.is_empty()).then_some(children)
    }

    /// Returns the names at or below a node, comparing whole components.
    fn subtree(&self, node: &[u8]) -> &[(Vec<u8>, Pmid)] {
        let start = self.0.partition_point(|(name, _)| components(name).lt(components(node)));
        let rest = &self.0[start..];
        &rest[..rest.partition_point(|(name, _)| is_below(name, node))]
    }
}

/// Returns the list unless it is empty.
fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

/// Iterates over the components of a name, each with a flag that sorts before its letters.
fn components(name: &[u8]) -> impl Iterator<Item = (bool, &[u8])> {
    name.split(|&byte| byte == b'.').map(|component| (component != b"summary", component))
}

fn is_below(name: &[u8], node: &[u8]) -> bool {
    name.strip_prefix(node).is_some_and(|rest| rest.is_empty() || rest[0] == b'.')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Names {
        Names::new(list.iter().enumerate().map(|(i, name)| (name.to_string(), Pmid(i as u32))).collect())
    }

    #[test]
    fn a_textual_prefix_is_not_a_parent() {
        let names = names(&["x.ab", "x.a.c", "x.a-b", "x.a.b"]);
        assert_eq!(names.leaves(b"x.a").collect::<Vec<_>>(), [b"x.a.b", b"x.a.c"]);
        assert_eq!(names.pmid(b"x.ab"), Some(Pmid(0)));
        assert_eq!(names.pmid(b"x.a"), None);
        let children = names.children(b"x").unwrap();
        let list: Vec<_> = children.iter().map(|c| (std::str::from_utf8(c.name).unwrap(), c.leaf)).collect();
        assert_eq!(list, [("a", false), ("a-b", true), ("ab", true)]);
    }

    #[test]
    fn a_summary_comes_before_its_siblings_and_is_found() {
        let names = names(&["x.a", "x.summary.b", "x.t", "x.summary.a", "w", "x.summaries"]);
        let all = ["x.summary.a", "x.summary.b", "x.a", "x.summaries", "x.t"];
        assert_eq!(names.leaves(b"x").collect::<Vec<_>>(), all.map(str::as_bytes));
        assert_eq!(names.leaves(b"x.summary").count(), 2);
        assert_eq!(names.pmid(b"x.summary.b"), Some(Pmid(1)));
        assert_eq!(names.children(b"x").unwrap().len(), 4);
    }

    #[test]
    fn nodes_that_are_not_there_have_neither_children_nor_leaves() {
        let names = names(&["x.a", "x.b"]);
        for node in ["", ".", "x.", "x.c", "x.a.b", "y", "x..a", ".x"] {
            assert_eq!(names.children(node.as_bytes()), None, "{node}");
            assert_eq!(names.leaves(node.as_bytes()).count(), 0, "{node}");
            assert_eq!(names.pmid(node.as_bytes()), None, "{node}");
        }
        assert_eq!(Names::default().children(b""), None);
    }

    #[test]
    fn a_metric_has_no_children_and_is_its_own_leaf() {
        let names = names(&["x.a"]);
        assert_eq!(names.children(b"x.a"), Some(vec![]));
        assert_eq!(names.leaves(b"x.a").collect::<Vec<_>>(), [b"x.a"]);
    }

    #[test]
    fn two_names_of_one_metric_are_both_found() {
        let names = Names::new(vec![("x.b".into(), Pmid(1)), ("x.c".into(), Pmid(2)), ("x.a".into(), Pmid(1))]);
        assert_eq!(names.of(Pmid(1)).collect::<Vec<_>>(), [b"x.a", b"x.b"]);
        assert_eq!(names.of(Pmid(9)).count(), 0);
    }
}
