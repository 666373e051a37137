//! The function at which a pair's programs run once after all of them are attached
//! (`uprobe//proc/self/exe:post_attach_mark`).

/// Called when the programs of a pair are attached. Its symbol is kept by the linker, and the compiler cannot remove
/// its body.
#[no_mangle]
#[inline(never)]
pub extern "C" fn post_attach_mark() {
    std::hint::black_box(());
}
