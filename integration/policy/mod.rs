//! What each rule chose: how strict it is, and what happens while a store is out.

mod envoy;
mod mixed;
mod overload;
mod split;
mod strict;
mod surfaces;
mod table;
