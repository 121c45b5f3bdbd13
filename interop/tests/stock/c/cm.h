/* What programs of rdma_cm with both ends in one process begin with. */
#ifndef CM_H
#define CM_H

#include "check.h"
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>

/* The id of the next event, which is the expected one. */
static __attribute__((unused)) struct rdma_cm_id *await(struct rdma_event_channel *channel, enum rdma_cm_event_type expected)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	CHECK(!rdma_get_cm_event(channel, &event));
	CHECK(event->event == expected);
	id = event->id;
	CHECK(!rdma_ack_cm_event(event));
	return id;
}

static __attribute__((unused)) void create_queue_pair(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1, .cap = { 2, 2, 1, 1, 0 } };

	CHECK(!rdma_create_qp(id, NULL, &attr));
}

#endif
