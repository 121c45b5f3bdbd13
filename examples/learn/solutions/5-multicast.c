/* Exercise 5: a datagram to a multicast group. Both ends have joined it; the server receives. */
#define GROUP "239.77.0.5"
#include "../learn.h"

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
	wr.wr.ud.ah = end->group;
	wr.wr.ud.remote_qpn = end->group_qpn;
	wr.wr.ud.remote_qkey = end->group_qkey;
	need(!ibv_post_send(end->id->qp, &wr, &bad), "ibv_post_send");
	completed(end->id->send_cq);
}

static void server(struct end *end)
{
	completed(end->id->recv_cq);
	printf("server got %.6s\n", end->memory + GRH);
}
