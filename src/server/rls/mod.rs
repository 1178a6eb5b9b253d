//! Between Envoy's messages and our own types: a request that comes by gRPC meets both only here.

pub(crate) mod metadata;
#[cfg(test)]
mod oracle;
pub mod read;
pub(crate) mod should_rate_limit;
#[cfg(test)]
mod tests;
pub mod write;

use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit;

use crate::request::Unit;

/// The descriptors of RateLimitService and all it needs: the part of envoy-types' own set that starts at
/// `envoy/service/ratelimit/v3/rls.proto`, without comments. Serves reflection and the JSON form.
pub const DESCRIPTORS: &[u8] = include_bytes!("rls.bin");

/// The one method of RateLimitService.
pub const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The beginning of the paths of all its methods.
pub const RATE_LIMIT_SERVICE: &str = "/envoy.service.ratelimit.v3.RateLimitService/";

/// The unit that a number of the protocol stands for; `None` for a number without a unit.
pub fn unit(number: i32) -> Option<Unit> {
    Unit::ALL.into_iter().find(|unit| unit_number(*unit) == number)
}

/// The protocol's number, the same in requests and answers.
pub fn unit_number(unit: Unit) -> i32 {
    let unit = match unit {
        Unit::Second => rate_limit::Unit::Second,
        Unit::Minute => rate_limit::Unit::Minute,
        Unit::Hour => rate_limit::Unit::Hour,
        Unit::Day => rate_limit::Unit::Day,
        Unit::Week => rate_limit::Unit::Week,
        Unit::Month => rate_limit::Unit::Month,
        Unit::Year => rate_limit::Unit::Year,
    };
    unit as i32
}
