//! The BPF object compared with the declarations, opened without being loaded: no privilege is needed.

#![allow(clippy::unwrap_used)]

use corebcc::bpf::OBJECT;
use corebcc::kit::{Hook, MapDef, MapKind, Tier};
use corebcc::modules::MODULES;
use corebcc::process::Filters;
use libbpf_rs::{MapType, ObjectBuilder, OpenObject};
use std::collections::BTreeSet;

/// Iterates over the modules and the filter: name, maps, hooks.
fn parts() -> impl Iterator<Item = (&'static str, &'static [MapDef], &'static [&'static Hook])> {
    let modules = MODULES.iter().map(|spec| (spec.name, spec.maps, spec.hooks));
    modules.chain([(Filters::SPEC.name, Filters::SPEC.maps, Filters::SPEC.hooks)])
}

fn open() -> OpenObject {
    ObjectBuilder::default().open_memory(OBJECT.bytes).unwrap()
}

#[test]
fn every_declared_map_is_in_the_object_as_declared() {
    const BPF_F_MMAPABLE: u32 = 1 << 10;
    let object = open();
    for (module, def) in parts().flat_map(|(name, maps, _)| maps.iter().map(move |def| (name, *def))) {
        let MapDef { name, kind, value_size, .. } = def;
        let map = object.maps().find(|map| map.name() == name).unwrap_or_else(|| panic!("{module}: no map {name}"));
        let wanted = match kind {
            MapKind::Rows | MapKind::Private => MapType::Array,
            MapKind::ByCpu => MapType::PercpuArray,
            MapKind::Ring => MapType::RingBuf,
            MapKind::Hash => MapType::Hash,
        };
        assert_eq!(map.map_type(), wanted, "{module}: {name}");
        assert!(name.len() <= 15, "{module}: {name} is longer than the kernel keeps (BPF_OBJ_NAME_LEN)");
        if kind != MapKind::Ring {
            assert_eq!(map.value_size() as usize, value_size, "{module}: {name}: the size of a value");
        }
        if !matches!(kind, MapKind::Ring | MapKind::Hash) {
            assert_eq!(map.key_size(), 4, "{module}: {name}: the size of an index");
        }
        if kind == MapKind::Rows {
            assert_ne!(map.map_flags() & BPF_F_MMAPABLE, 0, "{module}: {name}: not mapped without BPF_F_MMAPABLE");
            assert_eq!(value_size % 8, 0, "{module}: {name}: rows are words");
            // A row of counters that ends within a cache line shares that line with the next row, which another CPU writes.
            let is_whole = value_size < 64 || value_size % 64 == 0;
            assert!(is_whole, "{module}: {name}: rows of {} words, expected a multiple of 8", value_size / 8);
        }
    }
}

/// Requests and threads that never end leave their start behind: in an array the next one overwrites it, while a hash
/// map fills up. (The hash maps of the filter are emptied as processes end. Indexes of rows in bio_owners have an owner
/// permanently.)
#[test]
fn modules_keep_what_begins_in_arrays() {
    let object = open();
    let maps = MODULES.iter().flat_map(|spec| spec.maps).filter(|def| def.name != "bio_owners");
    for def in maps.filter(|def| !matches!(def.kind, MapKind::Ring | MapKind::ByCpu)) {
        let map = object.maps().find(|map| map.name() == def.name).unwrap();
        assert_eq!(map.map_type(), MapType::Array, "{}", def.name);
    }
}

#[test]
fn every_map_of_the_object_belongs_to_a_module() {
    let declared: BTreeSet<&str> = parts().flat_map(|(_, maps, _)| maps).map(|def| def.name).collect();
    for map in open().maps() {
        let name = map.name().to_string_lossy();
        assert!(
            declared.contains(name.as_ref()) || name.ends_with(".rodata") || name.ends_with(".bss"),
            "{name}: nobody would create it"
        );
    }
}

#[test]
fn every_tier_names_programs_and_the_module_has_a_part_in_it() {
    let object = open();
    for (name, _, hooks) in parts() {
        for (hook, tier) in hooks.iter().flat_map(|hook| hook.tiers.iter().map(move |tier| (hook, tier))) {
            assert!(!tier.programs.is_empty(), "{name}: {}: {} has no program", hook.name, tier.kind);
            for program in tier.programs {
                assert!(object.progs().any(|there| there.name() == *program), "{name}: no program {program}");
            }
            // Not in all of them: modules share hooks, and the loader leaves out what no module that is on takes part in.
            let part = |program: &&str| {
                OBJECT.programs.iter().any(|(known, modules)| known == program && modules.contains(&name))
            };
            assert!(tier.programs.iter().any(part), "{}: {name} has no part in {}", hook.name, tier.kind);
        }
    }
}

#[test]
fn every_part_of_a_module_is_reached_by_one_of_its_hooks() {
    for (program, modules) in OBJECT.programs {
        // One part makes two programs, and a way to attach may want one of them only.
        let (kind, at) = program.split_once("__").unwrap();
        let pairs = [["tp", "raw"], ["fentry", "kprobe"], ["fexit", "kretprobe"]];
        let forms = pairs.into_iter().find(|pair| pair.contains(&kind)).map_or([kind; 2], |pair| pair);
        let forms = forms.map(|kind| format!("{kind}__{at}"));
        for module in *modules {
            let (_, _, hooks) =
                parts().find(|(name, _, _)| name == module).unwrap_or_else(|| panic!("no module {module}"));
            let named = |tier: &Tier| tier.programs.iter().any(|program| forms.iter().any(|form| form == program));
            let reached = hooks.iter().flat_map(|hook| hook.tiers).any(named);
            assert!(reached, "{module}: {program} is in the object but in no tier of its hooks");
        }
    }
}

#[test]
fn the_object_is_under_the_gpl_and_asks_each_feature_once() {
    let object = open();
    assert!(object.progs().any(|program| program.name() == "ask_features"));
    assert_eq!(
        OBJECT.features.iter().collect::<BTreeSet<_>>().len(),
        OBJECT.features.len(),
        "a feature asked for twice"
    );
}
