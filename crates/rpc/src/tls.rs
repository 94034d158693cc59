//! Encrypted connections.

use std::fmt;

use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity, Server, ServerTlsConfig};

use crate::{Error, Result};

/// Certificates, all in PEM. Every worker has one that the others can check.
#[derive(Clone)]
pub struct TlsOptions {
    /// The certificate of this worker, and those that lead to the root.
    pub certificate: String,
    /// The private key of this worker.
    pub key: String,
    /// The root that the certificates of all workers lead to.
    pub ca: String,
    /// The name that the certificates of all workers are for.
    pub domain_name: String,
    /// Whether a worker that calls must show its certificate too.
    pub mutual: bool,
}

impl TlsOptions {
    pub(crate) fn for_server(&self, server: Server) -> Result<Server> {
        // tonic leaves it to the process which implementation of the ciphers is meant, and with two in one
        // program that is nobody.
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // Another thread may have been faster, which is as well.
            let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        }
        let mut config = ServerTlsConfig::new().identity(self.identity());
        if self.mutual {
            config = config.client_ca_root(Certificate::from_pem(&self.ca));
        }
        server.tls_config(config).map_err(|error| bad(&error))
    }

    pub(crate) fn for_client(&self, endpoint: Endpoint) -> Result<Endpoint> {
        let mut config = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&self.ca))
            .domain_name(&self.domain_name);
        if self.mutual {
            config = config.identity(self.identity());
        }
        endpoint.tls_config(config).map_err(|error| bad(&error))
    }

    fn identity(&self) -> Identity {
        Identity::from_pem(&self.certificate, &self.key)
    }
}

/// Without the key.
impl fmt::Debug for TlsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsOptions")
            .field("domain_name", &self.domain_name)
            .field("mutual", &self.mutual)
            .finish_non_exhaustive()
    }
}

fn bad(error: &tonic::transport::Error) -> Error {
    Error::BadOptions { what: format!("tls: {}", crate::client::in_full(error)).into() }
}
