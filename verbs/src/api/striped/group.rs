//! The stripes of a connection that is being set up by an acceptor.

use super::settings::{StripedSettings, check_acknowledged};
use crate::api::connection::Connection;
use crate::api::listener::Incoming;
use crate::cm::ConnInfo;
use crate::error::{Error, Result};
use crate::pd::Pd;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use uiw_llp::PeerIdentity;
use uiw_stream::Time;
use uiw_striping::wire::{Join, Reason, Reply, Request};

enum Place {
    Empty,
    SetUp(Pin<Box<dyn Future<Output = Result<Connection>> + Send>>),
    Established(Connection),
}

pub(super) struct Group {
    pub(super) peer: SocketAddr,
    pub(super) deadline: Time,
    identity: Option<PeerIdentity>,
    stripes: Vec<Place>,
    private_data: Vec<u8>,
}

impl Group {
    pub(super) fn new(request: &Request, first: &Incoming, deadline: Time) -> Self {
        Self {
            peer: first.peer_addr(),
            deadline,
            identity: first.peer_identity().cloned(),
            stripes: (0..request.stripes).map(|_| Place::Empty).collect(),
            private_data: Vec::new(),
        }
    }

    /// Whether a Request of generation 0 with the token of this connection fits.
    pub(super) fn admit(&self, request: &Request, incoming: &Incoming) -> std::result::Result<(), Reason> {
        if incoming.peer_identity() != self.identity.as_ref() {
            return Err(Reason::Identity);
        }
        if usize::from(request.stripes) != self.stripes.len() {
            return Err(Reason::Mismatch);
        }
        match self.stripes.get(usize::from(request.index)) {
            Some(Place::Empty) => Ok(()),
            Some(_) => Err(Reason::Stale),
            None => Err(Reason::Mismatch),
        }
    }

    /// Accepts a Request that fits.
    pub(super) fn accept(
        &mut self,
        incoming: Incoming,
        request: &Request,
        private_data: Vec<u8>,
        pd: &Pd,
        settings: &StripedSettings,
    ) {
        let Request { stripes, index, generation, .. } = *request;
        let ours = if index == 0 {
            self.private_data = private_data;
            &settings.conn.private_data[..]
        } else {
            &[]
        };
        let reply = Join::Reply(Reply { stripes, index, generation, delivered: 0 }).emit(ours);
        let half = incoming.begin(pd, &settings.of_stripe(index, reply));
        if let Some(place) = self.stripes.get_mut(usize::from(index)) {
            *place = Place::SetUp(Box::pin(async move { half?.established().await }));
        }
    }

    /// Ready when all stripes are established.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let mut is_ready = true;
        for place in &mut self.stripes {
            match place {
                Place::Established(_) => {}
                Place::Empty => is_ready = false,
                Place::SetUp(future) => match future.as_mut().poll(cx) {
                    Poll::Ready(Ok(connection)) => {
                        check_acknowledged(&connection)?;
                        *place = Place::Established(connection);
                    }
                    Poll::Ready(Err(error)) => {
                        *place = Place::Empty;
                        return Poll::Ready(Err(error));
                    }
                    Poll::Pending => is_ready = false,
                },
            }
        }
        if is_ready { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// The stripes, when all are established, and what start-up of stripe 0 agreed on, with the program's private data.
    ///
    /// # Errors
    /// [`Error::NotConnected`] when they are not.
    pub(super) fn take(&mut self) -> Result<(Vec<Connection>, ConnInfo)> {
        let places = std::mem::take(&mut self.stripes);
        let connections: Vec<_> = places
            .into_iter()
            .filter_map(|place| match place {
                Place::Established(connection) => Some(connection),
                Place::Empty | Place::SetUp(_) => None,
            })
            .collect();
        let first = connections.first().ok_or(Error::NotConnected)?;
        let private_data = std::mem::take(&mut self.private_data);
        let info = ConnInfo { private_data, ..first.info().clone() };
        Ok((connections, info))
    }
}
