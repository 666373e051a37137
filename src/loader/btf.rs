//! Types of the kernel (Documentation/bpf/btf.rst), read once for loading: the identifiers of functions and
//! tracepoints, and a copy of the few types that the programs name. libbpf would index all hundred thousand of them,
//! and search them linearly for each name.

use super::mapping::Mapping;
use super::outcome::Finding;
use crate::host::btf_encoding::{body, kind, word, KERNEL_TYPES};
use crate::kit::did_you_mean;
use libbpf_rs::libbpf_sys::{self, bpf_btf_info};
use nix::sys::memfd::{memfd_create, MFdFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::ops::{Deref, Range};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Directory with the types of kernel modules.
const MODULES: &str = "/sys/kernel/btf";

/// A function of the kernel, or the function type of a tracepoint's handlers.
#[derive(Clone, Debug)]
pub struct Function {
    /// Identifier of its type.
    pub id: u32,
    /// Size of its return value in bits; 0 without one.
    pub bits: u32,
    /// BTF of the kernel module that contains it; `None` for the kernel itself.
    pub module: Option<Arc<OwnedFd>>,
}

/// The types of the kernel that loading needs.
pub struct KernelTypes {
    functions: BTreeMap<String, Function>,
    tracepoints: BTreeMap<String, Function>,
    types: OwnedFd,
    /// File they were read from.
    source: PathBuf,
    /// Number of kernel modules with types; `None` if they were not searched.
    modules: Option<usize>,
}

impl KernelTypes {
    /// Reads functions, tracepoints, and the types that `object` (the types of the BPF object) names. `file` is for
    /// kernels without BTF; identifiers of functions come from the kernel only.
    pub fn read(
        functions: &BTreeSet<&str>,
        tracepoints: &BTreeSet<&str>,
        object: &[u8],
        file: Option<&Path>,
    ) -> std::io::Result<KernelTypes> {
        let fault = || std::io::Error::other("cannot be read as BTF");
        let object = Types::read(object, None).ok_or_else(fault)?;
        let (kernel, absent) = match Contents::of_kernel() {
            Ok(kernel) => (Some(kernel), None),
            Err(error) => (None, Some(error)),
        };
        let kernel = kernel.as_deref().and_then(|kernel| Types::read(kernel, None));
        let place = file.unwrap_or(Path::new(KERNEL_TYPES)).to_owned();
        let file = file.map(fs::read).transpose()?;
        let file = match &file {
            Some(file) => Some(Types::read(file, None).ok_or_else(fault)?),
            None => None,
        };
        let Some(source) = file.as_ref().or(kernel.as_ref()) else { return Err(absent.unwrap_or_else(fault)) };
        let mut types = fs::File::from(memfd_create(c"corebcc-types", MFdFlags::MFD_CLOEXEC)?);
        types.write_all(&source.copy(&object.essential_names()).ok_or_else(fault)?)?;

        let mut known = KernelTypes {
            functions: BTreeMap::new(),
            tracepoints: BTreeMap::new(),
            types: types.into(),
            source: place,
            modules: None,
        };
        if let Some(kernel) = &kernel {
            known.find(kernel, functions, tracepoints, None);
            known.find_in_modules(kernel, functions);
        }
        Ok(known)
    }

    /// Returns a function of the kernel.
    pub fn function(&self, name: &str) -> Option<&Function> {
        self.functions.get(name)
    }

    /// Returns the handler type of a tracepoint.
    pub fn tracepoint(&self, name: &str) -> Option<&Function> {
        self.tracepoints.get(name)
    }

    /// Returns findings about the kernel's types.
    pub fn findings(&self) -> Vec<Finding> {
        let modules = match self.modules {
            None => Finding::new("types_of_modules", None, "not tried: the kernel itself has every function asked for"),
            Some(0) => Finding::new("types_of_modules", false, "no module has types that can be read"),
            Some(count) => Finding::new("types_of_modules", true, format!("of {count} modules that are loaded")),
        };
        vec![Finding::new("types", true, self.source.display().to_string()), modules]
    }

    /// Returns the path of a file with the types that the programs name; valid as long as `self`.
    pub fn types(&self) -> String {
        format!("/proc/self/fd/{}", self.types.as_raw_fd())
    }

    fn find(
        &mut self,
        types: &Types<'_>,
        functions: &BTreeSet<&str>,
        tracepoints: &BTreeSet<&str>,
        module: Option<&Arc<OwnedFd>>,
    ) {
        // A tracepoint's type is the one of its handlers.
        let handlers: Vec<String> = tracepoints.iter().map(|name| format!("btf_trace_{name}")).collect();
        let names = functions.iter().copied().chain(handlers.iter().map(String::as_str)).collect();
        for (id, name, info, of) in types.named(&names, |kind| matches!(kind, kind::FUNC | kind::TYPEDEF)) {
            let module = module.cloned();
            match (info >> 24 & 31, name.strip_prefix("btf_trace_").filter(|name| tracepoints.contains(name))) {
                (kind::FUNC, _) => {
                    let function = Function { id, bits: types.returns(of).unwrap_or(64), module };
                    self.functions.entry(name.into()).or_insert(function);
                }
                (_, Some(name)) => {
                    self.tracepoints.entry(name.into()).or_insert(Function { id, bits: 0, module });
                }
                (_, None) => {}
            }
        }
    }

    /// Finds functions that the kernel itself lacks in its modules; reading those takes privilege, and kernel 5.11.
    fn find_in_modules(&mut self, kernel: &Types<'_>, functions: &BTreeSet<&str>) {
        let missing = |known: &KernelTypes| -> BTreeSet<&str> {
            functions.iter().copied().filter(|name| !known.functions.contains_key(*name)).collect()
        };
        if missing(self).is_empty() {
            return;
        }
        let modules: Vec<(String, OwnedFd)> = modules().collect();
        self.modules = Some(modules.len());
        for (name, fd) in modules {
            let missing = missing(self);
            if missing.is_empty() {
                return;
            }
            let Ok(bytes) = fs::read(format!("{MODULES}/{name}")) else { continue };
            if let Some(types) = Types::read(&bytes, Some(kernel)) {
                self.find(&types, &missing, &BTreeSet::new(), Some(&Arc::new(fd)));
            }
        }
    }
}

/// True if the kernel itself has a function of this name, by its types.
pub fn kernel_has(function: &str) -> bool {
    let Ok(kernel) = Contents::of_kernel() else { return false };
    let functions = |types: Types<'_>| types.named(&BTreeSet::from([function]), |kind| kind == kind::FUNC);
    Types::read(&kernel, None).is_some_and(|types| !functions(types).is_empty())
}

/// Hint `; did you mean ...?` with the kernel's tracepoint nearest to a name; empty if none is near, or the name is one.
pub fn near_tracepoint(name: &str) -> String {
    let Ok(kernel) = Contents::of_kernel() else { return String::new() };
    let Some(types) = Types::read(&kernel, None) else { return String::new() };
    let tracepoint = |id| {
        let (place, ..) = types.header(id)?;
        std::str::from_utf8(types.name(place)?).ok()?.strip_prefix("btf_trace_")
    };
    let tracepoints: Vec<&str> = types.ids().filter_map(tracepoint).collect();
    match tracepoints.contains(&name) {
        true => String::new(),
        false => did_you_mean(name, tracepoints),
    }
}

/// Iterates over kernel modules with types: name, and a descriptor of the BTF.
fn modules() -> impl Iterator<Item = (String, OwnedFd)> {
    let mut id = 0;
    let next = move || {
        // SAFETY: the number that the call writes to is ours.
        (unsafe { libbpf_sys::bpf_btf_get_next_id(id, &mut id) } == 0).then_some(id)
    };
    std::iter::from_fn(next).filter_map(|id| {
        // SAFETY: a call with a number.
        let fd = unsafe { libbpf_sys::bpf_btf_get_fd_by_id(id) };
        // SAFETY: the call opened it, and nobody else knows of it.
        let fd = (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })?;
        let mut name = [0u8; 64];
        let mut info =
            bpf_btf_info { name: name.as_mut_ptr() as u64, name_len: name.len() as u32, ..bpf_btf_info::default() };
        let mut length = size_of::<bpf_btf_info>() as u32;
        // SAFETY: `info` is as long as `length` says, and the name it points to as long as `name_len`.
        let failed = unsafe { libbpf_sys::bpf_btf_get_info_by_fd(fd.as_raw_fd(), &mut info, &mut length) } != 0;
        let name = name.split(|&byte| byte == 0).next().and_then(|name| std::str::from_utf8(name).ok())?;
        (!failed && info.kernel_btf != 0 && name != "vmlinux").then(|| (name.to_owned(), fd))
    })
}

/// Types of the kernel: mapped (Linux 6.15), else a copy, which sysfs returns page by page.
enum Contents {
    InPlace(Mapping),
    Copy(Vec<u8>),
}

impl Contents {
    fn of_kernel() -> std::io::Result<Contents> {
        let mut file = fs::File::open(KERNEL_TYPES)?;
        if let Ok(mapping) = Mapping::of_file(&file) {
            return Ok(Contents::InPlace(mapping));
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(Contents::Copy(bytes))
    }
}

impl Deref for Contents {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Contents::InPlace(mapping) => mapping.bytes(0, usize::MAX),
            Contents::Copy(bytes) => bytes,
        }
    }
}

/// Types in their encoded form, with the offset of each.
struct Types<'a> {
    bytes: &'a [u8],
    strings: Range<usize>,
    at: Vec<u32>,
    /// Types of the kernel, which those of a module refer to.
    base: Option<&'a Types<'a>>,
}

impl<'a> Types<'a> {
    /// Reads the types; `None` if it is not BTF, or has unknown kinds of types.
    fn read(bytes: &'a [u8], base: Option<&'a Types<'a>>) -> Option<Types<'a>> {
        const MAGIC: u16 = 0xeb9f;
        let header = |i: usize| word(bytes, 4 * i).map(|word| word as usize);
        if bytes.get(..2)? != MAGIC.to_ne_bytes() {
            return None;
        }
        let after = header(1)?;
        let (types, strings) = (after.checked_add(header(2)?)?, after.checked_add(header(4)?)?);
        let end = types.checked_add(header(3)?)?.min(bytes.len());
        let strings = strings..strings.checked_add(header(5)?)?.min(bytes.len());
        let mut at = Vec::with_capacity(if base.is_none() { 1 << 17 } else { 0 });
        let mut next = types;
        while next < end {
            at.push(next as u32);
            next += 12 + body(word(bytes, next + 4)?)?;
        }
        bytes.get(strings.clone())?;
        Some(Types { bytes, strings, at, base })
    }

    /// Returns the first identifier: lower ones are those of the base, and 0 is void.
    fn first(&self) -> u32 {
        self.base.map_or(1, |base| base.ids().end)
    }

    fn ids(&self) -> Range<u32> {
        self.first()..self.first() + self.at.len() as u32
    }

    /// Returns the bytes that contain a type, and its offset there.
    fn place(&self, id: u32) -> Option<(&[u8], usize)> {
        match self.base {
            Some(base) if id < self.first() => base.place(id),
            _ => Some((self.bytes, *self.at.get(id.checked_sub(self.first())? as usize)? as usize)),
        }
    }

    /// Returns the offset of the name; kind, number of members and flag; and size or referenced type.
    fn header(&self, id: u32) -> Option<(u32, u32, u32)> {
        let (bytes, at) = self.place(id)?;
        Some((word(bytes, at)?, word(bytes, at + 4)?, word(bytes, at + 8)?))
    }

    fn strings_before(&self) -> usize {
        self.base.map_or(0, |base| base.strings_before() + base.strings.len())
    }

    fn name(&self, place: u32) -> Option<&[u8]> {
        self.text(place)?.split(|&byte| byte == 0).next()
    }

    /// Returns the strings from an offset on; the name ends at the first NUL.
    fn text(&self, place: u32) -> Option<&[u8]> {
        match (place as usize).checked_sub(self.strings_before()) {
            Some(place) => self.bytes[self.strings.clone()].get(place..),
            None => self.base?.text(place),
        }
    }

    /// Returns the types of some kinds with one of these names: identifier, name, and the rest of the header.
    fn named<'n>(&self, names: &BTreeSet<&'n str>, is_kind: impl Fn(u32) -> bool) -> Vec<(u32, &'n str, u32, u32)> {
        let mut beginnings = Beginnings([0; 256]);
        names.iter().for_each(|name| beginnings.add(name.as_bytes()));
        let named = self.ids().filter_map(|id| {
            let (place, info, of) = self.header(id)?;
            let text = self.text(place).filter(|text| is_kind(info >> 24 & 31) && beginnings.has(text))?;
            let name = std::str::from_utf8(text.split(|&byte| byte == 0).next()?).ok()?;
            Some((id, *names.get(name)?, info, of))
        });
        named.collect()
    }

    /// Returns the names of types, without a suffix that libbpf takes for a flavour (`request___disk`).
    fn essential_names(&self) -> BTreeSet<&str> {
        let names = self.ids().filter_map(|id| {
            let (name, info, _) = self.header(id)?;
            let name = std::str::from_utf8(self.name(name)?).ok()?;
            is_root(info >> 24 & 31).then(|| name.split("___").next().unwrap_or(name))
        });
        names.filter(|name| !name.is_empty()).collect()
    }

    /// Returns the size in bits of the return value of a function type.
    fn returns(&self, prototype: u32) -> Option<u32> {
        let (_, _, mut id) = self.header(prototype)?;
        // Typedefs and qualifiers, of which nobody uses as many.
        for _ in 0..32 {
            if id == 0 {
                return Some(0);
            }
            let (_, info, of) = self.header(id)?;
            match info >> 24 & 31 {
                kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG => id = of,
                kind::INT | kind::ENUM | kind::ENUM64 => return Some(of.saturating_mul(8)),
                _ => return Some(64),
            }
        }
        None
    }

    /// Copies the types of these names and all that their members contain into BTF of its own. Targets of pointers are
    /// left out, since a relocation does not follow pointers (libbpf's relo_core.c).
    fn copy(&self, names: &BTreeSet<&str>) -> Option<Vec<u8>> {
        let mut copy = Copy { order: Vec::new(), ids: BTreeMap::new(), names: BTreeMap::new(), strings: vec![0] };
        for (id, ..) in self.named(names, is_root) {
            copy.id(id);
        }
        let mut types = Vec::new();
        let mut done = 0;
        while let Some(&id) = copy.order.get(done) {
            done += 1;
            let (bytes, at) = self.place(id)?;
            let (name, info, of) = self.header(id)?;
            let mut put = |words: &[u32]| types.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
            let kind = info >> 24 & 31;
            let of = match kind {
                kind::PTR => 0,
                kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG => copy.id(of),
                kind::FUNC_PROTO => {
                    put(&[copy.name(self, name)?, kind::FWD << 24, 0]);
                    continue;
                }
                _ => of,
            };
            put(&[copy.name(self, name)?, info, of]);
            let count = (info & 0xffff) as usize;
            let body = |i: usize| word(bytes, at + 12 + 4 * i);
            match kind {
                kind::ARRAY => put(&[copy.id(body(0)?), copy.id(body(1)?), body(2)?]),
                kind::STRUCT | kind::UNION => {
                    for i in 0..count {
                        put(&[copy.name(self, body(3 * i)?)?, copy.id(body(3 * i + 1)?), body(3 * i + 2)?]);
                    }
                }
                kind::ENUM => {
                    for i in 0..count {
                        put(&[copy.name(self, body(2 * i)?)?, body(2 * i + 1)?]);
                    }
                }
                kind::ENUM64 => {
                    for i in 0..count {
                        put(&[copy.name(self, body(3 * i)?)?, body(3 * i + 1)?, body(3 * i + 2)?]);
                    }
                }
                kind::INT => put(&[body(0)?]),
                _ => {}
            }
        }
        const HEADER: u32 = 24;
        let (types_length, strings_length) = (types.len() as u32, copy.strings.len() as u32);
        let mut all = self.bytes.get(..4)?.to_vec();
        for word in [HEADER, 0, types_length, types_length, strings_length] {
            all.extend(word.to_ne_bytes());
        }
        all.extend(types);
        all.extend(copy.strings);
        Some(all)
    }
}

/// A filter for the first three bytes of names, one bit for many: it rules out nearly all of a hundred thousand others.
struct Beginnings([u64; 256]);

impl Beginnings {
    /// Returns the index of the word and the bit of a name; a NUL may follow the name.
    fn place(name: &[u8]) -> Option<(usize, u64)> {
        let (first, second) = (*name.first()?, name.get(1).copied().unwrap_or(0));
        let third = name.get(2).copied().filter(|_| second != 0).unwrap_or(0);
        Some((first.into(), 1 << ((second ^ third.rotate_left(3)) & 63)))
    }

    fn add(&mut self, name: &[u8]) {
        if let Some((first, bit)) = Beginnings::place(name) {
            self.0[first] |= bit;
        }
    }

    fn has(&self, name: &[u8]) -> bool {
        Beginnings::place(name).is_some_and(|(first, bit)| self.0[first] & bit != 0)
    }
}

/// State of a copy: new identifiers and offsets of names by the old ones.
struct Copy {
    order: Vec<u32>,
    ids: BTreeMap<u32, u32>,
    names: BTreeMap<u32, u32>,
    strings: Vec<u8>,
}

impl Copy {
    /// Returns the new identifier of a type, and queues it for copying if it is new.
    fn id(&mut self, old: u32) -> u32 {
        if old == 0 {
            return 0;
        }
        let new = *self.ids.entry(old).or_insert(self.order.len() as u32 + 1);
        if new > self.order.len() as u32 {
            self.order.push(old);
        }
        new
    }

    /// Returns the new offset of a name.
    fn name(&mut self, types: &Types<'_>, old: u32) -> Option<u32> {
        if old == 0 {
            return Some(0);
        }
        if let Some(&new) = self.names.get(&old) {
            return Some(new);
        }
        let new = self.strings.len() as u32;
        self.strings.extend(types.name(old)?);
        self.strings.push(0);
        self.names.insert(old, new);
        Some(new)
    }
}

/// True if a relocation can start at a type of this kind.
fn is_root(kind: u32) -> bool {
    matches!(kind, kind::STRUCT | kind::UNION | kind::ENUM | kind::TYPEDEF | kind::ENUM64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(test: &str) -> Option<Vec<u8>> {
        let bytes = fs::read(KERNEL_TYPES).ok();
        if bytes.is_none() {
            println!("skipped: {test}: a kernel with BTF");
        }
        bytes
    }

    #[test]
    fn the_widths_of_return_values_are_those_of_their_types() {
        let Some(bytes) = kernel("the_widths_of_return_values_are_those_of_their_types") else { return };
        let functions = BTreeSet::from(["vfs_read", "vfs_open", "kfree", "no_such_function"]);
        let known =
            KernelTypes::read(&functions, &BTreeSet::from(["sched_switch"]), &bytes[..], None).expect("it is BTF");
        let bits = |name| known.function(name).map(|function| function.bits);
        assert_eq!(bits("vfs_read"), Some(64));
        assert_eq!(bits("vfs_open"), Some(32));
        assert_eq!(bits("kfree"), Some(0));
        assert_eq!(bits("no_such_function"), None);
        assert!(known.tracepoint("sched_switch").is_some());
    }

    #[test]
    fn the_kernel_has_its_functions_and_no_others() {
        if kernel("the_kernel_has_its_functions_and_no_others").is_some() {
            assert!(kernel_has("vfs_read") && !kernel_has("vfs_rea") && !kernel_has("list_head"));
        }
    }

    #[test]
    fn a_tracepoint_that_is_not_there_is_answered_by_the_nearest() {
        if kernel("a_tracepoint_that_is_not_there_is_answered_by_the_nearest").is_some() {
            let near = ["task_newtsk", "sched_swich", "task_newtask", "no_such_thing"].map(near_tracepoint);
            assert_eq!(near, ["; did you mean `task_newtask`?", "; did you mean `sched_switch`?", "", ""]);
        }
    }

    #[test]
    fn a_copied_type_has_its_members_and_no_pointees() {
        let Some(bytes) = kernel("a_copied_type_has_its_members_and_no_pointees") else { return };
        let types = Types::read(&bytes, None).expect("it is BTF");
        let copy = types.copy(&BTreeSet::from(["sched_entity"])).expect("every reference leads somewhere");
        let copy = Types::read(&copy, None).expect("it is BTF");
        let names = copy.essential_names();
        assert!(names.contains("sched_entity") && names.contains("rb_node"), "{names:?}");
        assert!(!names.contains("cfs_rq"), "{names:?}");
        assert!(copy.ids().len() < 100, "{}", copy.ids().len());
        for id in copy.ids() {
            let (_, info, of) = copy.header(id).expect("it is in the range");
            assert!(info >> 24 & 31 != kind::PTR || of == 0);
        }
    }

    #[test]
    fn damaged_btf_is_refused_or_read_and_never_panics() {
        let Some(bytes) = kernel("damaged_btf_is_refused_or_read_and_never_panics") else { return };
        let types = Types::read(&bytes, None).expect("it is BTF");
        let small = types.copy(&BTreeSet::from(["sched_entity"])).expect("every reference leads somewhere");
        let names = BTreeSet::from(["sched_entity"]);
        let whole = Types::read(&small, None).expect("it is BTF");
        assert!(Types::read(&small[..small.len() / 2], None).is_none());
        for length in 0..small.len() {
            if let Some(types) = Types::read(&small[..length], None) {
                assert_eq!(
                    types.ids(),
                    whole.ids(),
                    "{length} of {} bytes: names can be cut, types are all there",
                    small.len()
                );
                let _ = types.copy(&names);
            }
        }
        for at in 0..small.len() {
            let mut changed = small.clone();
            changed[at] ^= 0xff;
            if let Some(types) = Types::read(&changed, None) {
                let _ = (types.copy(&names), types.essential_names().len());
                let _ = types.ids().filter_map(|id| types.returns(id)).max();
            }
        }
    }
}
