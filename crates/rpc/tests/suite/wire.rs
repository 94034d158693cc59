//! A connection that breaks on demand.

use std::{
    io,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

/// A port whose connections go on to the same port of another loopback address, while they are not cut.
pub struct Wire {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    is_cut: AtomicBool,
    is_over: AtomicBool,
    ends: Mutex<Vec<TcpStream>>,
}

impl Wire {
    pub fn new() -> Wire {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let wire = Wire { address, shared: Arc::default() };
        let (shared, behind) = (Arc::clone(&wire.shared), wire.behind());
        thread::spawn(move || {
            for outer in listener.incoming() {
                if shared.is_over.load(Ordering::SeqCst) {
                    return;
                }
                // Whoever is not served is hung up on.
                if let (Ok(outer), false) = (outer, shared.is_cut.load(Ordering::SeqCst)) {
                    let _ = shared.join(&outer, behind);
                }
            }
        });
        wire
    }

    /// Where others connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it goes.
    pub fn behind(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 2], self.address.port()))
    }

    /// Breaks all connections, and takes no others.
    pub fn cut(&self) {
        self.shared.is_cut.store(true, Ordering::SeqCst);
        for end in self.shared.ends.lock().unwrap().drain(..) {
            let _ = end.shutdown(Shutdown::Both);
        }
    }

    /// Takes connections again.
    pub fn mend(&self) {
        self.shared.is_cut.store(false, Ordering::SeqCst);
    }
}

impl Shared {
    fn join(&self, outer: &TcpStream, behind: SocketAddr) -> io::Result<()> {
        let inner = TcpStream::connect(behind)?;
        self.ends.lock().unwrap().extend([outer.try_clone()?, inner.try_clone()?]);
        for (from, to) in [(outer, &inner), (&inner, outer)] {
            let (mut from, mut to) = (from.try_clone()?, to.try_clone()?);
            thread::spawn(move || {
                let _ = io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Both);
            });
        }
        Ok(())
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.cut();
        self.shared.is_over.store(true, Ordering::SeqCst);
        // The thread that listens sees it with the next connection.
        let _ = TcpStream::connect(self.address);
    }
}
