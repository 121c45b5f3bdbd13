//! Selects the types that the engine is compiled with: `cfg(loom)`, or `cfg(shuttle)` with the
//! feature of the same name.

fn main() {
    let shuttle = std::env::var_os("CARGO_FEATURE_SHUTTLE").is_some();
    println!("cargo::rustc-cfg={}", if shuttle { "shuttle" } else { "loom" });
    println!("cargo::rerun-if-changed=build.rs");
}
