//! Loading a single program of an object that libbpf has relocated: a refusal costs that program only.

use super::btf::{Function, KernelTypes};
use super::refusal::Refusal;
use super::relocated::{Code, Relocated};
use libbpf_rs::libbpf_sys::{self, bpf_func_info, bpf_insn};
use nix::libc::{EINVAL, ENOSPC, EPERM};
use std::ffi::CString;
use std::io::Read;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Loads a program for the target in its section.
pub fn load(object: &Relocated, name: &str, btf: &KernelTypes) -> Result<OwnedFd, Refusal> {
    let program = object.program(name).ok_or_else(|| {
        Refusal::missing(format!("no program {name} in the BPF object: no file of bpf/ has its handler"))
    })?;
    let function = match program.section() {
        ("tp_btf", name) => Some(btf.tracepoint(name).ok_or_else(|| unknown("tracepoint", name))?),
        ("iter", kind) => {
            let name = format!("bpf_iter_{kind}");
            Some(btf.function(&name).ok_or_else(|| unknown("iterator", &name))?)
        }
        ("fentry" | "fexit", name) => Some(btf.function(name).ok_or_else(|| unknown("function", name))?),
        _ => None,
    };
    load_code(object, program, program.insns.clone(), function)
}

/// Makes the refusal of a tracepoint or function that the kernel's types lack.
pub fn unknown(what: &str, name: &str) -> Refusal {
    Refusal::missing(format!("the kernel has no {what} {name} in its BTF"))
}

/// Loads an idle program for functions (fentry, fexit); the error is why the kernel permits none although it permits
/// others. Other errors are ignored, since they may concern this function only.
pub fn trampolines(function: &Function) -> Result<(), Refusal> {
    let idle = |kind, attach_type| {
        let code = [0xb7, 0x95].map(|code| bpf_insn { code, ..Default::default() }); // r0 = 0; exit
        let mut options = libbpf_sys::bpf_prog_load_opts {
            sz: size_of::<libbpf_sys::bpf_prog_load_opts>() as libbpf_sys::size_t,
            ..Default::default()
        };
        if kind == libbpf_sys::BPF_PROG_TYPE_TRACING {
            aim(&mut options, attach_type, function);
        }
        // SAFETY: the strings end in NUL; code and options are valid for the call, which keeps neither.
        owned(unsafe {
            libbpf_sys::bpf_prog_load(kind, c"idle".as_ptr(), c"GPL".as_ptr(), code.as_ptr(), 2, &mut options)
        })
    };
    let refused = |error: &std::io::Error| error.raw_os_error() == Some(EPERM);
    match idle(libbpf_sys::BPF_PROG_TYPE_TRACING, libbpf_sys::BPF_TRACE_FEXIT) {
        Err(error) if refused(&error) && idle(libbpf_sys::BPF_PROG_TYPE_RAW_TRACEPOINT, 0).is_ok() => {
            Err(Refusal::of_program(&error, ""))
        }
        _ => Ok(()),
    }
}

/// Sets the target of a typed program.
fn aim(options: &mut libbpf_sys::bpf_prog_load_opts, attach_type: libbpf_sys::bpf_attach_type, function: &Function) {
    options.expected_attach_type = attach_type;
    options.attach_btf_id = function.id;
    options.attach_btf_obj_fd = function.module.as_ref().map_or(0, |module| module.as_raw_fd() as u32);
}

/// Loads instructions as this program, with the object's constants written into them; `function` is the target of a
/// typed program.
pub fn load_code(
    object: &Relocated,
    program: &Code,
    mut code: Vec<bpf_insn>,
    function: Option<&Function>,
) -> Result<OwnedFd, Refusal> {
    if let Some(constants) = &object.constants {
        constants.write_into(&mut code);
    }
    let mut options = libbpf_sys::bpf_prog_load_opts {
        sz: size_of::<libbpf_sys::bpf_prog_load_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    match function {
        Some(function) => aim(&mut options, program.attach, function),
        None => options.expected_attach_type = program.attach,
    }
    // The kernel cuts the name to 15 bytes; tools show the one in the types.
    let name = CString::new(program.name.as_str()).map_err(|_| Refusal::new(EINVAL, "a name with a NUL"))?;
    if let (Some(types), false) = (&object.types, program.functions.is_empty()) {
        options.prog_btf_fd = types.as_raw_fd() as u32;
        options.func_info = program.functions.as_ptr().cast();
        options.func_info_cnt = program.functions.len() as u32;
        options.func_info_rec_size = size_of::<bpf_func_info>() as u32;
    }
    let mut load = |log: &mut [u8]| {
        options.log_level = u32::from(!log.is_empty());
        options.log_size = log.len() as u32;
        options.log_buf = if log.is_empty() { std::ptr::null_mut() } else { log.as_mut_ptr().cast() };
        // SAFETY: the strings end in NUL; code, options and what they point to are valid for the call, which keeps none of
        // them. The instructions refer to maps by descriptors that the object holds open.
        owned(unsafe {
            libbpf_sys::bpf_prog_load(
                program.kind,
                name.as_ptr(),
                c"GPL".as_ptr(),
                code.as_ptr(),
                code.len() as libbpf_sys::size_t,
                &mut options,
            )
        })
    };
    let error = match load(&mut []) {
        Ok(program) => return Ok(program),
        Err(error) => error,
    };
    let mut log = vec![0; LOG];
    // Before 6.4 a log that is too short keeps the beginning, and the cause is at the end.
    while let Err(error) = load(&mut log) {
        if error.raw_os_error() != Some(ENOSPC) || log.len() >= LONGEST_LOG {
            break;
        }
        log = vec![0; log.len() * 16];
    }
    let said = log.split(|&byte| byte == 0).next().unwrap_or_default();
    Err(Refusal::of_program(&error, &String::from_utf8_lossy(said)))
}

/// Size of the verifier's log in bytes, at first and at most.
const LOG: usize = 1 << 16;
const LONGEST_LOG: usize = 1 << 24;

/// Takes ownership of a descriptor returned by libbpf, or of its negative error number.
pub fn owned(fd: i32) -> std::io::Result<OwnedFd> {
    if fd < 0 {
        return Err(std::io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the call that returned it opened it, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Runs a program once with this context, on this CPU if one is given; returns its return value.
pub fn run(program: BorrowedFd<'_>, context: &[u64], cpu: Option<u32>) -> std::io::Result<u32> {
    /// `BPF_F_TEST_RUN_ON_CPU` of linux/bpf.h (5.10).
    const ON_CPU: u32 = 1;
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
        flags: cpu.map_or(0, |_| ON_CPU),
        cpu: cpu.unwrap_or(0),
        ..Default::default()
    };
    if !context.is_empty() {
        options.ctx_in = context.as_ptr().cast();
        options.ctx_size_in = size_of_val(context) as u32;
    }
    // SAFETY: the options and the context they point to are valid for the call.
    match unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) } {
        0 => Ok(options.retval),
        error => Err(std::io::Error::from_raw_os_error(-error)),
    }
}

/// Reads an iterator to its end; its program writes nothing into it, so that one call does.
pub fn walk(link: BorrowedFd<'_>) -> std::io::Result<()> {
    // SAFETY: the descriptor is open during the call.
    let mut iterator = std::fs::File::from(owned(unsafe { libbpf_sys::bpf_iter_create(link.as_raw_fd()) })?);
    let mut nothing = [0; 64];
    // The kernel interrupts a walk after a million objects with EAGAIN, and goes on where it was.
    loop {
        match iterator.read(&mut nothing) {
            Ok(0) => return Ok(()),
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => return Err(error),
            _ => {}
        }
    }
}
