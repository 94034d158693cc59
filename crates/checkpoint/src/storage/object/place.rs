//! Which store a URL means.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use object_store::{
    ObjectStore, aws::AmazonS3Builder, azure::MicrosoftAzureBuilder,
    gcp::GoogleCloudStorageBuilder, memory::InMemory, multipart::MultipartStore, path::Path,
};

use super::no_such_place;
use crate::Result;

/// One store, by the two traits that it has.
#[derive(Clone)]
pub(super) struct Stores {
    pub objects: Arc<dyn ObjectStore>,
    pub uploads: Arc<dyn MultipartStore>,
}

impl Stores {
    fn new(store: Arc<impl ObjectStore + MultipartStore>) -> Stores {
        Stores { objects: store.clone(), uploads: store }
    }
}

/// The stores in memory, by name.
static MEMORY: LazyLock<Mutex<HashMap<String, Arc<InMemory>>>> = LazyLock::new(Mutex::default);

/// The store and the prefix that a URL names.
pub(super) fn find(url: &str) -> Result<(Stores, Path)> {
    let (scheme, rest) = url.split_once("://").ok_or_else(|| no_such_place(url, "it is no URL"))?;
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let refused = |error: object_store::Error| no_such_place(url, error.to_string());
    let stores = match scheme {
        "s3" | "s3a" => {
            let store = AmazonS3Builder::from_env().with_bucket_name(bucket).build();
            Stores::new(Arc::new(store.map_err(refused)?))
        }
        "gs" | "gcs" => {
            let store = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket).build();
            Stores::new(Arc::new(store.map_err(refused)?))
        }
        "az" | "azure" => {
            let store = MicrosoftAzureBuilder::from_env().with_container_name(bucket).build();
            Stores::new(Arc::new(store.map_err(refused)?))
        }
        "memory" => {
            let mut memory = MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
            Stores::new(Arc::clone(memory.entry(bucket.to_owned()).or_default()))
        }
        _ => return Err(no_such_place(url, "stores are s3://, gs://, az:// and memory://")),
    };
    let prefix = Path::parse(prefix).map_err(|error| no_such_place(url, error.to_string()))?;
    Ok((stores, prefix))
}
