//! What the tests stand on: the servers that they start, the clients that ask, and the oracles that answers are compared with.

pub mod bystander;
pub mod certificates;
pub mod cutting_proxy;
pub mod envoy_proxy;
pub mod fleet;
pub mod flood;
pub mod frames;
pub mod harness;
pub mod kubernetes_objects;
pub mod ledger;
pub mod load;
pub mod management_server;
pub mod manifests;
pub mod mariadb;
pub mod promise;
pub mod redis;
pub mod redis_cluster;
pub mod regions;
pub mod sentinels;
pub mod stub;
pub mod upstream;
pub mod verdict;
