/* Exercise 1: the client sends "ping" in a message, and the server answers "pong". */
#include "../learn.h"

static void prepare(struct end *end)
{
	struct ibv_sge sge = part(end, 0, 64);
	struct ibv_recv_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *bad;

	need(!ibv_post_recv(end->id->qp, &wr, &bad), "ibv_post_recv");
}

static void send_text(struct end *end, const char *text)
{
	struct ibv_sge sge = part(end, 64, strlen(text) + 1);

	strcpy(end->memory + 64, text);
	struct ibv_send_wr wr = {
		.wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED
	}, *bad;

	need(!ibv_post_send(end->id->qp, &wr, &bad), "ibv_post_send");
	completed(end->id->send_cq);
}

static void client(struct end *end)
{
	send_text(end, "ping");
	completed(end->id->recv_cq);
	printf("client got %s\n", end->memory);
}

static void server(struct end *end)
{
	completed(end->id->recv_cq);
	send_text(end, "pong");
}
