//! The demo of `docker-compose.yml`, with its settings, its rules and its Envoy, on this machine's own servers.

use std::collections::HashMap;
use std::net::TcpStream;

use serde_json::Value;

use crate::kubernetes::container_image::{read, yaml};
use crate::support::envoy_proxy::Envoy;
use crate::support::fleet::PATIENT;
use crate::support::harness::{PATIENCE, Service, free_port, http_over, tidegate, until};
use crate::support::mariadb::MariaDbServer;
use crate::support::redis::RedisServer;
use crate::support::regions::{HEARD, migrate};

/// A Tidegate of the compose file. Its stores and ports are those of the test.
fn started(compose: &Value, name: &str, redis: &HashMap<String, RedisServer>, mariadb: &MariaDbServer) -> Service {
    let mut command = tidegate(&["serve", "--host", "127.0.0.1", "--port", "0", "--grpc-host", "127.0.0.1"]);
    command.args(["--grpc-port", "0", "--rules", "demo/rules", "--log-level", "warn"]);
    command.args(["--prometheus-addr", &format!("127.0.0.1:{}", free_port())]);
    let settings = compose["services"][name]["environment"].as_object().expect("settings");
    command.envs(settings.iter().map(|(setting, value)| (setting, value.as_str().unwrap())));
    let host = settings["REDIS_URL"].as_str().unwrap().split(':').next().unwrap();
    command.env("REDIS_URL", redis[host].url()).env("MYSQL_URL", mariadb.url()).env(PATIENT.0, PATIENT.1);
    Service::of(command)
}

#[test]
fn the_demo_does_what_its_file_says() {
    let compose = yaml(&read("docker-compose.yml"));
    let mariadb = MariaDbServer::start();
    migrate(&mariadb);
    let redis = ["redis-eu", "redis-us"].map(|name| (name.to_owned(), RedisServer::start())).into();
    let names = ["tidegate-eu-1", "tidegate-eu-2", "tidegate-us"];
    let services = names.map(|name| (name, started(&compose, name, &redis, &mariadb)));

    // The machine is busy: Envoy waits for longer than its 20 ms.
    let mut config = read("demo/envoy.yaml").replace("domain: demo", "domain: demo\n                      timeout: 5s");
    for (name, service) in &services {
        let here = format!("address: 127.0.0.1, port_value: {}", service.grpc.port());
        config = config.replace(&format!("address: {name}, port_value: 8081"), &here);
    }
    for port in ["9901", "10000", "10001"] {
        config = config.replace(&format!("0.0.0.0, port_value: {port}"), "127.0.0.1, port_value: 0");
    }
    let application = free_port();
    let envoy = Envoy::start(&config.replace("port_value: 8000", &format!("port_value: {application}")));
    let ask = |region: &str, user: &str| {
        let stream = TcpStream::connect_timeout(&envoy.listener(region), PATIENCE).unwrap();
        http_over(stream, "GET", "/", &[("x-user", user)], "").status
    };
    for (_, service) in &services[..2] {
        until(PATIENCE, "both processes of eu know each other", || {
            (service.metric("tidegate_regional_live_processes") == Some(2.0)).then_some(())
        });
    }

    // Two processes, one limit. Where the clock's minute turns meanwhile, an eleventh may pass.
    let answers: Vec<u16> = (0..12).map(|_| ask("eu", "alice")).collect();
    let passed = answers.iter().filter(|status| **status == 200).count();
    assert!((10..=11).contains(&passed) && answers[11] == 429, "{answers:?}");
    let admitted = |(_, service): &(&str, Service)| service.metric("tidegate_decisions_total{outcome=\"ok\"}");
    assert!(services[..2].iter().all(|service| admitted(service) > Some(0.0)), "both were asked");

    // And the other region hears of it.
    let us = &services[2].1;
    until(HEARD, "us has heard of eu", || (us.counted("demo", "user=alice") >= 9).then_some(()));
    let answers: Vec<u16> = (0..3).map(|_| ask("us", "alice")).collect();
    assert_eq!(answers[2], 429, "{answers:?}");
    assert_eq!(ask("us", "bob"), 200);
}
