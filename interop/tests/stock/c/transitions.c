/* Tests the state table of verbs: which transitions ibv_modify_qp refuses, and that a refused
 * call changes nothing. */
#include "pairs.h"

enum {
	INIT = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
	RTR = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
	      IBV_QP_MIN_RNR_TIMER,
	RTS = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
};

static struct end peer;

static void in_state(struct end *end, enum ibv_qp_state state)
{
	make(end);
	if (state >= IBV_QPS_INIT)
		init(end);
	if (state >= IBV_QPS_RTR)
		CHECK(!rtr(end, peer.qp->qp_num, peer.psn));
	if (state >= IBV_QPS_RTS)
		rts(end, 7, 7);
	CHECK(state_of(end) == state);
}

static void attempt(int line, enum ibv_qp_state from, struct ibv_qp_attr attr, int mask, int expected)
{
	static struct end end;
	int result;

	in_state(&end, from);
	result = ibv_modify_qp(end.qp, &attr, mask);
	if (result != expected || (expected && state_of(&end) != from)) {
		fprintf(stderr, "line %d: %s, not %s; state %d\n", line, strerror(result), strerror(expected), state_of(&end));
		exit(EXIT_FAILURE);
	}
	unmake(&end);
}

#define REFUSED(from, attr, mask) attempt(__LINE__, from, attr, mask, EINVAL)
#define TAKEN(from, attr, mask) attempt(__LINE__, from, attr, mask, 0)

static struct ibv_qp_attr to_init, to_rtr, to_rts;

static void each_attribute_is_needed(enum ibv_qp_state from, struct ibv_qp_attr attr, int mask)
{
	int bit;

	TAKEN(from, attr, mask);
	for (bit = 1; bit <= mask; bit <<= 1)
		if (mask & bit & ~IBV_QP_STATE)
			REFUSED(from, attr, mask & ~bit);
	REFUSED(from, attr, mask | IBV_QP_QKEY);
}

static void values(int roce)
{
	struct ibv_qp_attr attr = to_init;

	attr.port_num = 9;
	REFUSED(IBV_QPS_RESET, attr, INIT);
	attr = to_init;
	attr.pkey_index = 77;
	REFUSED(IBV_QPS_RESET, attr, INIT);
	attr = to_rtr;
	attr.ah_attr.is_global = 0;
	if (roce)
		REFUSED(IBV_QPS_INIT, attr, RTR);
	attr = to_rtr;
	attr.ah_attr.grh.sgid_index = 99;
	REFUSED(IBV_QPS_INIT, attr, RTR);
	attr = to_rtr;
	attr.ah_attr.port_num = 3;
	REFUSED(IBV_QPS_INIT, attr, RTR);
	attr = to_rtr;
	attr.path_mtu = 9;
	REFUSED(IBV_QPS_INIT, attr, RTR);
	attr.path_mtu = 0;
	REFUSED(IBV_QPS_INIT, attr, RTR);
	attr = to_rts;
	attr.cur_qp_state = IBV_QPS_INIT;
	REFUSED(IBV_QPS_RTR, attr, RTS | IBV_QP_CUR_STATE);
	REFUSED(IBV_QPS_RTS, attr, IBV_QP_STATE | IBV_QP_CUR_STATE);
	attr.cur_qp_state = IBV_QPS_RTR;
	TAKEN(IBV_QPS_RTR, attr, RTS | IBV_QP_CUR_STATE);
	REFUSED(IBV_QPS_RTS, attr, IBV_QP_STATE | IBV_QP_CUR_STATE);
}

static void transitions(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET, .qp_access_flags = ACCESS, .min_rnr_timer = 3 };
	enum ibv_qp_state from;

	REFUSED(IBV_QPS_RESET, to_rtr, RTR);
	REFUSED(IBV_QPS_RESET, to_rts, RTS);
	REFUSED(IBV_QPS_INIT, to_rts, RTS);
	REFUSED(IBV_QPS_RTR, to_init, INIT);
	REFUSED(IBV_QPS_RTR, to_rtr, RTR);
	REFUSED(IBV_QPS_RTS, to_init, INIT);
	REFUSED(IBV_QPS_RTS, to_rtr, RTR);
	REFUSED(IBV_QPS_RTR, attr, IBV_QP_ACCESS_FLAGS);
	TAKEN(IBV_QPS_INIT, to_init, INIT);
	TAKEN(IBV_QPS_INIT, attr, IBV_QP_ACCESS_FLAGS);
	TAKEN(IBV_QPS_RTS, attr, IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER);
	TAKEN(IBV_QPS_RTS, to_rts, IBV_QP_STATE);
	TAKEN(IBV_QPS_RTS, to_rts, RTS);
	for (from = IBV_QPS_RESET; from <= IBV_QPS_RTS; from++) {
		attr.qp_state = IBV_QPS_RESET;
		TAKEN(from, attr, IBV_QP_STATE);
		attr.qp_state = IBV_QPS_ERR;
		TAKEN(from, attr, IBV_QP_STATE);
		REFUSED(from, attr, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS);
	}
}

/* Makes the transitions that rdma_init_qp_attr specifies, on a queue pair connected by rdma_cm. */
static void as_rdma_cm_asks(void)
{
	TAKEN(IBV_QPS_RESET, to_init, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS);
	TAKEN(IBV_QPS_INIT, to_rtr, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS);
	TAKEN(IBV_QPS_RTR, to_rts, 0);
}

/* An iWARP device accepts all attributes, as siw does. */
static void taken_on_iwarp(void)
{
	TAKEN(IBV_QPS_INIT, to_rtr, RTR & ~IBV_QP_MIN_RNR_TIMER);
	TAKEN(IBV_QPS_INIT, to_rtr, IBV_QP_STATE);
	TAKEN(IBV_QPS_RTR, to_rtr, RTR);
	TAKEN(IBV_QPS_RTR, to_rts, IBV_QP_STATE);
	TAKEN(IBV_QPS_RTR, to_rts, RTS | IBV_QP_QKEY);
	REFUSED(IBV_QPS_INIT, to_rts, RTS);
	REFUSED(IBV_QPS_RTS, to_init, INIT);
}

int main(int argc, char **argv)
{
	open_loopback();
	make(&peer);
	to_init = (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ACCESS };
	to_rtr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer.qp->qp_num,
		.rq_psn = peer.psn, .max_dest_rd_atomic = 4, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 1 } } };
	to_rts = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = 5, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
		.max_rd_atomic = 4 };
	if (context->device->transport_type == IBV_TRANSPORT_IWARP) {
		taken_on_iwarp();
	} else {
		each_attribute_is_needed(IBV_QPS_RESET, to_init, INIT);
		each_attribute_is_needed(IBV_QPS_INIT, to_rtr, RTR);
		each_attribute_is_needed(IBV_QPS_RTR, to_rts, RTS);
		values(argc > 1 && !strcmp(argv[1], "roce"));
		transitions();
		as_rdma_cm_asks();
	}
	unmake(&peer);
	close_loopback();
	puts("done");
	return 0;
}
