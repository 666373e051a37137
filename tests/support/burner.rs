//! A program that spends its time in one known function, called through known others.

use std::process::{Child, Command};

pub struct Burner {
    pub child: Child,
    _dir: tempfile::TempDir,
}

impl Drop for Burner {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Compiles and starts a program whose `main` calls `burn_outer`, which calls `burn_cycles`, which never returns;
/// `None` without a compiler.
pub fn burner() -> Option<Burner> {
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("burn.c"), dir.path().join("burn_test"));
    let text = "volatile unsigned long n; __attribute__((noinline)) void burn_cycles(void) { for (;;) n++; }\n\
        __attribute__((noinline)) void burn_outer(void) { burn_cycles(); n++; }\n\
        int main(void) { burn_outer(); return 0; }\n";
    std::fs::write(&source, text).unwrap();
    let built = Command::new("cc").args(["-O0", "-fno-omit-frame-pointer", "-o"]).arg(&program).arg(&source).status();
    built.is_ok_and(|status| status.success()).then(|| of(Command::new(&program).spawn().unwrap(), dir))
}

/// Takes over another program that is busy until the test ends.
pub fn of(child: Child, dir: tempfile::TempDir) -> Burner {
    Burner { child, _dir: dir }
}
