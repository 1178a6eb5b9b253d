//! What each rule chose: how strict it is, and what happens while a store is out.

mod envoy;
mod mixed;
pub mod overload;
mod split;
pub mod strict;
pub mod surfaces;
mod table;
