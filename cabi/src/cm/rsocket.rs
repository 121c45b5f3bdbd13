//! The rsocket API: its names exist, so that programs which may use it load.

macro_rules! absent {
    ($($name:ident)*) => {
        $(
            /// -1 and ENOSYS.
            pub use crate::refused::absent as $name;
        )*
    };
}

absent! {
    raccept rbind rclose rconnect repoll_create repoll_ctl repoll_wait rfcntl rgetpeername rgetsockname
    rgetsockopt riomap riounmap riowrite rlisten rpoll rread rreadv rrecv rrecvfrom rrecvmsg rselect rsend rsendmsg rsendto
    rsetsockopt rshutdown rsocket rwrite rwritev
}
