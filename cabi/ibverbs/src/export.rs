//! Exports functions of a Rust library under C names with symbol versions.
//!
//! rustc hides all symbols that it did not create itself and assigns them no version. It does not
//! see the symbols of `global_asm!`, so each exported name is a jump in assembly under a private
//! name, which `.symver` publishes. The version script of `build.rs` defines the version nodes that
//! the names refer to.
//!
//! There are three kinds of jumps. `own!` always jumps to our function. The other two have a slot
//! each (`uiw_cabi_verbs::system`), which holds the address of the function in the system's
//! libibverbs once that library is loaded: then `system!` jumps to that function, and `object!`
//! does so if the first argument is not one of our objects. All jumps preserve the registers that
//! contain arguments.

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

/// Jumps to the address in the slot of this name: our function, or that of the system.
#[cfg(target_arch = "x86_64")]
macro_rules! jump_by_slot {
    ($slot:expr) => {
        concat!("jmp qword ptr [rip + ", $slot, " + 24]")
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump_by_slot {
    ($slot:expr) => {
        concat!(
            "adrp x16, ",
            $slot,
            "\n",
            "add x16, x16, :lo12:",
            $slot,
            "\n",
            "ldr x16, [x16, 24]\n",
            "br x16"
        )
    };
}
pub(crate) use jump_by_slot;

/// Jumps to our function. Once the system's library is loaded, jumps to `__uiw_by_object` instead,
/// with the slot in a register that contains no argument.
#[cfg(target_arch = "x86_64")]
macro_rules! jump_by_object {
    ($slot:expr) => {
        concat!(
            "cmp byte ptr [rip + {loaded}], 0\n",
            "jne 2f\n",
            "jmp {f}\n",
            "2:\n",
            "lea rax, [rip + ",
            $slot,
            "]\n",
            "jmp __uiw_by_object"
        )
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump_by_object {
    ($slot:expr) => {
        concat!(
            "adrp x17, {loaded}\n",
            "ldrb w17, [x17, :lo12:{loaded}]\n",
            "cbnz w17, 2f\n",
            "b {f}\n",
            "2:\n",
            "adrp x16, ",
            $slot,
            "\n",
            "add x16, x16, :lo12:",
            $slot,
            "\n",
            "b __uiw_by_object"
        )
    };
}
pub(crate) use jump_by_object;

// Decides whose object the first argument is. Every argument of these functions is an integer or a
// pointer in a register.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".pushsection .text.uiw_exports,\"ax\",@progbits",
    ".p2align 4",
    ".globl __uiw_by_object",
    ".hidden __uiw_by_object",
    ".type __uiw_by_object,@function",
    "__uiw_by_object:",
    "push rdi",
    "push rsi",
    "push rdx",
    "push rcx",
    "push r8",
    "push r9",
    // With this push and the return address, the stack is aligned to 16 bytes.
    "push rax",
    "call {is_ours}",
    "mov r10d, eax",
    "pop rax",
    "pop r9",
    "pop r8",
    "pop rcx",
    "pop rdx",
    "pop rsi",
    "pop rdi",
    "test r10b, r10b",
    "je 2f",
    "jmp qword ptr [rax + 16]",
    "2:",
    "jmp qword ptr [rax + 24]",
    ".size __uiw_by_object, . - __uiw_by_object",
    ".popsection",
    is_ours = sym uiw_cabi_verbs::system::is_ours,
);
#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".pushsection .text.uiw_exports,\"ax\",@progbits",
    ".p2align 4",
    ".globl __uiw_by_object",
    ".hidden __uiw_by_object",
    ".type __uiw_by_object,@function",
    "__uiw_by_object:",
    "stp x29, x30, [sp, -96]!",
    "stp x0, x1, [sp, 16]",
    "stp x2, x3, [sp, 32]",
    "stp x4, x5, [sp, 48]",
    "stp x6, x7, [sp, 64]",
    "str x16, [sp, 80]",
    "bl {is_ours}",
    "mov w17, w0",
    "ldp x0, x1, [sp, 16]",
    "ldp x2, x3, [sp, 32]",
    "ldp x4, x5, [sp, 48]",
    "ldp x6, x7, [sp, 64]",
    "ldr x16, [sp, 80]",
    "ldp x29, x30, [sp], 96",
    "tst w17, 0xff",
    "b.eq 2f",
    "ldr x16, [x16, 16]",
    "br x16",
    "2:",
    "ldr x16, [x16, 24]",
    "br x16",
    ".size __uiw_by_object, . - __uiw_by_object",
    ".popsection",
    is_ours = sym uiw_cabi_verbs::system::is_ours,
);

/// Assembly of a name: its jump, and the directives that export it.
macro_rules! exported {
    (@at default) => { "@@" };
    (@at compat) => { "@" };
    ($name:literal $node:literal $kind:ident, $jump:expr, $($operand:tt)*) => {
        core::arch::global_asm!(
            ".pushsection .text.uiw_exports,\"ax\",@progbits",
            ".p2align 4",
            concat!(".globl __uiw_", $name, "_", $node),
            concat!(".type __uiw_", $name, "_", $node, ",@function"),
            concat!("__uiw_", $name, "_", $node, ":"),
            $jump,
            concat!(".size __uiw_", $name, "_", $node, ", . - __uiw_", $name, "_", $node),
            concat!(
                ".symver __uiw_", $name, "_", $node, ", ", $name,
                $crate::export::exported!(@at $kind), $node, ", remove"
            ),
            ".popsection",
            $($operand)*
        );
    };
}
pub(crate) use exported;

/// Slot of a name: `uiw_cabi_verbs::system::Slot`.
macro_rules! slot {
    ($name:literal $node:literal $path:path) => {
        core::arch::global_asm!(
            ".pushsection .rodata.uiw_slots,\"a\",@progbits",
            concat!("__uiw_name_", $name, "_", $node, ": .asciz \"", $name, "\""),
            concat!("__uiw_node_", $name, "_", $node, ": .asciz \"", $node, "\""),
            ".popsection",
            ".pushsection uiw_slots,\"aw\",@progbits",
            ".p2align 3",
            concat!(".globl __uiw_slot_", $name, "_", $node),
            concat!(".hidden __uiw_slot_", $name, "_", $node),
            concat!("__uiw_slot_", $name, "_", $node, ":"),
            concat!(".quad __uiw_name_", $name, "_", $node),
            concat!(".quad __uiw_node_", $name, "_", $node),
            ".quad {f}",
            ".quad {f}",
            ".popsection",
            f = sym $path,
        );
    };
}
pub(crate) use slot;

/// Exports functions: `"name" "NODE" default|compat path;`.
macro_rules! own {
    ($($name:literal $node:literal $kind:ident $path:path;)*) => {
        $($crate::export::exported!($name $node $kind, $crate::export::jump!(), f = sym $path,);)*
    };
}
pub(crate) use own;

/// Like [`own!`], but calls the system's function once its library is loaded.
macro_rules! system {
    ($($name:literal $node:literal $kind:ident $path:path;)*) => {
        $(
            $crate::export::slot!($name $node $path);
            $crate::export::exported!(
                $name $node $kind, $crate::export::jump_by_slot!(concat!("__uiw_slot_", $name, "_", $node)),
            );
        )*
    };
}
pub(crate) use system;

/// Like [`own!`], but calls the system's function if the first argument is an object of its
/// library.
macro_rules! object {
    ($($name:literal $node:literal $kind:ident $path:path;)*) => {
        $(
            $crate::export::slot!($name $node $path);
            $crate::export::exported!(
                $name $node $kind, $crate::export::jump_by_object!(concat!("__uiw_slot_", $name, "_", $node)),
                f = sym $path, loaded = sym uiw_cabi_verbs::system::LOADED,
            );
        )*
    };
}
pub(crate) use object;

/// Exports `verbs_allow_disassociate_destroy`. It is the only exported variable: a flag that
/// vendors' libraries set and that nothing here reads.
macro_rules! flag {
    ($($name:literal $node:literal $kind:ident -;)*) => {
        $(core::arch::global_asm!(
            ".pushsection .data.uiw_exports,\"aw\",@progbits",
            concat!(".globl __uiw_flag_", $node),
            concat!(".type __uiw_flag_", $node, ",@object"),
            concat!("__uiw_flag_", $node, ":"),
            ".byte 0",
            concat!(".size __uiw_flag_", $node, ", 1"),
            concat!(
                ".symver __uiw_flag_", $node, ", ", $name,
                $crate::export::exported!(@at $kind), $node, ", remove"
            ),
            ".popsection",
        );)*
    };
}
pub(crate) use flag;
