//! How a name gets out of a Rust library with a version: a jump in assembly under a name of its own, and `.symver`.
//!
//! rustc hides symbols that are not its own, and gives no versions to what it does. A symbol of `global_asm!` it does not see; the
//! version script of `build.rs` defines the nodes that the names here refer to.

/// Unconditional jump.
#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp {f}"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b {f}"
    };
}
pub(crate) use jump;

/// Exports functions: `"name" "NODE" default|compat path;`.
macro_rules! exports {
    (@at default) => { "@@" };
    (@at compat) => { "@" };
    ($($name:literal $node:literal $kind:ident $path:path;)*) => {
        $(
            core::arch::global_asm!(
                ".pushsection .text.uiw_exports,\"ax\",@progbits",
                ".p2align 4",
                concat!(".globl __uiw_", $name, "_", $node),
                concat!(".type __uiw_", $name, "_", $node, ",@function"),
                concat!("__uiw_", $name, "_", $node, ":"),
                $crate::export::jump!(),
                concat!(".size __uiw_", $name, "_", $node, ", . - __uiw_", $name, "_", $node),
                concat!(
                    ".symver __uiw_", $name, "_", $node, ", ", $name,
                    $crate::export::exports!(@at $kind), $node, ", remove"
                ),
                ".popsection",
                f = sym $path,
            );
        )*
    };
}
pub(crate) use exports;

/// Exports `verbs_allow_disassociate_destroy` in a node: `"NODE" default|compat`. The one export that is no function: a flag that
/// vendors' libraries set, and nothing here reads.
macro_rules! export_flag {
    ($node:literal $kind:ident) => {
        core::arch::global_asm!(
            ".pushsection .data.uiw_exports,\"aw\",@progbits",
            concat!(".globl __uiw_flag_", $node),
            concat!(".type __uiw_flag_", $node, ",@object"),
            concat!("__uiw_flag_", $node, ":"),
            ".byte 0",
            concat!(".size __uiw_flag_", $node, ", 1"),
            concat!(
                ".symver __uiw_flag_", $node, ", verbs_allow_disassociate_destroy",
                $crate::export::exports!(@at $kind), $node, ", remove"
            ),
            ".popsection",
        );
    };
}
pub(crate) use export_flag;
