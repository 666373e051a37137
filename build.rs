//! Compiles all of bpf/*.bpf.c as one BPF object: one parse of the kernel's BTF and one load serve every module. From
//! the `ON*` and `FEATURE` lines of the modules it generates the programs, one per hook, that call each module's part.

#[path = "src/loader/excerpt.rs"]
mod excerpt;

use libbpf_cargo::SkeletonBuilder;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Declarations of all `.bpf.c` files, in the order of the files' names.
#[derive(Default)]
struct Programs {
    modules: Vec<String>,
    tracepoints: BTreeMap<String, Hook>,
    entries: BTreeMap<String, Hook>,
    returns: BTreeMap<String, Hook>,
    samples: Vec<(String, String)>,
    packets: BTreeMap<String, Vec<String>>,
    /// Iterators: module, kind, and the types of the arguments.
    walks: Vec<(String, String, Vec<String>)>,
    features: Vec<(String, String)>,
    /// Functions that the agent calls: module, name, and the types of the arguments.
    calls: Vec<(String, String, Vec<String>)>,
    /// Templates: kind of target, and module.
    each: Vec<(Each, String)>,
}

/// Kind of target of a template.
#[derive(Clone, Copy, PartialEq)]
enum Each {
    Tracepoint,
    Entry,
    Return,
    Code,
    CodeReturn,
}

impl Each {
    /// Returns its programs: prefix, section, and the arguments after the number of the target. The context of fentry and fexit lies in the
    /// stack frame of a call, so its address tells calls apart. The templates of fentry and fexit name test functions of the kernel, which
    /// the loader replaces by the real target.
    const fn programs(self) -> &'static [(&'static str, &'static str, &'static str)] {
        match self {
            Each::Tracepoint => &[("each_raw", "raw_tp", ""), ("each_event", "tracepoint", "")],
            Each::Entry => &[
                ("each_fentry", "fentry/bpf_fentry_test1", ", (__u64)ctx"),
                ("each_kprobe", "kprobe", ", PT_REGS_SP((struct pt_regs *)ctx)"),
            ],
            Each::Return => &[
                ("each_fexit", "fexit/bpf_fentry_test1", ", target >> 32, returned(ctx), (__u64)ctx"),
                ("each_kretprobe", "kretprobe", ", target >> 32, PT_REGS_RC((struct pt_regs *)ctx), RETURN_FRAME(ctx)"),
            ],
            Each::Code => &[("each_uprobe", "uprobe", ", ctx")],
            Each::CodeReturn => &[("each_uretprobe", "uretprobe", ", ctx")],
        }
    }

    const fn suffix(self) -> &'static str {
        match self {
            Each::Tracepoint => "each_tracepoint",
            Each::Entry => "each_entry",
            Each::Return => "each_return",
            Each::Code => "each_code",
            Each::CodeReturn => "each_code_return",
        }
    }
}

/// A hook and the modules that take part in it. A hook named `HOOK___WHAT` is a program of its own at HOOK.
#[derive(Default)]
struct Hook {
    /// Types of the arguments; for a return, of the return value.
    types: Vec<String>,
    modules: Vec<String>,
    /// Number of arguments before the return value in the context of fexit; for a return only.
    skip: usize,
}

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let bpf = root.join("bpf");
    println!("cargo:rerun-if-changed=bpf");
    // Programs find it by name in a binary without symbols, too.
    println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol=post_attach_mark");
    // For tests/architectures.rs, which runs this program for others than the machine's.
    println!("cargo:rustc-env=BUILD_PROGRAM={}", env::current_exe().expect("it runs").display());

    let mut sources: Vec<PathBuf> = fs::read_dir(&bpf)
        .expect("bpf/ is part of the project")
        .map(|entry| entry.expect("bpf/ can be read").path())
        .filter(|path| path.to_string_lossy().ends_with(".bpf.c"))
        .collect();
    sources.sort();
    let mut programs = Programs::default();
    for source in &sources {
        programs.scan(source);
    }

    let unit = out.join("corebcc.bpf.c");
    fs::write(&unit, programs.unit()).expect("OUT_DIR can be written");
    let target = match arch.as_str() {
        "x86_64" => "x86",
        "aarch64" => "arm64",
        other => panic!("no BPF register names for {other}: add them to bpf/shared/kernel.h"),
    };
    let (object, skeleton) = (out.join("corebcc.bpf.o"), out.join("corebcc.skel.rs"));
    SkeletonBuilder::new()
        .source(&unit)
        .clang_args([
            format!("-I{}", bpf.display()),
            // The lines of the source, which the object names, are the same wherever it is built.
            "-fdebug-compilation-dir=.".into(),
            format!("-ffile-prefix-map={}=bpf", bpf.display()),
            format!("-ffile-prefix-map={}/=", out.display()),
            format!("-D__TARGET_ARCH_{target}"),
            "-Wall".into(),
            "-Werror".into(),
            "-mcpu=v2".into(),
        ])
        .obj(&object)
        // Only its types are used: the bytes as numbers, and their layout, would take longer than all the rest.
        .reference_obj(true)
        .rustfmt("")
        .build_and_generate(&skeleton)
        .unwrap_or_else(|error| panic!("bpf/: {error:?}"));
    let lean = excerpt::excerpt(&fs::read(&object).expect("it was just written"), |_| true);
    fs::write(&object, lean.expect("clang writes ELF")).expect("OUT_DIR can be written");
    let types = types(&fs::read_to_string(&skeleton).expect("it was just written"));
    fs::remove_file(&skeleton).expect("it was just written");
    for (name, text) in [("programs.rs", programs.table()), ("fields.rs", fields(&types)), ("types.rs", types)] {
        fs::write(out.join(name), text).expect("OUT_DIR can be written");
    }
}

impl Programs {
    fn scan(&mut self, source: &Path) {
        let file = source.file_name().expect("it was listed").to_string_lossy().into_owned();
        let module = file.trim_end_matches(".bpf.c").to_string();
        let text = fs::read_to_string(source).unwrap_or_else(|error| panic!("{file}: {error}"));
        self.scan_lines(source, &module, &text);
        self.modules.push(module);
    }

    /// Scans a header's handlers as those of the module that includes it, unless the header has `#pragma once` and
    /// serves all modules.
    fn scan_header(&mut self, header: &Path, module: &str) {
        let text = fs::read_to_string(header).unwrap_or_else(|error| panic!("{}: {error}", header.display()));
        if !text.lines().any(|line| line == "#pragma once") {
            self.scan_lines(header, module, &text);
        }
    }

    fn scan_lines(&mut self, source: &Path, module: &str, text: &str) {
        let file = source.file_name().expect("it was read").to_string_lossy().into_owned();
        for (number, line) in text.lines().enumerate() {
            if let Some(header) = line.strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"')) {
                self.scan_header(&source.with_file_name(header), module);
                continue;
            }
            let Some((keyword, rest)) = line.split_once('(') else { continue };
            let at = format!("{file}:{}", number + 1);
            let number = |count: &str| -> usize {
                count.parse().unwrap_or_else(|_| panic!("{at}: `{count}`: expected a number of arguments"))
            };
            let arguments = || -> Vec<String> {
                let inside =
                    rest.rsplit_once(')').unwrap_or_else(|| panic!("{at}: {keyword}: end the line with `)`")).0;
                inside.split(',').map(|part| part.trim().to_string()).collect()
            };
            match keyword {
                "ON" => Self::add(&mut self.tracepoints, &at, module, arguments(), 0),
                "ON_ENTRY" => Self::add(&mut self.entries, &at, module, arguments(), 0),
                "ON_RETURN" => {
                    let mut arguments = arguments();
                    let count = arguments.remove(1);
                    Self::add(&mut self.returns, &at, module, arguments, number(&count));
                }
                "ON_SPAN" => {
                    let mut arguments = arguments();
                    arguments.truncate(4); // what follows is C
                    let [function, count, argument, ret] = <[String; 4]>::try_from(arguments)
                        .unwrap_or_else(|_| panic!("{at}: expected a function, count, argument and return value"));
                    Self::add(&mut self.entries, &at, module, vec![function.clone(), argument], 0);
                    Self::add(&mut self.returns, &at, module, vec![function, ret], number(&count));
                }
                "ON_EACH_TRACEPOINT" => self.each.push((Each::Tracepoint, module.to_string())),
                "ON_EACH_ENTRY" => self.each.push((Each::Entry, module.to_string())),
                "ON_EACH_RETURN" => self.each.push((Each::Return, module.to_string())),
                "ON_EACH_CODE" => self.each.push((Each::Code, module.to_string())),
                "ON_EACH_CODE_RETURN" => self.each.push((Each::CodeReturn, module.to_string())),
                "ON_PACKET" => self.packets.entry(arguments().swap_remove(0)).or_default().push(module.to_string()),
                "ON_SAMPLE" => self.samples.push((module.to_string(), arguments().swap_remove(0))),
                "ON_CALL" => self.calls.push(Self::function(module, arguments())),
                "ON_WALK" => self.walks.push(Self::function(module, arguments())),
                "FEATURE" => self.features.push((module.to_string(), arguments().swap_remove(0))),
                _ => {}
            }
        }
    }

    /// Returns module, name and types of the arguments.
    fn function(module: &str, mut arguments: Vec<String>) -> (String, String, Vec<String>) {
        let name = arguments.remove(0);
        (module.to_string(), name, arguments.iter().map(|argument| type_of(argument)).collect())
    }

    fn add(hooks: &mut BTreeMap<String, Hook>, at: &str, module: &str, mut arguments: Vec<String>, skip: usize) {
        let name = arguments.remove(0);
        let types: Vec<String> = arguments.iter().map(|argument| type_of(argument)).collect();
        let hook = hooks.entry(name.clone()).or_default();
        if hook.modules.is_empty() {
            (hook.types, hook.skip) = (types, skip);
        } else if hook.types != types[..types.len().min(hook.types.len())] && types != hook.types {
            panic!("{at}: {name}: other arguments than {} gives it", hook.modules[0]);
        }
        hook.modules.push(module.to_string());
    }

    /// Generates the C file: every module, then the programs.
    fn unit(&self) -> String {
        let mut c = String::from("#include \"shared/probe.bpf.h\"\n\nchar LICENSE[] SEC(\"license\") = \"GPL\";\n\n");
        for module in &self.modules {
            let _ = writeln!(c, "const volatile bool {module}_on;");
        }
        let _ = writeln!(c, "const volatile bool stoppable;\nvolatile __u8 parts[{}];", self.modules.len().max(1));
        for (i, module) in self.modules.iter().enumerate() {
            let _ = writeln!(c, "#define {module}_part parts[{i}]");
        }
        for module in &self.modules {
            let _ = writeln!(c, "\n#define MODULE {module}\n#include \"{module}.bpf.c\"\n#undef MODULE");
        }
        for (name, hook) in &self.tracepoints {
            hook.program(&mut c, name, "", "tp_btf", "tp", "false", |i| format!("ctx[{i}]"));
            hook.program(&mut c, name, "", "raw_tp", "raw", "true", |i| format!("ctx[{i}]"));
        }
        for (name, hook) in &self.entries {
            hook.program(&mut c, name, "", "fentry", "fentry", "false", |i| format!("ctx[{i}]"));
            hook.program(&mut c, name, "", "kprobe", "kprobe", "true", |i| format!("PT_REGS_PARM{}(regs)", i + 1));
        }
        for (name, hook) in &self.returns {
            hook.program(&mut c, name, "_ret", "fexit", "fexit", "false", |_| format!("ctx[{}]", hook.skip));
            hook.program(&mut c, name, "_ret", "kretprobe", "kretprobe", "true", |_| "PT_REGS_RC(regs)".into());
        }
        for (each, module) in &self.each {
            for (prefix, section, arguments) in each.programs() {
                let suffix = each.suffix();
                let _ = writeln!(
                    c,
                    "\nSEC(\"{section}\")\nint {prefix}__{module}(void *ctx)\n{{\n\t__u64 target = TARGET;\n\n\t\
                     {module}__{suffix}((__u32)target{arguments});\n\treturn 0;\n}}"
                );
            }
        }
        for (module, name) in &self.samples {
            let _ = writeln!(c, "\nSEC(\"perf_event\")\nint perf__{name}(void *ctx)\n{{\n\t{module}__{name}_sample(ctx);\n\treturn 0;\n}}");
        }
        for (way, modules) in &self.packets {
            let part = |module: &String| format!("\tif (RUNS({module}))\n\t\t{module}__{way}_packet(skb);\n");
            let parts: String = modules.iter().map(part).collect();
            // 1: the packet passes.
            let _ = writeln!(
                c,
                "\nSEC(\"cgroup_skb/{way}\")\nint skb__{way}(struct __sk_buff *skb)\n{{\n{parts}\treturn 1;\n}}"
            );
        }
        let from_context = |types: &[String]| -> String {
            let arguments: Vec<String> = types.iter().enumerate().map(|(i, ty)| format!("({ty})ctx[{i}]")).collect();
            arguments.join(", ")
        };
        for (module, kind, types) in &self.walks {
            let arguments = from_context(types);
            let _ = writeln!(
                c,
                "\nSEC(\"iter/{kind}\")\nint iter__{kind}(__u64 *ctx)\n{{\n\t{module}__{kind}_walk({arguments});\n\treturn 0;\n}}"
            );
        }
        for (module, name, types) in &self.calls {
            let arguments = from_context(types);
            let _ = writeln!(
                c,
                "\nSEC(\"raw_tp\")\nint call__{name}(__u64 *ctx)\n{{\n\treturn {module}__{name}_call({arguments});\n}}"
            );
        }
        let _ = writeln!(
            c,
            "\n__u8 features[{}];\n\nSEC(\"raw_tp\")\nint ask_features(void *ctx)\n{{",
            self.features.len().max(1)
        );
        for (i, (_, feature)) in self.features.iter().enumerate() {
            let _ = writeln!(c, "\tfeatures[{i}] = feature__{feature}();");
        }
        c + "\treturn 0;\n}\n"
    }

    /// Generates the Rust table: modules by program, and the features in their order.
    fn table(&self) -> String {
        let mut rust = String::from(
            "/// Each program, and the modules with a part in it.\nconst PROGRAMS: &[(&str, &[&str])] = &[\n",
        );
        let kinds = [
            (&self.tracepoints, ["tp", "raw"]),
            (&self.entries, ["fentry", "kprobe"]),
            (&self.returns, ["fexit", "kretprobe"]),
        ];
        for (hooks, prefixes) in kinds {
            for (name, hook) in hooks {
                for prefix in prefixes {
                    let _ = writeln!(rust, "    (\"{prefix}__{name}\", &{:?}),", hook.modules);
                }
            }
        }
        for (each, module) in &self.each {
            for (prefix, _, _) in each.programs() {
                let _ = writeln!(rust, "    (\"{prefix}__{module}\", &[\"{module}\"]),");
            }
        }
        for (module, name) in &self.samples {
            let _ = writeln!(rust, "    (\"perf__{name}\", &[\"{module}\"]),");
        }
        for (way, modules) in &self.packets {
            let _ = writeln!(rust, "    (\"skb__{way}\", &{modules:?}),");
        }
        for (module, kind, _) in &self.walks {
            let _ = writeln!(rust, "    (\"iter__{kind}\", &[\"{module}\"]),");
        }
        for (module, name, _) in &self.calls {
            let _ = writeln!(rust, "    (\"call__{name}\", &[\"{module}\"]),");
        }
        let _ = writeln!(rust, "];\n\n/// The modules, in the order of `parts`.\nconst PARTS: &[&str] = &[");
        for module in &self.modules {
            let _ = writeln!(rust, "    \"{module}\",");
        }
        let features: Vec<&String> = self.features.iter().map(|(_, feature)| feature).collect();
        let _ = writeln!(rust, "];\n\n/// What the modules ask the kernel's types (`FEATURE` lines).\npub mod features {{\n    use super::Feature;");
        for feature in &features {
            let name = feature.to_uppercase();
            let _ = writeln!(rust, "\n    /// The answer of `FEATURE({feature}, ...)`.\n    pub const {name}: Feature = Feature(\"{feature}\");");
        }
        let names: Vec<String> =
            features.iter().map(|feature| format!("features::{}", feature.to_uppercase())).collect();
        let _ = writeln!(rust, "}}\n\n/// The questions `ask_features` answers, in the order of its answers.\nconst FEATURES: &[Feature] = &[{}];", names.join(", "));
        let _ = writeln!(rust, "\n/// Switches a module's part of its programs on before loading.\nfn switch_on(rodata: &mut types::rodata, module: &str) -> bool {{\n    let on = match module {{");
        for module in &self.modules {
            let _ = writeln!(rust, "        \"{module}\" => &mut rodata.{module}_on,");
        }
        rust.push_str("        _ => return false,\n    };\n    *on = true;\n    true\n}\n");
        let _ = writeln!(rust, "\n/// Has everything take a feature for the opposite of what the kernel's types say; false if there is none of the name.\nfn oppose(rodata: &mut types::rodata, feature: &str) -> bool {{\n    let opposite = match feature {{");
        for feature in features {
            let _ = writeln!(rust, "        \"{feature}\" => &mut rodata.opposite__{feature},");
        }
        rust + "        _ => return false,\n    };\n    *opposite = true;\n    true\n}\n"
    }
}

impl Hook {
    #[allow(clippy::too_many_arguments)]
    fn program(
        &self,
        c: &mut String,
        name: &str,
        suffix: &str,
        section: &str,
        prefix: &str,
        raw: &str,
        argument: impl Fn(usize) -> String,
    ) {
        let context = if section.ends_with("probe") { "struct pt_regs *regs" } else { "__u64 *ctx" };
        let place = name.split("___").next().unwrap_or(name);
        let _ = writeln!(c, "\nSEC(\"{section}/{place}\")\nint {prefix}__{name}({context})\n{{");
        let arguments: String =
            self.types.iter().enumerate().map(|(i, ty)| format!(", ({ty}){}", argument(i))).collect();
        let ctx = if section.ends_with("probe") { "regs" } else { "ctx" };
        // What is one module's alone is detached with it.
        let is_shared = self.modules.len() > 1;
        for module in &self.modules {
            let runs = if is_shared { format!("RUNS({module})") } else { format!("{module}_on") };
            let _ = writeln!(c, "\tif ({runs})\n\t\t{module}__{name}{suffix}({raw}, {ctx}{arguments});");
        }
        c.push_str("\treturn 0;\n}\n");
    }
}

/// Returns the type of a declaration: `struct request *` for `struct request *rq`.
fn type_of(argument: &str) -> String {
    argument.trim_end_matches(|c: char| c.is_ascii_alphanumeric() || c == '_').trim_end().to_string()
}

/// Generates a constant per field of each C struct, so that `row.get(fork_row::threads)` is checked by type.
fn fields(types: &str) -> String {
    let file = syn::parse_file(types).expect("libbpf-cargo writes Rust");
    let mut rust = String::new();
    for item in file.items {
        let syn::Item::Struct(item) = item else { continue };
        let name = &item.ident;
        if name.to_string().starts_with("__anon_") && !is_row(&item) {
            continue; // the declaration of a map
        }
        let _ = writeln!(rust, "impl types::{name} {{");
        for field in &item.fields {
            let (Some(ident), syn::Visibility::Public(_)) = (&field.ident, &field.vis) else { continue };
            let (ty, name) = (in_types(&field.ty), &item.ident);
            let _ = writeln!(
                rust,
                "    pub const {ident}: Field<Self, {ty}> = Field::at(offset_of!(types::{name}, {ident}));"
            );
        }
        rust.push_str("}\n");
        if name == "rodata" {
            rust.push_str("/// Where the constants are, and their sizes: all that is no padding.\npub(super) const CONSTANTS: &[(usize, usize)] = &[\n");
            for field in &item.fields {
                if let (Some(ident), syn::Visibility::Public(_)) = (&field.ident, &field.vis) {
                    let ty = in_types(&field.ty);
                    let _ = writeln!(rust, "    (offset_of!(types::rodata, {ident}), size_of::<{ty}>()),");
                }
            }
            rust.push_str("];\n");
        }
    }
    rust
}

/// Returns the items of the module `types` of a skeleton.
fn types(skeleton: &str) -> String {
    let (_, rest) = skeleton.split_once("pub mod types {").expect("a skeleton has its object's types");
    let mut depth = 1;
    let is_end = |c: char| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        depth == 0
    };
    rest[..rest.find(is_end).expect("the module ends")].to_string()
}

/// True if an anonymous struct is part of a row; declarations of maps consist of pointers.
fn is_row(item: &syn::ItemStruct) -> bool {
    !item.fields.iter().any(|field| matches!(field.ty, syn::Type::Ptr(_)))
}

/// Returns a type of the skeleton's module `types` by its path from outside.
fn in_types(ty: &syn::Type) -> String {
    match ty {
        syn::Type::Array(array) => {
            let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Int(length), .. }) = &array.len else {
                panic!("the length of an array is a number")
            };
            format!("[{}; {length}]", in_types(&array.elem))
        }
        syn::Type::Path(path) => {
            let name = path.path.segments.last().expect("a path has a name").ident.to_string();
            let is_number = ["u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "bool"].contains(&name.as_str());
            if is_number {
                name
            } else {
                format!("types::{name}")
            }
        }
        _ => "()".into(),
    }
}
