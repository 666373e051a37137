//! User statically defined tracepoints (USDT): places that a program or library declares in ELF notes, as written by
//! SystemTap's sys/sdt.h. Each has the address of a no-op instruction, the address of a counter of its users (a
//! semaphore, which some programs check before they reach the place), and the locations of its arguments.

use super::elf::{string, u32_at, u64_at, Elf};
use thiserror::Error;

/// Owner and type of the notes (SystemTap, `UserSpaceProbeImplementation`).
const OWNER: &[u8] = b"stapsdt\0";
const TYPE: u32 = 3;
/// Section whose address gives the distance that code was moved by after the notes were written (prelink(8)).
const BASE: &[u8] = b".stapsdt.base";
/// Highest number of probes of a file, and longest text of one in bytes: a build of the JVM has a thousand probes.
const PROBES: usize = 4096;
const TEXT: usize = 1024;

/// A site of a probe; a probe can have several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Provider: `hotspot`, `python`.
    pub provider: String,
    /// Name: `thread__start`.
    pub name: String,
    /// Offset of its instruction in the file, in bytes.
    pub offset: u64,
    /// Offset of its semaphore in the file, in bytes; 0 without one.
    pub semaphore: u64,
    /// Locations of its arguments in assembler notation: `8@%rax -4@20(%rsp)`.
    pub arguments: String,
}

impl Elf {
    /// Returns the probes that a file declares, in order, up to `PROBES`. Damaged notes are skipped.
    pub fn probes(&self) -> Vec<Probe> {
        let base = self.address(BASE).unwrap_or(0);
        let mut probes = Vec::new();
        for section in self.notes() {
            let mut rest = section.as_slice();
            while let Some((note, next)) = note(rest) {
                if (note.owner, note.ty) == (OWNER, TYPE) {
                    probes.extend(self.probe(note.content, base));
                }
                if probes.len() == PROBES {
                    return probes;
                }
                rest = next;
            }
        }
        probes
    }

    fn probe(&self, content: &[u8], base: u64) -> Option<Probe> {
        let (site, noted, semaphore) = (u64_at(content, 0)?, u64_at(content, 8)?, u64_at(content, 16)?);
        let moved = if base == 0 { 0 } else { base.wrapping_sub(noted) };
        let text = |at: &mut usize| {
            let text = string(content, *at).filter(|text| text.len() <= TEXT)?;
            *at += text.len() + 1;
            Some(String::from_utf8_lossy(text).into_owned())
        };
        let mut at = 24;
        Some(Probe {
            offset: self.offset(site.wrapping_add(moved))?,
            semaphore: if semaphore == 0 { 0 } else { self.offset(semaphore.wrapping_add(moved))? },
            provider: text(&mut at)?,
            name: text(&mut at)?,
            arguments: text(&mut at)?,
        })
    }
}

impl Probe {
    /// Parses the locations of its arguments, in order; an error for each that cannot be parsed.
    pub fn arguments(&self) -> Vec<Result<Argument, ArgumentError>> {
        let machine = if cfg!(target_arch = "aarch64") { Machine::Aarch64 } else { Machine::X86_64 };
        words(&self.arguments).into_iter().map(|text| machine.argument(text)).collect()
    }
}

/// The text of an argument whose location is in an unknown form.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("an argument that cannot be read: `{0}`")]
pub struct ArgumentError(String);

/// Location of an argument when a probe is hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argument {
    /// Width in bytes: 1, 2, 4 or 8.
    pub size: u8,
    /// True if it is signed.
    pub signed: bool,
    /// Location.
    pub place: ArgLocation,
}

/// A location; registers are given as offsets in the kernel's `pt_regs`, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgLocation {
    /// Constant value.
    Constant(i64),
    /// A register.
    Register(u8),
    /// Memory of the process, at the sum of a register, a displacement and a register times a factor.
    Memory {
        /// Base register.
        base: u8,
        /// Displacement in bytes.
        displacement: i64,
        /// Index register and its factor.
        index: Option<(u8, u8)>,
    },
}

/// Splits arguments at blanks, except inside brackets and parentheses.
fn words(text: &str) -> Vec<&str> {
    let mut depth = 0;
    let words = text.split(|c: char| {
        match c {
            '[' | '(' => depth += 1,
            ']' | ')' => depth -= 1,
            _ => {}
        }
        c == ' ' && depth <= 0
    });
    words.filter(|word| !word.is_empty()).collect()
}

#[derive(Clone, Copy)]
enum Machine {
    X86_64,
    Aarch64,
}

impl Machine {
    /// Parses `SIZE@LOCATION`; the size is negative for signed numbers, and missing from old versions of GCC.
    fn argument(self, text: &str) -> Result<Argument, ArgumentError> {
        let (size, place) = text.split_once('@').unwrap_or(("8", text));
        let signed = size.starts_with('-');
        let size = size.trim_start_matches('-').parse().ok().filter(|size| [1, 2, 4, 8].contains(size));
        let place = match self {
            Machine::X86_64 => x86_64(place),
            Machine::Aarch64 => aarch64(place),
        };
        let argument = size.zip(place).map(|(size, place)| Argument { size, signed, place });
        argument.ok_or_else(|| ArgumentError(text.into()))
    }
}

/// Parses `$5`, `%rax`, `8(%rax)`, `-16(%rbp,%rcx,8)`; locations relative to a symbol are unknown.
fn x86_64(place: &str) -> Option<ArgLocation> {
    if let Some(constant) = place.strip_prefix('$') {
        return constant.parse().ok().map(ArgLocation::Constant);
    }
    let register = |text: &str| x86_64_register(text.trim().strip_prefix('%')?);
    let Some((displacement, rest)) = place.split_once('(') else { return register(place).map(ArgLocation::Register) };
    let displacement = if displacement.is_empty() { 0 } else { displacement.parse().ok()? };
    let mut parts = rest.strip_suffix(')')?.split(',');
    let base = register(parts.next()?)?;
    let index = match parts.next() {
        Some(index) => Some((register(index)?, parts.next().map_or(Some(1), |factor| factor.trim().parse().ok())?)),
        None => None,
    };
    Some(ArgLocation::Memory { base, displacement, index })
}

/// Returns the offset of a register by any of its names; the second byte of one (`%ah`) has no offset of its own.
fn x86_64_register(name: &str) -> Option<u8> {
    // struct pt_regs, arch/x86/include/asm/ptrace.h.
    const REGISTERS: [(u8, &[&str]); 16] = [
        (0, &["r15", "r15d", "r15w", "r15b"]),
        (8, &["r14", "r14d", "r14w", "r14b"]),
        (16, &["r13", "r13d", "r13w", "r13b"]),
        (24, &["r12", "r12d", "r12w", "r12b"]),
        (32, &["rbp", "ebp", "bp", "bpl"]),
        (40, &["rbx", "ebx", "bx", "bl"]),
        (48, &["r11", "r11d", "r11w", "r11b"]),
        (56, &["r10", "r10d", "r10w", "r10b"]),
        (64, &["r9", "r9d", "r9w", "r9b"]),
        (72, &["r8", "r8d", "r8w", "r8b"]),
        (80, &["rax", "eax", "ax", "al"]),
        (88, &["rcx", "ecx", "cx", "cl"]),
        (96, &["rdx", "edx", "dx", "dl"]),
        (104, &["rsi", "esi", "si", "sil"]),
        (112, &["rdi", "edi", "di", "dil"]),
        (152, &["rsp", "esp", "sp", "spl"]),
    ];
    REGISTERS.iter().find(|(_, names)| names.contains(&name)).map(|&(offset, _)| offset)
}

/// Parses `5`, `x3`, `[sp]`, `[x0, 16]`, `[x0, -8]`.
fn aarch64(place: &str) -> Option<ArgLocation> {
    // struct user_pt_regs, arch/arm64/include/uapi/asm/ptrace.h: 31 registers and the stack pointer.
    let register = |text: &str| match text.trim() {
        "sp" => Some(31 * 8),
        name => {
            let number: u8 = name.strip_prefix(['x', 'w'])?.parse().ok()?;
            (number < 31).then(|| number * 8)
        }
    };
    if let Some(inside) = place.strip_prefix('[') {
        let mut parts = inside.strip_suffix(']')?.split(',');
        let base = register(parts.next()?)?;
        let displacement = parts.next().map_or(Some(0), |displacement| displacement.trim().parse().ok())?;
        return Some(ArgLocation::Memory { base, displacement, index: None });
    }
    let constant = place.parse().ok().map(ArgLocation::Constant);
    constant.or_else(|| register(place).map(ArgLocation::Register))
}

struct Note<'a> {
    owner: &'a [u8],
    ty: u32,
    content: &'a [u8],
}

/// Returns the first note and the rest.
fn note(bytes: &[u8]) -> Option<(Note<'_>, &[u8])> {
    let (owner, content) = (u32_at(bytes, 0)? as usize, u32_at(bytes, 4)? as usize);
    let at = 12usize.checked_add(owner.next_multiple_of(4))?;
    let end = at.checked_add(content)?;
    let next = bytes.get(end.next_multiple_of(4)..).unwrap_or_default();
    Some((Note { owner: bytes.get(12..12 + owner)?, ty: u32_at(bytes, 8)?, content: bytes.get(at..end)? }, next))
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::super::elf::tests::elf;
    use super::*;
    use std::sync::atomic::AtomicU16;

    #[no_mangle]
    #[link_section = ".probes"]
    static corebcc_usdt_semaphore: AtomicU16 = AtomicU16::new(0xbeef);

    extern "C" {
        /// Never called, only found in the file.
        fn corebcc_usdt_site();
    }

    // A site as sys/sdt.h makes it, and bytes behind it that are nowhere else.
    std::arch::global_asm!(
        ".text",
        ".globl corebcc_usdt_site",
        "corebcc_usdt_site: 990: nop",
        ".8byte 0x1122334455667788",
        r#".pushsection .note.stapsdt,"","note""#,
        ".balign 4",
        ".4byte 992f-991f, 994f-993f, 3",
        r#"991: .asciz "stapsdt""#,
        "992: .balign 4",
        "993: .8byte 990b, 0, corebcc_usdt_semaphore",
        r#".asciz "corebcc", "passed__by", "8@%rax 4@4(%rsp)""#,
        "994: .balign 4",
        ".popsection",
    );

    /// Returns this program. With optimization the linker keeps only what something points to.
    fn own() -> Vec<u8> {
        std::hint::black_box((corebcc_usdt_site as *const (), &corebcc_usdt_semaphore));
        std::fs::read(std::env::current_exe().unwrap()).unwrap()
    }

    #[test]
    fn an_own_probe_is_found_with_its_instruction_and_its_semaphore() {
        let bytes = own();
        let probes = elf(&bytes).unwrap().probes();
        let probe = probes.iter().find(|probe| probe.provider == "corebcc").unwrap();
        assert_eq!((probe.name.as_str(), probe.arguments.as_str()), ("passed__by", "8@%rax 4@4(%rsp)"));
        let site = &bytes[probe.offset as usize..];
        assert_eq!((site[0], &site[1..9]), (0x90, &0x1122_3344_5566_7788u64.to_le_bytes()[..]));
        assert_eq!(bytes[probe.semaphore as usize..][..2], 0xbeefu16.to_le_bytes());
    }

    #[test]
    fn sites_moved_since_the_note_are_found_where_they_are() {
        let bytes = own();
        let file = elf(&bytes).unwrap();
        let probe = file.probes().into_iter().find(|probe| probe.provider == "corebcc").unwrap();
        let address = (0..1 << 30).step_by(1 << 12).find_map(|page: u64| {
            let at = file.offset(page)?;
            (at <= probe.offset && probe.offset < at + 4096).then(|| page + (probe.offset - at))
        });
        let base = 0x7000_0000;
        let words = [address.unwrap() - 64, base - 64, 0];
        let mut content: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        content.extend(b"p\0n\0\0");
        assert_eq!(file.probe(&content, base).unwrap().offset, probe.offset);
        for length in 0..content.len() {
            assert_eq!(file.probe(&content[..length], base), None);
        }
    }

    /// A truncated file has no table of sections, since that is at its end.
    #[test]
    fn files_without_notes_or_cut_short_have_no_probes() {
        let bytes = own();
        let length = bytes.len();
        assert!(!elf(&bytes).unwrap().probes().is_empty());
        for length in (0..1024).chain((1..64).map(|part| length - length / 64 * part)) {
            let probes = elf(&bytes[..length]).map_or(Vec::new(), |elf| elf.probes());
            assert!(probes.is_empty(), "{length}: {probes:?}");
        }
    }

    #[test]
    fn arguments_are_constants_registers_or_memory() {
        let read = |text: &str| words(text).into_iter().map(|text| Machine::X86_64.argument(text)).collect::<Vec<_>>();
        let argument = |size, signed, place| Ok(Argument { size, signed, place });
        let memory = |base, displacement, index| ArgLocation::Memory { base, displacement, index };
        assert_eq!(
            read("8@%rbp -4@$-3 1@%dil -8@-120(%rbp) 8@(%rdi,%rcx,8) 2@%r9w %rax"),
            [
                argument(8, false, ArgLocation::Register(32)),
                argument(4, true, ArgLocation::Constant(-3)),
                argument(1, false, ArgLocation::Register(112)),
                argument(8, true, memory(32, -120, None)),
                argument(8, false, memory(112, 0, Some((88, 8)))),
                argument(2, false, ArgLocation::Register(64)),
                argument(8, false, ArgLocation::Register(80)),
            ]
        );
        assert!(read("8@sym+4(%rip) 1@%ah 3@%rax 8@ 8@4(%rax").iter().all(Result::is_err));
        assert_eq!(read("8@sym(%rip) 8@%rax").iter().filter(|argument| argument.is_ok()).count(), 1);
        assert!(read("").is_empty());
    }

    #[test]
    fn arguments_of_arm_are_constants_registers_or_memory() {
        let read = |text: &str| words(text).into_iter().map(|text| Machine::Aarch64.argument(text)).collect::<Vec<_>>();
        let places: Vec<ArgLocation> =
            read("8@x0 4@w30 8@[sp, 16] 8@[x2] -4@42").into_iter().map(|argument| argument.unwrap().place).collect();
        let memory = |base, displacement| ArgLocation::Memory { base, displacement, index: None };
        let wanted = [
            ArgLocation::Register(0),
            ArgLocation::Register(240),
            memory(248, 16),
            memory(16, 0),
            ArgLocation::Constant(42),
        ];
        assert_eq!(places, wanted);
        assert!(read("8@x31 8@[x1, x2] 8@[x1").iter().all(Result::is_err));
    }

    proptest::proptest! {
        #[test]
        fn arguments_of_anything_are_no_panic(text: String) {
            for machine in [Machine::X86_64, Machine::Aarch64] {
                words(&text).into_iter().for_each(|word| { let _ = machine.argument(word); });
            }
        }

        #[test]
        fn notes_of_anything_are_no_panic(mut bytes: Vec<u8>, owned: bool, sizes: [u8; 2]) {
            if owned && bytes.len() >= 20 {
                bytes[..4].copy_from_slice(&u32::from(sizes[0]).to_ne_bytes());
                bytes[4..8].copy_from_slice(&u32::from(sizes[1]).to_ne_bytes());
                bytes[12..20].copy_from_slice(OWNER);
            }
            let mut rest = bytes.as_slice();
            while let Some((_, next)) = note(rest) {
                proptest::prop_assert!(next.len() < rest.len());
                rest = next;
            }
        }
    }
}
