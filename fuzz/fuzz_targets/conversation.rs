//! `fuzz/run 60 conversation`: whole conversations of pmcd with the product, over the kernel in memory of the conformance tests.
#![no_main]
#![allow(unused)] // the tests beside it use the rest

use std::cell::RefCell;

#[path = "../../tests/conformance/labels.rs"]
mod labels;
#[path = "../../tests/conformance/product/mod.rs"]
mod product;
#[path = "../../tests/reference/mod.rs"]
mod reference;
#[path = "../../tests/conformance/served.rs"]
mod served;

// One product for all of them: an agent lives as long as its process, and leaves what it has to the kernel's end of that.
thread_local! {
    static CONVERSATIONS: RefCell<product::Conversations> = RefCell::default();
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| CONVERSATIONS.with_borrow_mut(|conversations| conversations.hold(data)));

/// What the tests beside it take from their own root.
fn descs() -> Vec<corebcc::pcp::Desc> {
    served::descs(&reference::Reference::default())
}
