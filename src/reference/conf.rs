//! `corebcc.conf(5)`: sections and options, from the modules' declarations.

use super::man::DATE;
use super::roff::Page;
use super::sorted;
use crate::config::{SettingDef, MODULE_OPTIONS, PMDA, SCRIPT_OPTIONS};
use crate::kit::{capitalized, OptionDef, Spec};

/// Returns the page `corebcc.conf(5)`.
pub fn conf_page(specs: &[&Spec]) -> String {
    let mut page = Page::new("corebcc.conf", 5, DATE);
    description(&mut page);
    options(&mut page, specs);
    files(&mut page);
    page.finish()
}

fn description(page: &mut Page) {
    page.section("NAME").request("corebcc.conf \\- configuration of pmdacorebcc");
    page.section("DESCRIPTION").text(
        "The configuration file of `pmdacorebcc`(1) has the format of pmdabcc's `bcc.conf`, which can be used unchanged: sections in brackets, options with `=` or \
         `:`. Lines that begin with # or ; are comments; no comments after a value.",
    );
    page.paragraph(
        "Files `conf.d/*.conf` beside it are read next, in the order of their names, if they are regular files that belong to root and only \
         root can write to. They add sections, or options that override earlier ones.",
    );
    page.paragraph(
        "After a change, run `pmdacorebcc --check-syntax`, which only reads the files, or `pmdacorebcc --check`, which also loads the modules. \
         Then restart pmcd or run `Install` again; or, with `load_later`, `pmstore bcc.agent.control reload` or SIGHUP: only modules whose \
         sections have changed are loaded again.",
    );
}

fn options(page: &mut Page, specs: &[&Spec]) {
    page.section("OPTIONS OF THE AGENT").subsection("[pmda]");
    declared(page, PMDA);
    page.subsection("[scripts]");
    page.text(
        "With this section, which may be empty, bpftrace(8) runs each script `scripts.d/NAME.bt` beside the configuration file, and its maps are \
         metrics `bcc.script.NAME.data.MAP`. Script and directories must belong to root and be writable by nobody else. Scripts are started, \
         restarted and ended as their files come, change and go; the section itself is read at the start.",
    );
    declared(page, SCRIPT_OPTIONS);
    page.section("MODULES").subsection("Options of every module");
    let (pin, others) = MODULE_OPTIONS.split_last().expect("options are declared");
    declared(page, others);
    page.tagged(&format!("`{}`", pin.name), &format!("{} {}.", pin.doc, Spec::pinnable(specs)));
    for spec in sorted(specs) {
        let needs = if spec.needs.is_empty() { String::new() } else { format!(" Needs {}.", spec.needs) };
        page.subsection(&format!("[{}]", spec.name));
        page.text(&format!(
            "{}; cluster {}. {}.{needs}",
            spec.summary,
            spec.cluster(),
            capitalized(spec.overhead.events)
        ));
        for option in spec.options {
            page.tagged(&format!("`{}`", option.name), &described(option));
        }
    }
}

fn files(page: &mut Page) {
    page.section("FILES");
    for (file, text) in [
        ("$PCP_SYSCONF_DIR/corebcc/corebcc.conf", "the configuration"),
        ("$PCP_SYSCONF_DIR/corebcc/conf.d", "additions by packages and automation"),
        ("$PCP_SYSCONF_DIR/corebcc/programs.d", "programs of a site"),
        ("$PCP_SYSCONF_DIR/corebcc/scripts.d", "scripts of a site"),
        ("$PCP_PMDAS_DIR/corebcc/corebcc.conf.default", "the configuration as shipped"),
    ] {
        page.request(".TP").request(&format!(".I {file}")).text(&capitalized(&format!("{text}.")));
    }
    page.section("SEE ALSO").request(".BR pmdacorebcc (1),\n.BR pmcd (1)");
}

fn declared(page: &mut Page, options: &[SettingDef]) {
    for option in options {
        page.tagged(&format!("`{}`", option.name), option.doc);
    }
}

fn described(option: &OptionDef) -> String {
    let doc: Vec<&str> = option.doc.lines().map(str::trim).collect();
    let default = (option.default)();
    let otherwise = match option.example {
        Some(example) => format!("for example `{example}`"),
        None if default.is_empty() => "default: unset".into(),
        None => format!("default: `{default}`"),
    };
    format!("{} Expected: {}; {otherwise}.", doc.join(" "), option.expected)
}
