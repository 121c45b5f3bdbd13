/* Set-up shared by rdma_cm programs that have both ends in one process. */
#ifndef CM_H
#define CM_H

#include "check.h"
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>

/* Takes the next event of the channel, checks its type and returns its id. */
static __attribute__((unused)) struct rdma_cm_id *await(struct rdma_event_channel *channel, enum rdma_cm_event_type expected)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	CHECK(!rdma_get_cm_event(channel, &event));
	if (event->event != expected) {
		fprintf(stderr, "expected %s, got %s, status %d\n", rdma_event_str(expected), rdma_event_str(event->event),
			event->status);
		exit(EXIT_FAILURE);
	}
	id = event->id;
	CHECK(!rdma_ack_cm_event(event));
	return id;
}

/* Listens on a free port of the loopback address and stores the address in `to`. */
static __attribute__((unused)) struct rdma_cm_id *listen_on_loopback(struct rdma_event_channel *channel, struct sockaddr_in *to)
{
	struct rdma_cm_id *id;

	*to = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(id, (void *)to) && !rdma_listen(id, 4));
	to->sin_port = rdma_get_src_port(id);
	return id;
}

/* Creates an id and resolves the address and the route to `to`. */
static __attribute__((unused)) struct rdma_cm_id *resolve(struct rdma_event_channel *channel, struct sockaddr_in *to)
{
	struct rdma_cm_id *id;

	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, (void *)to, 1000));
	CHECK(await(channel, RDMA_CM_EVENT_ADDR_RESOLVED) == id);
	CHECK(!rdma_resolve_route(id, 1000));
	CHECK(await(channel, RDMA_CM_EVENT_ROUTE_RESOLVED) == id);
	return id;
}

static __attribute__((unused)) void create_queue_pair(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1, .cap = { 2, 2, 1, 1, 0 } };

	CHECK(!rdma_create_qp(id, NULL, &attr));
}

#endif
