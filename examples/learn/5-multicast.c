/* Exercise 5: a datagram to a multicast group. Both ends have joined it; the server receives. */
#define GROUP "239.77.0.5"
#include "learn.h"

/* A receive for datagrams begins with a Global Route Header. */
#define GRH 40

static void prepare(struct end *end)
{
	struct ibv_sge sge = part(end, 0, GRH + 64);
	struct ibv_recv_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *bad;

	need(!ibv_post_recv(end->id->qp, &wr, &bad), "ibv_post_recv");
}

static void client(struct end *end)
{
	struct ibv_sge sge = part(end, 2048, 6);
	struct ibv_send_wr wr = {
		.wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED
	}, *bad;

	strcpy(end->memory + 2048, "group");
	/* GAP 1: set the destination in wr.wr.ud: ah, remote_qpn and remote_qkey, from end->group, group_qpn and group_qkey. Then post it. */
	(void)wr, (void)bad;
}

static void server(struct end *end)
{
	completed(end->id->recv_cq);
	/* GAP 2: print the text. It does not begin at the start of `memory`. */
	printf("server got %.6s\n", end->memory);
}
