//! One file each, the smallest thing that works; run one with
//! `cargo run -p uiw-examples --example send_recv`.
//!
//! | example | shows |
//! |---|---|
//! | `send_recv` | two ends, one message each way |
//! | `write` | RDMA Write into memory the peer opened for one connection only |
//! | `read` | RDMA Read of memory the peer shares, and an atomic on it |
//! | `pingpong` | round trips on the raw layer, one thread polling |
//! | `async_echo` | an echo server and its client as tokio tasks, tokio driving the device |
//! | `rpc` | remote calls as tower services |
//! | `http` | HTTP by hyper over a byte stream, without a change of hyper: several requests on one connection |
//! | `key_value` | a store whose clients get by RDMA Read, without the server's program |
//! | `file_transfer` | a file in blocks, written by RDMA into memory that the receiver opened |
//! | `ninep_bridge` | 9P over RDMA, as Linux mounts it, in front of a file server such as diod |
//! | `embed_stream` | a whole peer without the engine, over any reader and writer |
//! | `embed_smoltcp` | the same peer inside of an existing smoltcp loop: no socket of the kernel's, no thread, no clock |

/// The Rust code of the book's pages, as tests.
#[cfg(doctest)]
mod book {
    #[doc = include_str!("../docs/quick-start.md")]
    struct QuickStart;
    #[doc = include_str!("../docs/rust.md")]
    struct RustGuide;
    #[doc = include_str!("../docs/embedding.md")]
    struct Embedding;
}
