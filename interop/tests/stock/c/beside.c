/* Devices of the system's library next to those of uiw. The system's devices are listed first,
 * and every call reaches the library that owns its object. */
#include "check.h"
#include <infiniband/verbs.h>
#include <string.h>

static struct ibv_context *open_named(struct ibv_device **list, const char *name)
{
	for (; *list; list++)
		if (!strcmp(ibv_get_device_name(*list), name))
			return ibv_open_device(*list);
	return NULL;
}

struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	char memory[64];
};

static void make(struct end *end, struct ibv_context *context)
{
	struct ibv_qp_init_attr init = { .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
					 .qp_type = IBV_QPT_RC };

	CHECK(end->context = context);
	CHECK(end->pd = ibv_alloc_pd(context));
	CHECK(end->mr = ibv_reg_mr(end->pd, end->memory, sizeof end->memory, IBV_ACCESS_LOCAL_WRITE));
	CHECK(end->cq = ibv_create_cq(context, 16, NULL, NULL, 0));
	init.send_cq = init.recv_cq = end->cq;
	CHECK(end->qp = ibv_create_qp(end->pd, &init));
	CHECK(end->pd->context == context && end->mr->context == context && end->cq->context == context);
	CHECK(end->qp->context == context);
}

static void destroy(struct end *end)
{
	CHECK(!ibv_destroy_qp(end->qp));
	CHECK(!ibv_destroy_cq(end->cq));
	CHECK(!ibv_dereg_mr(end->mr));
	CHECK(!ibv_dealloc_pd(end->pd));
	CHECK(!ibv_close_device(end->context));
}

/* Connects a queue pair of uiw to itself and transfers a message. */
static void connect_to_itself(struct end *end)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_LOCAL_WRITE };
	union ibv_gid gid;

	CHECK(!ibv_query_gid(end->context, 1, 0, &gid));
	CHECK(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	memset(&attr, 0, sizeof attr);
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = end->qp->qp_num;
	attr.max_dest_rd_atomic = 1;
	attr.min_rnr_timer = 12;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.grh.dgid = gid;
	attr.ah_attr.grh.hop_limit = 1;
	attr.ah_attr.port_num = 1;
	CHECK(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	memset(&attr, 0, sizeof attr);
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = attr.rnr_retry = 7;
	attr.max_rd_atomic = 1;
	CHECK(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
						     IBV_QP_MAX_QP_RD_ATOMIC));
}

static void send_and_poll(struct end *end, unsigned int vendor_err, int completions)
{
	struct ibv_sge out = { .addr = (uintptr_t)end->memory, .length = 8, .lkey = end->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 5, .sg_list = &out, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	int got;

	CHECK(!ibv_post_send(end->qp, &wr, &bad));
	while (completions) {
		CHECK((got = ibv_poll_cq(end->cq, 1, &wc)) >= 0);
		if (!got)
			continue;
		CHECK(wc.status == IBV_WC_SUCCESS && wc.vendor_err == vendor_err);
		CHECK(wc.wr_id == 5 || wc.wr_id == 6);
		completions--;
	}
}

int main(void)
{
	static struct end stub, own;
	struct ibv_device **list, **again;
	struct ibv_device_attr attr;
	struct ibv_port_attr port;
	struct ibv_recv_wr *bad, receive = { .wr_id = 6, .num_sge = 1 };
	struct ibv_sge in;
	int count, i;

	CHECK(!ibv_fork_init());
	CHECK(list = ibv_get_device_list(&count));
	CHECK((again = ibv_get_device_list(NULL)) && again[0] == list[0]);
	CHECK(count >= 2 && !list[count]);
	CHECK(!strcmp(ibv_get_device_name(list[0]), "stub0"));
	for (i = 1; i < count; i++)
		CHECK(!strncmp(ibv_get_device_name(list[i]), "uiw_", 4));
	make(&stub, open_named(list, "stub0"));
	make(&own, open_named(list, "uiw_lo"));
	/* Devices stay open after the list has been freed. */
	ibv_free_device_list(list);
	ibv_free_device_list(again);

	CHECK(stub.pd->handle == 770 && stub.mr->lkey == 771 && stub.qp->qp_num == 772);
	CHECK(!ibv_query_device(stub.context, &attr) && attr.max_qp == 773 && !strcmp(attr.fw_ver, "stub"));
	CHECK(!ibv_query_port(stub.context, 1, &port) && port.lid == 774);
	CHECK(!ibv_query_device(own.context, &attr) && attr.max_qp != 773);
	CHECK(!ibv_query_port(own.context, 1, &port) && port.lid != 774);
	send_and_poll(&stub, 77, 1);

	connect_to_itself(&own);
	in = (struct ibv_sge){ .addr = (uintptr_t)own.memory + 32, .length = 32, .lkey = own.mr->lkey };
	receive.sg_list = &in;
	strcpy(own.memory, "message");
	CHECK(!ibv_post_recv(own.qp, &receive, &bad));
	send_and_poll(&own, 0, 2);
	CHECK(!strcmp(own.memory + 32, "message"));
	send_and_poll(&stub, 77, 1);

	destroy(&stub);
	destroy(&own);
	puts("both are there");
	return 0;
}
