/* Common part of server.c and client.c: a connection with one buffer for each direction, and a function that waits for completions. */
#ifndef UIW_EXAMPLE_COMMON_H
#define UIW_EXAMPLE_COMMON_H

#include <rdma/rdma_cma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MESSAGE_SIZE 256

struct connection {
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	char in[MESSAGE_SIZE];
	char out[MESSAGE_SIZE];
};

static inline void fail(const char *what)
{
	perror(what);
	exit(EXIT_FAILURE);
}

/* From now on, one message may arrive at any time. */
static inline void expect_message(struct connection *c)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)c->in, .length = sizeof c->in, .lkey = c->mr->lkey
	};
	struct ibv_recv_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *bad;

	if (ibv_post_recv(c->id->qp, &wr, &bad))
		fail("ibv_post_recv");
}

static inline void send_message(struct connection *c, const char *text)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)c->out, .length = sizeof c->out, .lkey = c->mr->lkey
	};
	struct ibv_send_wr wr = {
		.wr_id = 2, .sg_list = &sge, .num_sge = 1,
		.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED
	}, *bad;

	snprintf(c->out, sizeof c->out, "%s", text);
	if (ibv_post_send(c->id->qp, &wr, &bad))
		fail("ibv_post_send");
}

/* Creates a queue pair, and all objects that it needs. */
static inline struct connection *make_connection(struct rdma_cm_id *id)
{
	struct connection *c = calloc(1, sizeof *c);
	struct ibv_qp_init_attr attr = { 0 };

	if (!c)
		fail("calloc");
	c->id = id;
	if (!(c->pd = ibv_alloc_pd(id->verbs)))
		fail("ibv_alloc_pd");
	if (!(c->channel = ibv_create_comp_channel(id->verbs)))
		fail("ibv_create_comp_channel");
	if (!(c->cq = ibv_create_cq(id->verbs, 8, NULL, c->channel, 0)))
		fail("ibv_create_cq");
	if (ibv_req_notify_cq(c->cq, 0))
		fail("ibv_req_notify_cq");
	if (!(c->mr = ibv_reg_mr(c->pd, c->in, 2 * MESSAGE_SIZE, IBV_ACCESS_LOCAL_WRITE)))
		fail("ibv_reg_mr");
	attr.send_cq = attr.recv_cq = c->cq;
	attr.qp_type = IBV_QPT_RC;
	attr.cap.max_send_wr = attr.cap.max_recv_wr = 4;
	attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
	if (rdma_create_qp(id, c->pd, &attr))
		fail("rdma_create_qp");
	id->context = c;
	expect_message(c);
	return c;
}

/* Sleeps until `wanted` requests have completed. */
static inline void wait_completions(struct connection *c, int wanted)
{
	struct ibv_wc wc;
	struct ibv_cq *cq;
	void *context;

	while (wanted > 0) {
		int got = ibv_poll_cq(c->cq, 1, &wc);

		if (got < 0)
			fail("ibv_poll_cq");
		if (got == 1) {
			if (wc.status != IBV_WC_SUCCESS) {
				fprintf(stderr, "request %d: %s\n", (int)wc.wr_id, ibv_wc_status_str(wc.status));
				exit(EXIT_FAILURE);
			}
			wanted--;
			continue;
		}
		if (ibv_get_cq_event(c->channel, &cq, &context))
			fail("ibv_get_cq_event");
		ibv_ack_cq_events(cq, 1);
		/* Poll once more after arming, because earlier completions raise no event. */
		if (ibv_req_notify_cq(cq, 0))
			fail("ibv_req_notify_cq");
	}
}

static inline void free_connection(struct connection *c)
{
	rdma_destroy_qp(c->id);
	if (ibv_dereg_mr(c->mr) || ibv_destroy_cq(c->cq) || ibv_destroy_comp_channel(c->channel) ||
	    ibv_dealloc_pd(c->pd) || rdma_destroy_id(c->id))
		fail("letting go of a connection");
	free(c);
}

#endif
