/* Exercise 4: a Read with a wrong key, and the peer's response to it. */
#define RIGHTS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ)
#include "learn.h"

/* GAP 2: run the check once, look at its capture with `uiw decode`, and write here the layer, type and code of the Terminate. */
#define TERMINATE "?/?/?"

static void prepare(struct end *end)
{
	(void)end;
}

static void client(struct end *end)
{
	struct ibv_sge sge = part(end, 0, 10);
	struct ibv_send_wr wr = {
		.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED
	}, *bad;

	wr.wr.rdma.remote_addr = end->peer_address;
	/* GAP 1: replace the key by a wrong one. */
	wr.wr.rdma.rkey = end->peer_key;
	need(!ibv_post_send(end->id->qp, &wr, &bad), "ibv_post_send");
	printf("the Read ended with: %s\n", ibv_wc_status_str(completed(end->id->send_cq)));
	printf("terminate %s\n", TERMINATE);
}

static void server(struct end *end)
{
	(void)end;
}
