//! Encrypted connections, with certificates made on the spot.

use dtensor_rpc::{Error, Options, Reply, TlsOptions, init_rpc};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::support::{hasty, spmd};

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
