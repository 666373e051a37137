//! Decoding of keys: each label's part of the key goes through the label's decoders and becomes text.

use super::config::{Decoder, Label};
use super::names::Names;
use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};
use thiserror::Error;

/// Reason why a label has no text.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Undecoded {
    /// No expression of a `regexp` matched: the row is left out, which is no error.
    #[error("no expression matched")]
    Dropped,
    /// The bytes are not what the decoder expects.
    #[error("label {label}, decoder {decoder}: expected {expected}")]
    Failed {
        /// The label.
        label: String,
        /// The decoder.
        decoder: &'static str,
        /// The input that it expects.
        expected: &'static str,
    },
}

/// Returns the number of bytes of a key that the labels cover.
pub fn covered<'a>(labels: impl IntoIterator<Item = &'a Label>) -> usize {
    labels.into_iter().map(|label| label.size + label.padding).sum()
}

/// Cuts a key into the parts of its labels; `None` if their sizes do not add up to its length.
pub fn cut<'a>(labels: &[&Label], key: &'a [u8]) -> Option<Vec<&'a [u8]>> {
    let mut parts = Vec::with_capacity(labels.len());
    let mut rest = key;
    for label in labels {
        let part = rest.get(..label.size)?;
        rest = rest.get(label.size + label.padding..)?;
        parts.push(part);
    }
    rest.is_empty().then_some(parts)
}

/// Returns the text of a label.
pub fn decode(label: &Label, part: &[u8], names: &mut Names) -> Result<Vec<u8>, Undecoded> {
    let mut text = part.to_vec();
    for decoder in &label.decoders {
        text = step(decoder, text, names).map_err(|wrong| match wrong {
            Wrong::Dropped => Undecoded::Dropped,
            Wrong::Expected(decoder, expected) => Undecoded::Failed { label: label.name.clone(), decoder, expected },
        })?;
    }
    Ok(text)
}

enum Wrong {
    Dropped,
    Expected(&'static str, &'static str),
}

fn step(decoder: &Decoder, input: Vec<u8>, names: &mut Names) -> Result<Vec<u8>, Wrong> {
    let text = |text: Option<&str>, unknown: String| Ok(text.map_or(unknown, String::from).into_bytes());
    match decoder {
        Decoder::Uint => {
            let number = uint(&input).ok_or(Wrong::Expected("uint", "1, 2, 4 or 8 bytes"))?;
            Ok(number.to_string().into_bytes())
        }
        Decoder::Hex => Ok(hex(&input).into_bytes()),
        Decoder::String => Ok(input.split(|&byte| byte == 0).next().unwrap_or_default().to_vec()),
        Decoder::StaticMap { map, .. } if map.is_empty() => Ok(b"empty mapping".to_vec()),
        Decoder::StaticMap { map, allow_unknown } => {
            let shown = String::from_utf8_lossy(&input);
            let unknown = || if *allow_unknown { shown.to_string() } else { format!("unknown:{shown}") };
            Ok(map.get(&*shown).cloned().unwrap_or_else(unknown).into_bytes())
        }
        Decoder::Regexp(expressions) => {
            let found = expressions.iter().find_map(|expression| {
                // Two groups or more never count as a match, as in ebpf_exporter.
                let captures = (expression.captures_len() <= 2).then(|| expression.captures(&input)).flatten()?;
                let group = captures.get(expression.captures_len() - 1);
                Some(group.map_or(Vec::new(), |group| group.as_bytes().to_vec()))
            });
            found.ok_or(Wrong::Dropped)
        }
        Decoder::Cgroup => {
            let id = decimal("cgroup", &input)?;
            text(names.cgroup(id), format!("unknown_cgroup_id:{id}"))
        }
        Decoder::Errno => {
            let number = decimal("errno", &input)?;
            text(errno(number).as_deref(), format!("unknown:{number}"))
        }
        Decoder::Syscall => {
            let number = decimal("syscall", &input)?;
            text(names.system_call(number), format!("unknown_syscall:{number}"))
        }
        Decoder::Ifname => {
            let index = word("ifname", &input)?;
            text(names.interface(index), format!("unknown:{index}"))
        }
        Decoder::InetIp => Ok(address(&input).into_bytes()),
        Decoder::Dname => Ok(domain_name(input)),
        Decoder::MajorMinor => {
            let device = word("majorminor", &input)?;
            let (major, minor) = (device >> 8 & 0xfff, device & 0xff | device >> 12 & 0xfff00);
            text(names.disk(major, minor), format!("unknown:{major}:{minor}"))
        }
        Decoder::Ksym => {
            let address = input.as_slice().try_into().map_err(|_| Wrong::Expected("ksym", "8 bytes"))?;
            let address = u64::from_ne_bytes(address);
            text(names.symbol(address), format!("unknown_addr:0x{address:x}"))
        }
        Decoder::Kstack { below } => stack(&input, below.as_deref(), names),
        Decoder::PciVendor | Decoder::PciDevice | Decoder::PciClass | Decoder::PciSubclass => {
            pci(decoder, &input, names)
        }
    }
}

/// Reads an unsigned number of 1, 2, 4 or 8 bytes in native order.
fn uint(bytes: &[u8]) -> Option<u64> {
    Some(match *bytes {
        [byte] => byte.into(),
        [a, b] => u16::from_ne_bytes([a, b]).into(),
        [a, b, c, d] => u32::from_ne_bytes([a, b, c, d]).into(),
        _ => u64::from_ne_bytes(bytes.try_into().ok()?),
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let written = write!(text, "{byte:02x}");
        debug_assert!(written.is_ok(), "a String takes everything");
        text
    })
}

/// Reads a decimal number that an earlier decoder wrote.
fn decimal(decoder: &'static str, text: &[u8]) -> Result<u64, Wrong> {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number.ok_or(Wrong::Expected(decoder, "the digits of a number, which `uint` before it writes"))
}

fn word(decoder: &'static str, bytes: &[u8]) -> Result<u32, Wrong> {
    let first = bytes.first_chunk().ok_or(Wrong::Expected(decoder, "4 bytes"))?;
    Ok(u32::from_ne_bytes(*first))
}

fn errno(number: u64) -> Option<String> {
    let errno = nix::errno::Errno::from_raw(i32::try_from(number).ok()?);
    (number != 0 && errno != nix::errno::Errno::UnknownErrno).then(|| format!("{errno:?}"))
}

fn address(bytes: &[u8]) -> String {
    if let Ok(four) = <[u8; 4]>::try_from(bytes) {
        return Ipv4Addr::from(four).to_string();
    }
    match <[u8; 16]>::try_from(bytes).map(Ipv6Addr::from) {
        Ok(six) => six.to_ipv4_mapped().map_or_else(|| six.to_string(), |four| four.to_string()),
        Err(_) => format!("?{}", hex(bytes)),
    }
}

/// Reads a domain name in the format of DNS: the length before each label becomes a dot, except the first.
fn domain_name(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.is_empty() {
        return b".".to_vec();
    }
    let mut lengths = Vec::new();
    let mut at = 0;
    while let Some(&length) = bytes.get(at) {
        lengths.push(at);
        at += 1 + usize::from(length);
    }
    if at > bytes.len() {
        return bytes;
    }
    lengths.iter().for_each(|&at| bytes[at] = b'.');
    bytes.remove(0);
    bytes
}

/// Reads a stack, the innermost frame first; with `below` only the callers of that function, or all frames if it is not in the stack,
/// the outermost first, as flame graphs need them.
fn stack(bytes: &[u8], below: Option<&str>, names: &mut Names) -> Result<Vec<u8>, Wrong> {
    let (addresses, rest) = bytes.as_chunks::<8>();
    if !rest.is_empty() {
        return Err(Wrong::Expected("kstack", "a multiple of 8 bytes"));
    }
    let addresses = addresses.iter().map(|address| u64::from_ne_bytes(*address)).take_while(|&address| address != 0);
    let mut frames: Vec<String> =
        addresses.map(|address| names.symbol_around(address).unwrap_or("??").to_owned()).collect();
    if let Some(below) = below {
        let last = frames.iter().position(|frame| frame.split('\t').next() == Some(below));
        frames.drain(..last.map_or(0, |last| last + 1));
        frames.reverse();
    }
    Ok(frames.join("\n").into_bytes())
}

fn pci(decoder: &Decoder, input: &[u8], names: &mut Names) -> Result<Vec<u8>, Wrong> {
    let number = decimal("pci", input)? as u32;
    let Some(pci) = names.pci() else { return Ok(b"missing pci.ids db".to_vec()) };
    let (name, unknown) = match decoder {
        Decoder::PciVendor => (pci.vendor(number), format!("vendor: 0x{number:04x}")),
        Decoder::PciDevice => (pci.device(number >> 16, number & 0xffff), format!("device: 0x{:04x}", number & 0xffff)),
        Decoder::PciClass => (pci.class(number), format!("class: 0x{number:02x}")),
        _ => (pci.subclass(number >> 8, number & 0xff), format!("subclass: 0x{:02x}", number & 0xff)),
    };
    Ok(name.map_or_else(|| format!("unknown pci {unknown}"), String::from).into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::user::PairConfig;
    use std::fs;

    const PCI: &str = "# ids\n00ff  Small\n8086  Intel Corporation\n\t1237  440FX\n\t\t1af4 1100  Sub\nC 01  Mass storage controller\n\t06  SATA controller\n\t\t01  AHCI\n";
    const KALLSYMS: &str =
        "0000000000000000 A zero\nffffffff81000010 T lock\nffffffff81000010 t alias\nffffffff81000030 D data\n\
        ffffffffc0000040 t latest\t[module]\n";

    /// A machine on which a few disks, interfaces and other things have names.
    fn machine() -> (tempfile::TempDir, Names) {
        let home = tempfile::tempdir().unwrap();
        let root = home.path();
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(
            "proc/partitions",
            "major minor  #blocks  name\n\n   8        1  1048576 sda1\n 253      300  1 dm-300\n",
        );
        write("proc/kallsyms", KALLSYMS);
        write("sys/class/net/lo/ifindex", "1\n");
        write("sys/fs/cgroup/system.slice/x.service/cgroup.procs", "");
        write("usr/share/misc/pci.ids", PCI);
        let names = Names::below(root);
        (home, names)
    }

    /// Makes a label with the decoders of a YAML list.
    fn label(decoders: &str) -> Label {
        let text = format!(
            "metrics: {{counters: [{{name: a, help: b, labels: [{{name: x, size: 4, decoders: {decoders}}}]}}]}}"
        );
        let mut config = PairConfig::parse("x.yaml", text.as_bytes()).map_err(|errors| format!("{errors:?}")).unwrap();
        config.counters.remove(0).labels.remove(0)
    }

    fn chain(names: &[&str]) -> Label {
        let decoders: Vec<String> = names.iter().map(|name| format!("{{name: {name}}}")).collect();
        label(&format!("[{}]", decoders.join(", ")))
    }

    fn bytes(hex: &str) -> Vec<u8> {
        hex.split(' ').filter(|byte| !byte.is_empty()).map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
    }

    #[track_caller]
    fn holds(decoders: &[&str], input: &[u8], wanted: &str) {
        let (_home, mut names) = machine();
        let text = decode(&chain(decoders), input, &mut names).unwrap();
        assert_eq!(String::from_utf8_lossy(&text), wanted, "{decoders:?} {input:x?}");
    }

    fn with(decoders: &str, input: &[u8]) -> Result<String, Undecoded> {
        decode(&label(decoders), input, &mut Names::default()).map(|text| String::from_utf8(text).unwrap())
    }

    #[test]
    fn numbers_and_strings_decode_as_in_ebpf_exporter() {
        holds(&["uint"], &bytes("2a"), "42");
        holds(&["uint"], &12345_u16.to_ne_bytes(), "12345");
        holds(&["uint"], &[0xff; 8], "18446744073709551615");
        holds(&["hex"], &bytes("0a ff 00"), "0aff00");
        holds(&["string"], &bytes("61 62 00 63"), "ab");
        holds(&["string"], &bytes("61 62"), "ab");
        let failed = decode(&chain(&["uint"]), &[1, 2, 3], &mut Names::default()).unwrap_err();
        assert_eq!(failed.to_string(), "label x, decoder uint: expected 1, 2, 4 or 8 bytes");
    }

    #[test]
    fn maps_and_expressions_decode_as_in_ebpf_exporter() {
        assert_eq!(with("[{name: static_map, static_map: {1: read}}]", b"2").unwrap(), "unknown:2");
        assert_eq!(with("[{name: static_map, static_map: {1: read}, allow_unknown: true}]", b"2").unwrap(), "2");
        assert_eq!(with("[{name: static_map, static_map: {1: read}}]", b"1").unwrap(), "read");
        assert_eq!(with("[{name: static_map}]", b"2").unwrap(), "empty mapping");
        assert_eq!(with("[{name: regexp, regexps: ['^(k.*)d', '.*']}]", b"kswapd0").unwrap(), "kswap");
        assert_eq!(with("[{name: regexp, regexps: ['^(k.*)d', '.*']}]", b"bash").unwrap(), "bash");
        assert_eq!(with("[{name: regexp, regexps: ['b(x)?']}]", b"ab").unwrap(), "");
        assert_eq!(with("[{name: regexp, regexps: ['(a)(b)']}]", b"ab"), Err(Undecoded::Dropped));
        assert_eq!(with("[{name: regexp, regexps: ['^c']}]", b"ab"), Err(Undecoded::Dropped));
    }

    #[test]
    fn addresses_and_names_of_the_net_decode_as_in_ebpf_exporter() {
        holds(&["inet_ip"], &bytes("c0 00 02 01"), "192.0.2.1");
        holds(&["inet_ip"], &bytes("20 01 0d b8 00 00 00 00 00 00 00 00 00 00 00 01"), "2001:db8::1");
        holds(&["inet_ip"], &bytes("00 00 00 00 00 00 00 00 00 00 ff ff c0 00 02 01"), "192.0.2.1");
        holds(&["inet_ip"], &bytes("01 02 03 04 05"), "?0102030405");
        holds(&["dname"], &bytes("03 77 77 77 02 65 75 00"), "www.eu.");
        holds(&["string", "dname"], &bytes("03 77 77 77 02 65 75 00 00 00"), "www.eu");
        holds(&["dname"], &bytes("09 61 62"), "\tab");
        holds(&["string", "dname"], &bytes("00"), ".");
        holds(&["ifname"], &1_u32.to_ne_bytes(), "lo");
        holds(&["ifname"], &7_u32.to_ne_bytes(), "unknown:7");
    }

    #[test]
    fn numbers_of_the_kernel_decode_as_in_ebpf_exporter() {
        let device = |major: u32, minor: u32| ((minor & 0xff) | major << 8 | (minor & !0xff) << 12).to_ne_bytes();
        assert_eq!(device(8, 1), *bytes("01 08 00 00"));
        assert_eq!(device(253, 300), *bytes("2c fd 10 00"));
        holds(&["majorminor"], &device(8, 1), "sda1");
        holds(&["majorminor"], &device(253, 300), "dm-300");
        holds(&["majorminor"], &device(253, 301), "unknown:253:301");
        holds(&["uint", "errno"], &11_u32.to_ne_bytes(), "EAGAIN");
        holds(&["uint", "errno"], &0_u32.to_ne_bytes(), "unknown:0");
        holds(&["uint", "errno"], &512_u32.to_ne_bytes(), "unknown:512");
        let read = if cfg!(target_arch = "x86_64") { (0_u64, 17_u64) } else { (63, 67) };
        holds(&["uint", "syscall"], &read.0.to_ne_bytes(), "read");
        holds(&["uint", "syscall"], &read.1.to_ne_bytes(), "pread64");
        holds(&["uint", "syscall"], &9999_u64.to_ne_bytes(), "unknown_syscall:9999");
    }

    #[test]
    fn kernel_addresses_decode_as_in_ebpf_exporter() {
        let at = |address: u64| address.to_ne_bytes();
        holds(&["ksym"], &at(0xffff_ffff_8100_0010), "lock");
        holds(&["ksym"], &at(0xffff_ffff_c000_0040), "latest\t[module]");
        holds(&["ksym"], &at(0xffff_ffff_8100_0011), "unknown_addr:0xffffffff81000011");
        let stack = [0xffff_ffff_8100_0035, 0xffff_ffff_8100_0012, 0x10, 0, 0xffff_ffff_8100_0012].map(at).concat();
        holds(&["kstack"], &stack, "data\nlock\n??");
        holds(&["kstack"], &[0; 16], "");
        let below = |name: &str| {
            let text = decode(&label(&format!("[{{name: kstack, below: {name}}}]")), &stack[..24], &mut machine().1);
            String::from_utf8(text.unwrap()).unwrap()
        };
        assert_eq!((below("data"), below("other")), ("??\nlock".into(), "??\nlock\ndata".into()));
        assert!(decode(&chain(&["kstack"]), &[0; 12], &mut Names::default()).is_err());
    }

    #[test]
    fn a_number_that_goes_to_another_disk_shows_its_name() {
        let (root, mut names) = machine();
        let disk = label("[{name: majorminor}]");
        let number = [0x01, 0x08, 0x00, 0x00];
        let partitions = root.path().join("proc/partitions");
        fs::write(&partitions, "major minor  #blocks  name\n\n   8        1  1048576 sda1\n").unwrap();
        assert_eq!(decode(&disk, &number, &mut names).as_deref(), Ok(&b"sda1"[..]));
        fs::write(&partitions, "major minor  #blocks  name\n\n   8        1  1048576 sdb1\n").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1050));
        assert_eq!(decode(&disk, &number, &mut names).as_deref(), Ok(&b"sdb1"[..]), "within one refresh interval");
    }

    #[test]
    fn cgroups_decode_to_their_paths() {
        use std::os::unix::fs::MetadataExt;
        let (home, mut names) = machine();
        let inode = |path: &str| fs::metadata(home.path().join(path)).unwrap().ino();
        let cgroup = |id: u64, names: &mut Names| {
            String::from_utf8(decode(&chain(&["uint", "cgroup"]), &id.to_ne_bytes(), names).unwrap()).unwrap()
        };
        let id = inode("sys/fs/cgroup/system.slice/x.service");
        assert_eq!(cgroup(id, &mut names), "/sys/fs/cgroup/system.slice/x.service");
        assert_eq!(cgroup(inode("sys/fs/cgroup"), &mut names), "/sys/fs/cgroup");
        assert_eq!(cgroup(u64::MAX, &mut names), "unknown_cgroup_id:18446744073709551615");
    }

    #[test]
    fn pci_numbers_decode_to_names_of_the_database() {
        let number = |number: u32| number.to_ne_bytes();
        holds(&["uint", "pci_vendor"], &number(0x8086), "Intel Corporation");
        holds(&["uint", "pci_vendor"], &number(0xff), "Small");
        holds(&["uint", "pci_vendor"], &number(0x1234), "unknown pci vendor: 0x1234");
        holds(&["uint", "pci_device"], &number(0x8086 << 16 | 0x1237), "440FX");
        holds(&["uint", "pci_class"], &number(1), "Mass storage controller");
        holds(&["uint", "pci_subclass"], &number(0x106), "SATA controller");
        holds(&["uint", "pci_subclass"], &number(0x107), "unknown pci subclass: 0x07");
        let mut none = Names::below(std::path::Path::new("/nonexistent"));
        let text = decode(&chain(&["uint", "pci_class"]), &number(1), &mut none).unwrap();
        assert_eq!(text, b"missing pci.ids db");
    }

    #[test]
    fn a_key_is_cut_by_size_and_padding_and_covered_whole() {
        let part = |size, padding| Label { name: "x".into(), size, padding, decoders: Vec::new() };
        let (one, two) = (part(2, 2), part(4, 0));
        assert_eq!(covered([&one, &two]), 8);
        assert_eq!(cut(&[&one, &two], &[1, 2, 3, 4, 5, 6, 7, 8]), Some(vec![&[1, 2][..], &[5, 6, 7, 8]]));
        assert_eq!((cut(&[&one, &two], &[0; 7]), cut(&[&one, &two], &[0; 9])), (None, None));
    }
}
