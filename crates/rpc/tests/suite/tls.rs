//! Encrypted connections, with certificates made on the spot.

use std::time::Duration;

use dtensor_rpc::{Error, Options, Reply, TlsOptions, init_rpc};
use proptest::{prelude::*, test_runner::TestRunner};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::{
    hostile::{GREETING, hung_up_on, throw},
    support::{hasty, spmd},
};

const NAME: &str = "worker.example";

/// A root of its own, and a certificate for a worker.
struct Authority {
    root: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Authority { root }
    }

    fn worker(&self, mutual: bool) -> TlsOptions {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![NAME.to_string()]).unwrap();
        let certificate = params.signed_by(&key, &self.root).unwrap();
        TlsOptions {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
            ca: self.root.pem(),
            domain_name: NAME.to_string(),
            mutual,
        }
    }
}

#[test]
fn workers_talk_over_tls_also_where_both_show_certificates() {
    let authority = Authority::new();
    for mutual in [false, true] {
        spmd(2, |world| {
            let options = Options {
                // Allowed because it is encrypted.
                bind: "0.0.0.0:0".parse()?,
                advertise: Some("127.0.0.1:0".parse()?),
                tls: Some(authority.worker(mutual)),
                ..Options::default()
            };
            let agent = init_rpc(world, &format!("w{}", world.rank()), options)?;
            agent.register("echo", |_, request| {
                Ok(Reply::new("").with_body([request.clone(), request]))
            })?;
            world.group().barrier()?;
            let incoming = agent.open(1 - world.rank(), "echo", vec![5; 100_000], None)?;
            let mut body = vec![0; 200_000];
            incoming.read_into(&mut body)?;
            assert_eq!(body, vec![5; 200_000]);
            Ok(agent.shutdown()?)
        });
    }
}

#[test]
fn a_certificate_of_another_root_is_refused() {
    let authorities = [Authority::new(), Authority::new()];
    spmd(2, |world| {
        let tls = Some(authorities[world.rank()].worker(false));
        let agent = init_rpc(world, &format!("w{}", world.rank()), Options { tls, ..hasty() })?;
        agent.register("echo", |_, request| Ok(Reply::new(request)))?;
        world.group().barrier()?;
        let error = agent.call(1 - world.rank(), "echo", "x", None).unwrap_err();
        assert!(matches!(error, Error::Lost { .. }), "{error}");
        world.group().barrier()?;
        Ok(())
    });
}

#[test]
fn who_speaks_in_the_clear_is_not_heard() {
    let authority = Authority::new();
    spmd(2, |world| {
        let tls = (world.rank() == 0).then(|| authority.worker(false));
        let agent = init_rpc(world, &format!("w{}", world.rank()), Options { tls, ..hasty() })?;
        agent.register("echo", |_, request| Ok(Reply::new(request)))?;
        world.group().barrier()?;
        let error = agent.call(1 - world.rank(), "echo", "x", None).unwrap_err();
        assert!(matches!(error, Error::Lost { .. } | Error::TimedOut { .. }), "{error}");
        world.group().barrier()?;
        Ok(())
    });
}

#[test]
fn certificates_that_are_none_are_refused_on_every_rank() {
    let authority = Authority::new();
    spmd(2, |world| {
        let mut tls = authority.worker(false);
        if world.rank() == 1 {
            tls.certificate = "no certificate".to_string();
        }
        let made =
            init_rpc(world, &format!("w{}", world.rank()), Options { tls: Some(tls), ..hasty() });
        world.group().barrier()?;
        let error = made.unwrap_err();
        assert!(matches!(error.cause(), Error::BadOptions { .. }), "{error}");
        Ok(())
    });
}

/// Whether a request has shown the secret is known below the encryption as well.
#[test]
fn who_does_not_show_the_secret_is_hung_up_on_and_workers_are_not() {
    let authority = Authority::new();
    spmd(2, |world| {
        let tls = Some(authority.worker(false));
        let agent = init_rpc(world, &format!("w{}", world.rank()), Options { tls, ..hasty() })?;
        let address = agent.address();
        agent.register("wait", move |_, _| {
            // Longer than a connection is kept without the secret: twice, one after the other.
            hung_up_on(address, b"");
            hung_up_on(address, b"");
            hung_up_on(address, GREETING);
            Ok(Reply::new("done"))
        })?;
        world.group().barrier()?;
        let long = Some(Duration::from_secs(50));
        for _ in 0..2 {
            assert_eq!(agent.call(1 - world.rank(), "wait", "", long)?, "done");
        }
        world.group().barrier()?;
        agent.shutdown_now();
        Ok(())
    });
}

#[test]
fn garbage_on_an_encrypted_port_does_no_harm() {
    let authority = Authority::new();
    spmd(2, |world| {
        let tls = Some(authority.worker(true));
        let agent =
            init_rpc(world, &format!("w{}", world.rank()), Options { tls, ..Options::default() })?;
        agent.register("echo", |_, request| Ok(Reply::new(request)))?;
        world.group().barrier()?;
        if world.rank() == 0 {
            let config = ProptestConfig {
                cases: 64,
                failure_persistence: None,
                ..ProptestConfig::default()
            };
            // Anything, and records of TLS with anything in them.
            let kind = (0x14_u8..0x19, 0_u8..5, any::<Option<u16>>());
            let bytes = proptest::collection::vec(any::<u8>(), 0..300);
            let tried = TestRunner::new(config).run(
                &(any::<bool>(), kind, bytes),
                |(is_record, (kind, version, length), bytes)| {
                    let length = length.unwrap_or(bytes.len() as u16).to_be_bytes();
                    let head = [&[kind, 3, version][..], &length].concat();
                    let sent = if is_record { [head, bytes].concat() } else { bytes };
                    throw(agent.address(), false, &sent);
                    Ok(())
                },
            );
            tried.map_err(|error| error.to_string())?;
            assert_eq!(agent.call(0, "echo", "still here", None)?, "still here");
        }
        world.group().barrier()?;
        assert_eq!(agent.call(1 - world.rank(), "echo", "and here", None)?, "and here");
        Ok(agent.shutdown()?)
    });
}
