//! Rules from a management server: the aggregated discovery service, in its state-of-the-world form.
//!
//! Each response has all rules and replaces all. It is taken or refused as a whole, like files are. [`message`] turns
//! the server's messages into what a rule file says, so that both are read by the same code, and [`subscription`] knows
//! what to tell the server.

pub(crate) mod message;
pub(crate) mod settings;
pub(crate) mod stream;
pub(crate) mod subscription;
