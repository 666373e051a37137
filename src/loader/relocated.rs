//! An object whose maps exist and whose programs are relocated, taken over from libbpf. libbpf's own copy of it would stay
//! resident as long as it has the maps: a megabyte for all modules.

use super::immediate::Constants;
use libbpf_rs::libbpf_sys::{self, bpf_func_info, bpf_insn, BPF_PSEUDO_MAP_FD, BPF_PSEUDO_MAP_VALUE};
use libbpf_rs::{AsRawLibbpf, Map, MapCore, MapHandle, Object, Program};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Maps of an object, and the programs that use them, none of them loaded.
pub struct Relocated {
    /// Maps that were created.
    pub maps: Vec<MapHandle>,
    /// Programs, in the order of the object.
    pub programs: Vec<Code>,
    /// Constants of the programs.
    pub constants: Option<Constants>,
    /// Types of the programs (BTF), if the kernel has taken them.
    pub types: Option<OwnedFd>,
}

/// A program to load.
pub struct Code {
    /// Name.
    pub name: String,
    /// Section, with the kind of attachment and the target (`tp_btf/sched_switch`).
    section: String,
    /// Kind of the program (`BPF_PROG_TYPE_*`).
    pub kind: libbpf_sys::bpf_prog_type,
    /// Expected kind of attachment (`BPF_TRACE_*`).
    pub attach: libbpf_sys::bpf_attach_type,
    /// Instructions, which refer to maps by the descriptors in [`Relocated::maps`].
    pub insns: Vec<bpf_insn>,
    /// Types of its functions.
    pub functions: Vec<bpf_func_info>,
}

impl Relocated {
    /// Takes over what `object` has. The object is no longer needed afterwards.
    pub fn of(object: &Object) -> libbpf_rs::Result<Relocated> {
        let mut maps = Vec::new();
        let mut descriptors = BTreeMap::new();
        for map in object.maps().filter(Map::autocreate) {
            let own = MapHandle::try_from(&map)?;
            descriptors.insert(map.as_fd().as_raw_fd(), own.as_fd().as_raw_fd());
            maps.push(own);
        }
        // SAFETY: the object lives.
        let types = unsafe { libbpf_sys::bpf_object__btf_fd(object.as_libbpf_object().as_ptr()) };
        // SAFETY: the object lives, and with it its descriptor.
        let types = (types >= 0).then(|| unsafe { BorrowedFd::borrow_raw(types) });
        let types = types.map(|types| types.try_clone_to_owned()).transpose()?;
        let programs = object.progs().map(|program| Code::of(&program, &descriptors)).collect();
        let constants = Constants::of(&maps);
        Ok(Relocated { maps, programs, constants, types })
    }

    /// Returns a map by name.
    pub fn map(&self, name: &str) -> Option<&MapHandle> {
        self.maps.iter().find(|map| map.name() == name)
    }

    /// Returns a program by name.
    pub fn program(&self, name: &str) -> Option<&Code> {
        self.programs.iter().find(|program| program.name == name)
    }

    /// Forgets the code of programs that are not templates: the kernel has those that are wanted.
    pub fn forget_code(&mut self) {
        for program in self.programs.iter_mut().filter(|program| !program.is_template()) {
            (program.insns, program.functions) = (Vec::new(), Vec::new());
        }
    }
}

impl Code {
    /// Copies a program; `descriptors` has those of the maps here by those of libbpf.
    fn of(program: &Program<'_>, descriptors: &BTreeMap<i32, i32>) -> Code {
        let mut insns = program.insns().to_vec();
        for insn in &mut insns {
            let is_map = matches!(u32::from(insn.src_reg()), BPF_PSEUDO_MAP_FD | BPF_PSEUDO_MAP_VALUE);
            if let (super::immediate::LOAD_64, true, Some(&own)) = (insn.code, is_map, descriptors.get(&insn.imm)) {
                insn.imm = own;
            }
        }
        let raw = program.as_libbpf_object().as_ptr();
        // SAFETY: the program lives; libbpf has as many records as it says.
        let functions = unsafe {
            match libbpf_sys::bpf_program__func_info_cnt(raw) {
                0 => Vec::new(),
                count => std::slice::from_raw_parts(libbpf_sys::bpf_program__func_info(raw), count as usize).to_vec(),
            }
        };
        Code {
            name: program.name().to_string_lossy().into_owned(),
            section: program.section().to_str().unwrap_or_default().to_owned(),
            kind: program.prog_type() as libbpf_sys::bpf_prog_type,
            attach: program.attach_type() as libbpf_sys::bpf_attach_type,
            insns,
            functions,
        }
    }

    /// Returns the kind of attachment and the target in the section.
    pub fn section(&self) -> (&str, &str) {
        self.section.split_once('/').unwrap_or((&self.section, ""))
    }

    /// True if it is copied for each of its targets.
    pub fn is_template(&self) -> bool {
        self.name.starts_with("each_")
    }
}
