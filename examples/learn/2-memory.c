/* Exercise 2: the client writes to the server's memory and reads it back, while the server's program does nothing. */
/* GAP 1: let the peer write and read: IBV_ACCESS_.. */
#define RIGHTS IBV_ACCESS_LOCAL_WRITE
#include "learn.h"

static void prepare(struct end *end)
{
	(void)end;
}

static void transfer(struct end *end, enum ibv_wr_opcode opcode, struct ibv_sge sge)
{
	struct ibv_send_wr wr = {
		.wr_id = opcode, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED
	}, *bad;

	/* GAP 2: name the peer's memory in wr.wr.rdma: remote_addr and rkey, from end->peer_address and end->peer_key. */
	need(!ibv_post_send(end->id->qp, &wr, &bad), "ibv_post_send");
	completed(end->id->send_cq);
}

static void client(struct end *end)
{
	strcpy(end->memory, "one-sided");
	transfer(end, IBV_WR_RDMA_WRITE, part(end, 0, 10));
	/* GAP 3: read the 10 bytes back to part(end, 100, 10). */
	printf("client read %s\n", end->memory + 100);
}

static void server(struct end *end)
{
	(void)end;
}
