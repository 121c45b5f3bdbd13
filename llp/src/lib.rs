//! Lower-layer protocol: byte streams behind one trait.
