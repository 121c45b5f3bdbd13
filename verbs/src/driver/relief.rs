//! Relief of the receive memory budget: connections that hold memory for the messages of silent
//! peers end while other connections need it.

use crate::conn::Conn;
use crate::driver::core::{Core, Slot};
use crate::driver::shared::Budget;
use crate::driver::token::token;
use std::time::Duration;
use uiw_stream::{LocalError, Time};

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
        self.relieve_budget();
        let Some(driver) = self.services.driver.upgrade() else { return };
        for shard in driver.shards().iter().filter(|shard| shard.index() != self.index) {
            // No thread drives a shard without connections, so commands would accumulate there.
            if !shard.has_commands() {
                shard.enqueue(Self::relieve_budget);
            }
        }
    }

    /// Ends connections whose peers are silent in the middle of a long message until others can
    /// receive long messages again, and then those whose peers are silent in an FPDU until the
    /// receive memory budget has room.
    ///
    /// Without this, peers that open many connections and send only the beginning of an FPDU on
    /// each could prevent reads of other connections.
    fn relieve_budget(&mut self) {
        self.next_relief = self.services.now.after(RELIEF_PAUSE);
        self.end_silent(Conn::silent_in_message, |budget| !budget.is_short_of_messages());
        self.end_silent(Conn::partial_since, Budget::is_relieved);
    }

    /// Ends connections that have waited for at least [`PARTIAL_TIMEOUT`] since the time that
    /// `since` returns, the longest waits first, until `is_relieved` returns true.
    fn end_silent(&mut self, since: fn(&Conn) -> Option<Time>, is_relieved: fn(&Budget) -> bool) {
        let now = self.services.now;
        let waiting = self.slots.iter().filter_map(|(key, (generation, slot))| match slot {
            Slot::Conn(conn) => Some((since(conn)?, token(key, self.index, *generation))),
            _ => None,
        });
        let mut waiting: Vec<_> =
            waiting.filter(|(since, _)| since.after(PARTIAL_TIMEOUT) <= now).collect();
        waiting.sort_unstable();
        for (_, token) in waiting {
            if is_relieved(&self.services.shared.budget) {
                break;
            }
            self.with_conn(token, |conn, services| conn.fail(LocalError::ReceiveMemory, services));
        }
    }
}
