//! iWARP verbs: device, PD, MR, CQ, QP, connection manager; blocking, async and raw.
