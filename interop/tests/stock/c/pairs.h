/* Pairs of queue pairs connected out of band; both ends are in this process, on the loopback
 * device. */
#ifndef PAIRS_H
#define PAIRS_H

#include "check.h"
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 4096, ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
			   IBV_ACCESS_REMOTE_ATOMIC };

static struct ibv_context *context;
static struct ibv_pd *pd;
static union ibv_gid gid;

struct end {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char buffer[SIZE];
	uint32_t psn;
};

static inline double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static inline void make_of_type(struct end *end, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = { .qp_type = type, .cap = { 64, 64, 2, 2, 0 } };

	memset(end, 0, sizeof *end);
	CHECK(end->cq = ibv_create_cq(context, 256, end, NULL, 0));
	init.send_cq = init.recv_cq = end->cq;
	CHECK(end->qp = ibv_create_qp(pd, &init));
	CHECK(init.cap.max_inline_data >= 256);
	CHECK(end->mr = ibv_reg_mr(pd, end->buffer, SIZE, ACCESS));
	end->psn = rand() & 0xffffff;
}

static inline void make(struct end *end)
{
	make_of_type(end, IBV_QPT_RC);
}

static inline void unmake(struct end *end)
{
	CHECK(!ibv_destroy_qp(end->qp));
	CHECK(!ibv_destroy_cq(end->cq));
	CHECK(!ibv_dereg_mr(end->mr));
}

static inline void init(struct end *end)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ACCESS };

	CHECK(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
}

static inline int rtr(struct end *end, uint32_t qp_num, uint32_t psn)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp_num,
		.rq_psn = psn, .max_dest_rd_atomic = 4, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 1 } } };

	return ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			     IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

static inline void rts(struct end *end, int retry, int rnr_retry)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS, .sq_psn = end->psn, .timeout = 14, .retry_cnt = retry,
		.rnr_retry = rnr_retry, .max_rd_atomic = 4 };

	CHECK(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static inline void ready(struct end *end, struct end *peer, int rnr_retry)
{
	init(end);
	CHECK(!rtr(end, peer->qp->qp_num, peer->psn));
	rts(end, 7, rnr_retry);
}

static inline void make_connected(struct end *a, struct end *b)
{
	make(a);
	make(b);
	ready(a, b, 7);
	ready(b, a, 7);
}

static inline void to(struct end *end, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };

	CHECK(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE));
}

static inline enum ibv_qp_state state_of(struct end *end)
{
	struct ibv_qp_init_attr init_attr;
	struct ibv_qp_attr attr;

	CHECK(!ibv_query_qp(end->qp, &attr, IBV_QP_STATE, &init_attr));
	return attr.qp_state;
}

static inline void receive(struct end *end, uint64_t id)
{
	struct ibv_sge sge = { (uintptr_t)end->buffer, 64, end->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK(!ibv_post_recv(end->qp, &wr, &bad));
}

static inline void post(struct end *end, enum ibv_wr_opcode opcode, uint64_t id, uint64_t remote, uint32_t rkey)
{
	struct ibv_sge sge = { (uintptr_t)end->buffer + 64, 8, end->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { remote, rkey } }, *bad;

	CHECK(!ibv_post_send(end->qp, &wr, &bad));
}

static inline struct ibv_wc completion(struct end *end)
{
	double until = now() + 30;
	struct ibv_wc wc;
	int got;

	while (!(got = ibv_poll_cq(end->cq, 1, &wc)))
		CHECK(now() < until);
	CHECK(got == 1 && wc.qp_num == end->qp->qp_num);
	return wc;
}

static inline void expect(struct end *end, uint64_t id, enum ibv_wc_status status)
{
	struct ibv_wc wc = completion(end);

	if (wc.wr_id != id || wc.status != status) {
		fprintf(stderr, "request %d: %s, not %d: %s\n", (int)wc.wr_id, ibv_wc_status_str(wc.status), (int)id,
			ibv_wc_status_str(status));
		exit(EXIT_FAILURE);
	}
}

static inline void exchange(struct end *from, struct end *into, uint64_t id)
{
	receive(into, id);
	snprintf(from->buffer + 64, 8, "no %d", (int)id);
	memset(into->buffer, 0, 64);
	post(from, IBV_WR_SEND, id, 0, 0);
	expect(from, id, IBV_WC_SUCCESS);
	expect(into, id, IBV_WC_SUCCESS);
	CHECK(!memcmp(into->buffer, from->buffer + 64, 8));
}

static inline void open_loopback(void)
{
	struct ibv_device **list, **device;

	CHECK(list = ibv_get_device_list(NULL));
	for (device = list; *device && strcmp(ibv_get_device_name(*device), "uiw_lo"); device++)
		;
	CHECK(*device);
	CHECK(context = ibv_open_device(*device));
	ibv_free_device_list(list);
	CHECK(pd = ibv_alloc_pd(context));
	CHECK(!ibv_query_gid(context, 1, 0, &gid));
}

static inline void close_loopback(void)
{
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(context));
}

#endif
