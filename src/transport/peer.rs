//! The owner of the other end of a loopback TCP connection.

use nix::unistd::Uid;
use std::fs;
use std::net::{IpAddr, SocketAddr};

/// Returns the account of the socket that is bound to `local` and connected to `remote`; `None` if this network
/// namespace has no such open connection.
pub fn owner(local: SocketAddr, remote: SocketAddr) -> Option<Uid> {
    // Connections that come and go can hide one that stays from a reader of these files.
    (0..3).find_map(|_| {
        ["tcp", "tcp6"].iter().find_map(|table| {
            let text = fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
            owner_in(&text, local, remote)
        })
    })
}

/// Searches the rows `N: LOCAL REMOTE STATE TX:RX TIMER:WHEN RETRANSMITS UID TIMEOUT INODE ...`. A socket that its
/// process has closed shows as root's.
fn owner_in(table: &str, local: SocketAddr, remote: SocketAddr) -> Option<Uid> {
    const ESTABLISHED: &str = "01";
    table.lines().skip(1).find_map(|row| {
        let fields: Vec<&str> = row.split_whitespace().collect();
        let [_, from, to, state, _, _, _, uid, _, inode, ..] = fields[..] else { return None };
        let is = |text, address| parse(text).is_some_and(|read| read == address);
        let open = state == ESTABLISHED && inode != "0";
        (open && is(from, plain(local)) && is(to, plain(remote))).then(|| uid.parse().ok().map(Uid::from_raw))?
    })
}

/// Parses `0100007F:1F90`: the words of the address in the machine's byte order, then the port.
fn parse(text: &str) -> Option<(IpAddr, u16)> {
    let (address, port) = text.split_once(':')?;
    let word = |at: usize| u32::from_str_radix(address.get(at * 8..at * 8 + 8)?, 16).ok().map(u32::to_ne_bytes);
    let address: IpAddr = match address.len() {
        8 => word(0)?.into(),
        32 => {
            let mut bytes = [0; 16];
            for (at, chunk) in bytes.chunks_exact_mut(4).enumerate() {
                chunk.copy_from_slice(&word(at)?);
            }
            IpAddr::from(bytes).to_canonical()
        }
        _ => return None,
    };
    Some((address, u16::from_str_radix(port, 16).ok()?))
}

fn plain(address: SocketAddr) -> (IpAddr, u16) {
    (address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn the_owner_of_a_connection_is_found_on_both_loopbacks() {
        let mut listeners = vec![TcpListener::bind("127.0.0.1:0").unwrap()];
        match TcpListener::bind("[::1]:0") {
            Ok(listener) => listeners.push(listener),
            Err(error) => println!("skipped: the_owner_of_a_connection_is_found_on_both_loopbacks: ::1 ({error})"),
        }
        for listener in listeners {
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (accepted, peer) = listener.accept().unwrap();
            let own = accepted.local_addr().unwrap();
            assert_eq!(owner(peer, own), Some(Uid::effective()));
            assert_eq!(owner(peer, SocketAddr::new(own.ip(), own.port() ^ 1)), None);
            // A client that is gone is nobody's, although its row says root.
            drop(client);
            assert_eq!(owner(peer, own), None);
        }
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn rows_are_read_by_both_addresses_and_the_state() {
        let table =
            "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
             0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12 1\n\
             1: 0200007F:C350 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 13 1\n\
             2: 0100007F:C350 0100007F:1F90 04 00000000:00000000 00:00000000 00000000     0        0 0 1\n\
             3: 0000000000000000FFFF00000100007F:C350 0000000000000000FFFF00000100007F:1F90 01 0:0 0:0 0 65534 0 14\n\
             4: rubbish\n";
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert_eq!(owner_in(table, at("127.0.0.1:50000"), at("127.0.0.1:8080")), Some(Uid::from_raw(65534)));
        assert_eq!(owner_in(table, at("127.0.0.2:50000"), at("127.0.0.1:8080")), Some(Uid::from_raw(0)));
        assert_eq!(owner_in(table, at("127.0.0.1:50001"), at("127.0.0.1:8080")), None);
    }
}
