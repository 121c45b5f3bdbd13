/* Exercise 3: the client sleeps until messages arrive, instead of polling all the time. */
#include "../learn.h"
#include <unistd.h>

#define MESSAGES 8

static void prepare(struct end *end)
{
	struct ibv_sge sge = part(end, 0, 64);
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	for (wr.wr_id = 0; wr.wr_id < MESSAGES; wr.wr_id++)
		need(!ibv_post_recv(end->id->qp, &wr, &bad), "ibv_post_recv");
	need(!ibv_req_notify_cq(end->id->recv_cq, 0), "ibv_req_notify_cq");
}

static void client(struct end *end)
{
	struct ibv_cq *cq = end->id->recv_cq;
	struct ibv_wc wc;
	int got = 0;
	void *context;

	while (got < MESSAGES) {
		need(!ibv_get_cq_event(end->id->recv_cq_channel, &cq, &context), "ibv_get_cq_event");
		ibv_ack_cq_events(cq, 1);
		need(!ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq");
		while (ibv_poll_cq(cq, 1, &wc) == 1)
			got++;
	}
	printf("client got %d messages\n", got);
}

/* Sends two messages at the same time. */
static void server(struct end *end)
{
	struct ibv_sge sge = part(end, 0, 64);
	struct ibv_send_wr second = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_send_wr first = second, *bad;

	first.next = &second;
	for (int sent = 0; sent < MESSAGES; sent += 2) {
		need(!ibv_post_send(end->id->qp, &first, &bad), "ibv_post_send");
		completed(end->id->send_cq);
		completed(end->id->send_cq);
		usleep(100000);
	}
}
