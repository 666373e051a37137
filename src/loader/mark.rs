//! The function that a pair's programs can be attached to (`uprobe//proc/self/exe:post_attach_mark`) to run once when all of them are.

/// Called when the programs of a pair are attached. It has a name that the linker keeps, and a body that the compiler cannot leave out.
#[no_mangle]
#[inline(never)]
pub extern "C" fn post_attach_mark() {
    std::hint::black_box(());
}
