//! One module on the running kernel, for tests: loads it from options, and reads its table by column.

#![allow(dead_code)] // each test program uses a part of this

use corebcc::collector::{members, Group};
use corebcc::config::Config;
use corebcc::kit::{instances, Key, Table};
use corebcc::modules::{find, MODULES};
use corebcc::pcp::Atom;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// A loaded module.
pub struct Running {
    group: Group,
    columns: usize,
}

/// A row: its identifier or number, its name, its values.
#[derive(Debug)]
pub struct Row {
    pub id: u32,
    pub name: String,
    pub values: Vec<Option<String>>,
}

impl Row {
    pub fn number(&self, column: usize) -> Option<u64> {
        self.values[column].as_ref().map(|value| value.parse().unwrap())
    }
}

impl Running {
    /// Loads a module with these lines in its section; `None` (and a line that says so) if the kernel does not let it.
    pub fn new(test: &str, module: &str, options: &str) -> Option<Running> {
        let spec = find(module).unwrap();
        let text = format!("[pmda]\nmodules = {module}\n[{module}]\nmodule = {module}\ncluster = 1\n{options}\n");
        let config = Config::parse("test.conf", text.as_bytes()).unwrap();
        let (settings, instances) = instances(&config, MODULES).unwrap();
        let (members, constants) = members(&config, &instances, settings.process_refresh).unwrap();
        let group = Group::load(members, &constants, None);
        if let [Err(failure)] = group.fates().as_slice() {
            println!("skipped: {test}: {}; {}", failure.reason, failure.words);
            return None;
        }
        println!("{:?}", group.attached());
        Some(Running { group, columns: spec.metrics.len() })
    }

    /// The hooks that are attached.
    pub fn hooks(&self) -> Vec<&'static str> {
        self.group.attached().iter().map(|(hook, _)| *hook).collect()
    }

    pub fn tick(&mut self) {
        self.group.tick();
    }

    /// The table as of now.
    pub fn rows(&mut self) -> Vec<Row> {
        let mut table = Table::new(self.columns);
        self.group.refresh(0, &mut table).unwrap();
        let value = |row, column| {
            Some(match table.value(row, column)? {
                Atom::U32(number) => number.to_string(),
                Atom::I32(number) => number.to_string(),
                Atom::U64(number) => number.to_string(),
                Atom::Str(text) => String::from_utf8_lossy(text).into_owned(),
                other => panic!("{other:?}: a type no module has"),
            })
        };
        let row = |(row, key): (usize, &Key)| {
            let text = |range| String::from_utf8_lossy(table.text(range)).into_owned();
            let (id, name) = match key {
                Key::Index(index) => (*index, index.to_string()),
                Key::Pid(id, name) | Key::Numbered(id, name) => (*id, text(name)),
                Key::Name(name) => (row as u32, text(name)),
                Key::Single => (0, String::new()),
            };
            Row { id, name, values: (0..self.columns).map(|column| value(row, column)).collect() }
        };
        table.keys().iter().enumerate().map(row).collect()
    }

    /// One column by name, where it has values.
    pub fn numbers(&mut self, column: usize) -> BTreeMap<String, u64> {
        self.rows().into_iter().filter_map(|row| Some((row.name.clone(), row.number(column)?))).collect()
    }
}

/// Where [`i386_program`] has the first byte of its code.
pub const I386_CODE: u32 = 0x0804_8054;

/// Writes an executable of 32 bits with this code; false (and a line that says so) if the kernel does not run it.
pub fn i386_program(test: &str, path: &Path, code: &[u8]) -> bool {
    let size = 84 + code.len() as u32;
    let base = I386_CODE - 84;
    let half = |number: u16| number.to_le_bytes().to_vec();
    let word = |number: u32| number.to_le_bytes().to_vec();
    // The header of the file, then of its one segment.
    let mut elf = b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    elf.extend([half(2), half(3), word(1), word(I386_CODE), word(52), word(0), word(0)].concat());
    elf.extend([half(52), half(32), half(1), half(0), half(0), half(0)].concat());
    elf.extend([1, 0, base, base, size, size, 5, 4096].into_iter().flat_map(word));
    elf.extend(code);
    std::fs::write(path, elf).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    let result = Command::new(path).status();
    if let Err(error) = &result {
        println!("skipped: {test}: a kernel that runs 32-bit programs for x86 ({error})");
    }
    result.is_ok()
}
