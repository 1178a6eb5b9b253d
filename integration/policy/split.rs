//! `scope: split`: every region has its part of the limit, so that together they keep it without a word between them.

use crate::support::load::{Load, Traffic};
use crate::support::regions::Regions;
use crate::support::verdict::until_layer;

const LIMIT: u64 = 100;
const RULES: &str = "
domain: d
descriptors:
  - {key: a, rate_limit: {requests_per_unit: 100, unit: year, scope: split}}
";
const PROCESSES: usize = 2;

#[test]
fn three_regions_without_mysql_admit_the_limit_and_not_one_more() {
    let outage_after = ("TIDEGATE_GLOBAL_OUTAGE_AFTER", "3s");
    let mut regions = Regions::with(&["c", "a", "b"], PROCESSES, RULES, &[outage_after]);
    regions.mariadb.kill();
    let fleets = regions.regions.iter().map(|region| &region.fleet);
    until_layer(fleets.clone().flat_map(|fleet| &fleet.services), "global", false);
    let addresses: Vec<_> = fleets.flat_map(|fleet| fleet.addresses()).collect();
    let ledger = Load::send(&addresses, Traffic::on("a=x", 5 * LIMIT), 10 * LIMIT);
    assert_eq!(ledger.failed(), 0);
    let of_region = |region: usize| ledger.only(|entry| entry.process / PROCESSES == region).admitted();
    // What does not divide goes to the first by name.
    assert_eq!([0, 1, 2].map(of_region), [33, 34, 33], "c, a and b");
    assert_eq!(ledger.admitted(), LIMIT);
}
