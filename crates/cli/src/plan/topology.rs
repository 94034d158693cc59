use clap::Args;
use dtensor_layout::{
    Mesh,
    plan::{Link, Topology},
};

use crate::{
    error::{Error, Result},
    parse::PerLink,
};

/// What communication costs on the machine that the plan is for.
#[derive(Args)]
pub struct TopologyArgs {
    /// Hosts that the ranks are spread over, consecutive ranks together [default: 1]
    #[arg(long, value_name = "N", conflicts_with = "ranks_per_host")]
    hosts: Option<usize>,
    /// Consecutive ranks that share a host
    #[arg(long, value_name = "N")]
    ranks_per_host: Option<usize>,
    /// Bandwidth of a rank in GB/s, inside a host and between hosts; one number is for both
    /// [default: 87.7,19.3]
    #[arg(long, value_name = "GB/S[,GB/S]")]
    bandwidth: Option<PerLink>,
    /// Time of one hop in microseconds, inside a host and between hosts [default: 0.6,2.7]
    #[arg(long, value_name = "US[,US]")]
    latency: Option<PerLink>,
    /// Fixed time of a call in microseconds [default: 6.6]
    #[arg(long, value_name = "US", value_parser = crate::parse::positive)]
    launch: Option<f64>,
}

impl TopologyArgs {
    /// The topology for a world that has all ranks of these meshes.
    pub fn topology(&self, meshes: &[&Mesh]) -> Result<Topology> {
        let default = Topology::default();
        let ranks_per_host = match (self.hosts, self.ranks_per_host) {
            (Some(0), _) => return Err(Error::usage("--hosts 0: ranks need at least one host")),
            (_, Some(0)) => {
                return Err(Error::usage("--ranks-per-host 0: a host has at least one rank"));
            }
            (_, Some(ranks)) => ranks,
            (Some(hosts), None) => world_size(meshes).div_ceil(hosts),
            (None, None) => default.ranks_per_host,
        };
        let bandwidth = self.bandwidth.unwrap_or(PerLink {
            inside: default.inside.gigabytes_per_s,
            between: default.between.gigabytes_per_s,
        });
        let latency = self.latency.unwrap_or(PerLink {
            inside: default.inside.latency_us,
            between: default.between.latency_us,
        });
        Ok(Topology {
            ranks_per_host,
            launch_us: self.launch.unwrap_or(default.launch_us),
            inside: Link { latency_us: latency.inside, gigabytes_per_s: bandwidth.inside },
            between: Link { latency_us: latency.between, gigabytes_per_s: bandwidth.between },
        })
    }
}

/// Ranks from 0 to the last one on any of the meshes.
fn world_size(meshes: &[&Mesh]) -> usize {
    let last = |mesh: &&Mesh| {
        let axes = mesh.axes().iter();
        mesh.base() + axes.map(|axis| axis.offset(axis.size() - 1)).sum::<usize>()
    };
    meshes.iter().map(last).max().unwrap_or(0) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(hosts: Option<usize>, ranks_per_host: Option<usize>) -> TopologyArgs {
        TopologyArgs { hosts, ranks_per_host, bandwidth: None, latency: None, launch: None }
    }

    #[test]
    fn hosts_share_the_ranks_of_the_whole_world() {
        let mesh: Mesh = "dp=4,tp=8".parse().unwrap();
        let outside: Mesh = "x=4:1@96".parse().unwrap();
        let per_host = |hosts, meshes: &[&Mesh]| {
            args(Some(hosts), None).topology(meshes).unwrap().ranks_per_host
        };
        assert_eq!(per_host(4, &[&mesh]), 8);
        assert_eq!(per_host(3, &[&mesh]), 11);
        assert_eq!(per_host(100, &[&mesh]), 1);
        assert_eq!(per_host(4, &[&mesh, &outside]), 25);
        assert_eq!(args(None, None).topology(&[&mesh]).unwrap(), Topology::default());
    }

    #[test]
    fn no_hosts_at_all_is_refused() {
        let mesh: Mesh = "2".parse().unwrap();
        assert!(args(Some(0), None).topology(&[&mesh]).is_err());
        assert!(args(None, Some(0)).topology(&[&mesh]).is_err());
    }

    #[test]
    fn links_that_are_given_replace_the_default_ones() {
        let mesh: Mesh = "2".parse().unwrap();
        let given = TopologyArgs {
            bandwidth: Some("100,10".parse().unwrap()),
            latency: Some("2".parse().unwrap()),
            launch: Some(1.0),
            ..args(None, Some(8))
        };
        let topology = given.topology(&[&mesh]).unwrap();
        assert_eq!(topology.inside, Link { latency_us: 2.0, gigabytes_per_s: 100.0 });
        assert_eq!(topology.between, Link { latency_us: 2.0, gigabytes_per_s: 10.0 });
        assert_eq!((topology.ranks_per_host, topology.launch_us), (8, 1.0));
    }
}
