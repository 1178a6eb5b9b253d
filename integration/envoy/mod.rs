//! Behind a real Envoy: what its clients and operators see.

mod answers;
mod costs;
mod crowd;
mod limits;
mod outages;
mod overrides;
mod problem;
mod restarts;
mod transports;
