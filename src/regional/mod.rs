//! Does the region agree: processes converge through the region's Redis, the origin.

pub mod call;
