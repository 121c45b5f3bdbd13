//! Relief of the receive memory budget: connections that hold memory for the messages of silent
//! peers end while other connections need it.

use crate::driver::core::{Core, Slot};
use crate::driver::services::RX_STAGING;
use crate::driver::token::token;
use std::time::Duration;
use uiw_stream::LocalError;

/// Time for which a peer may be silent inside an FPDU or a long message while the receive memory is
/// short.
const PARTIAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Minimum time between two searches for connections that hold memory of the receive budget. A
/// search visits every connection.
const RELIEF_PAUSE: Duration = Duration::from_millis(100);

impl Core {
    /// Relieves the receive memory budget on every shard ([`Core::relieve_budget`]), at most once
    /// in [`RELIEF_PAUSE`].
    pub(super) fn relieve_all_shards(&mut self) {
        if self.services.now < self.next_relief {
            return;
        }
        self.next_relief = self.services.now.after(RELIEF_PAUSE);
        self.relieve_budget();
        let Some(driver) = self.services.driver.upgrade() else { return };
        for shard in driver.shards().iter().filter(|shard| shard.index() != self.index) {
            shard.enqueue(Self::relieve_budget);
        }
    }

    /// Ends connections whose peers have been silent for at least [`PARTIAL_TIMEOUT`] in the middle
    /// of a long message or an FPDU, those that were silent longest first, until the receive memory
    /// budget has room again.
    ///
    /// Without this, peers that open many connections and send only the beginning of an FPDU on
    /// each could prevent reads of other connections.
    fn relieve_budget(&mut self) {
        self.relieve_messages();
        let now = self.services.now;
        let holders = self.slots.iter().filter_map(|(key, (generation, slot))| match slot {
            Slot::Conn(conn) => Some((conn.partial_since()?, token(key, self.index, *generation))),
            _ => None,
        });
        let mut holders: Vec<_> = holders.filter(|(since, _)| since.after(PARTIAL_TIMEOUT) <= now).collect();
        holders.sort_unstable();
        for (_, token) in holders {
            if self.services.shared.budget.is_relieved(2 * RX_STAGING) {
                break;
            }
            self.with_conn(token, |conn, services| conn.fail(LocalError::ReceiveMemory, services));
        }
    }

    /// Ends connections whose peers have been silent for at least [`PARTIAL_TIMEOUT`] in the middle
    /// of a long message, those that were silent longest first, until other connections can receive
    /// long messages again.
    fn relieve_messages(&mut self) {
        let now = self.services.now;
        let silent = self.slots.iter().filter_map(|(key, (generation, slot))| match slot {
            Slot::Conn(conn) => Some((conn.silent_in_message()?, token(key, self.index, *generation))),
            _ => None,
        });
        let mut silent: Vec<_> = silent.filter(|(since, _)| since.after(PARTIAL_TIMEOUT) <= now).collect();
        silent.sort_unstable();
        for (_, token) in silent {
            if !self.services.shared.budget.is_short_of_messages() {
                break;
            }
            self.with_conn(token, |conn, services| conn.fail(LocalError::ReceiveMemory, services));
        }
    }
}
