//! Placements as text.

use std::collections::HashSet;

use dtensor_sharded::{Device, Error, ShardPlacement};

fn parsed(text: &str) -> ShardPlacement {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn ranks_workers_and_devices_are_told_apart() {
    type Case = (&'static str, Option<usize>, Option<&'static str>, &'static str, &'static str);
    let cases: [Case; 13] = [
        ("rank:0", Some(0), None, "cpu", "rank:0/cpu"),
        ("rank:0/cpu", Some(0), None, "cpu", "rank:0/cpu"),
        ("rank:3/cuda:1", Some(3), None, "cuda:1", "rank:3/cuda:1"),
        ("rank:007/cpu", Some(7), None, "cpu", "rank:7/cpu"),
        ("rank:0/cpu:0", Some(0), None, "cpu:0", "rank:0/cpu:0"),
        ("worker0", None, Some("worker0"), "cpu", "worker0/cpu"),
        ("worker0/cuda:2", None, Some("worker0"), "cuda:2", "worker0/cuda:2"),
        ("trainer-1_a/cpu", None, Some("trainer-1_a"), "cpu", "trainer-1_a/cpu"),
        ("cpu/cpu", None, Some("cpu"), "cpu", "cpu/cpu"),
        ("cpu", None, None, "cpu", "cpu"),
        ("cuda:1", None, None, "cuda:1", "cuda:1"),
        ("meta", None, None, "meta", "meta"),
        ("cpu2", None, Some("cpu2"), "cpu", "cpu2/cpu"),
    ];
    for (text, rank, worker, device, shown) in cases {
        let placement = parsed(text);
        assert_eq!(placement.rank(), rank, "{text}");
        assert_eq!(placement.worker(), worker, "{text}");
        assert_eq!(placement.device().to_string(), device, "{text}");
        assert_eq!(placement.to_string(), shown, "{text}");
        assert_eq!(parsed(shown), placement, "{text}");
    }
}

#[test]
fn what_is_no_placement_says_so() {
    let no_owner = [
        "cuda:foo",
        "foo:0",
        "rank:foo",
        "rank:-1/cpu",
        "rank: 1/cpu",
        "Rank:0/cpu",
        "rank:1:2/cpu",
        "worker:1/cpu",
        "/cpu",
        "",
        "a/b/c",
        "rank:",
        "rank:/cpu",
        "rank:99999999999999999999/cpu",
        "rank:+1/cpu",
    ];
    for text in no_owner {
        let error = text.parse::<ShardPlacement>().unwrap_err();
        assert!(matches!(error, Error::BadPlacement { .. }), "{text}: {error}");
        assert!(error.to_string().contains("rank:<rank>/<device>"), "{error}");
    }
    let no_device = [
        "rank:0/foo",
        "rank:0/cpu2",
        "rank:0/cuda:foo",
        "rank:0/",
        "rank:0/cuda:01",
        "rank:0/cuda:",
    ];
    for text in no_device {
        let error = text.parse::<ShardPlacement>().unwrap_err();
        assert!(matches!(error, Error::BadDevice { .. }), "{text}: {error}");
    }
}

#[test]
fn equal_placements_are_one_in_a_set() {
    let texts =
        ["rank:0", "rank:0/cpu", "rank:00/cpu", "rank:0/cpu:0", "rank:1/cpu", "cpu", "w/cpu", "w"];
    let set: HashSet<ShardPlacement> = texts.iter().map(|text| parsed(text)).collect();
    // An index counts: cpu:0 is another device than cpu.
    assert_eq!(set.len(), 5);
    assert_ne!(parsed("rank:0/cpu:0"), parsed("rank:0/cpu"));
}

#[test]
fn a_worker_that_cannot_be_written_cannot_be_made() {
    assert_eq!(ShardPlacement::on_worker("w", Device::CPU).unwrap(), parsed("w/cpu"));
    for name in ["", "a/b", "a:b"] {
        assert!(ShardPlacement::on_worker(name, Device::CPU).is_err(), "{name}");
    }
}

#[test]
fn every_device_of_the_peer_parses_and_only_two_are_here() {
    for name in
        ["cpu", "cuda", "xpu", "mps", "meta", "xla", "hpu", "mtia", "privateuseone", "cuda:7"]
    {
        let device: Device = name.parse().unwrap();
        assert_eq!(device.to_string(), name);
        assert_eq!(device.is_available(), ["cpu", "meta"].contains(&name), "{name}");
    }
}
