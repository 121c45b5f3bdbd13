//! Terminates in words, those of siw as well.
