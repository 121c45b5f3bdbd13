/* Exercise 2: the client writes to the server's memory and reads it back, while the server's program does nothing. */
#define RIGHTS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)
#include "../learn.h"

static void prepare(struct end *end)
{
	(void)end;
}

static void transfer(struct end *end, enum ibv_wr_opcode opcode, struct ibv_sge sge)
{
	struct ibv_send_wr wr = {
		.wr_id = opcode, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED
	}, *bad;

	wr.wr.rdma.remote_addr = end->peer_address;
	wr.wr.rdma.rkey = end->peer_key;
	need(!ibv_post_send(end->id->qp, &wr, &bad), "ibv_post_send");
	completed(end->id->send_cq);
}

static void client(struct end *end)
{
	strcpy(end->memory, "one-sided");
	transfer(end, IBV_WR_RDMA_WRITE, part(end, 0, 10));
	transfer(end, IBV_WR_RDMA_READ, part(end, 100, 10));
	printf("client read %s\n", end->memory + 100);
}

static void server(struct end *end)
{
	(void)end;
}
