/* An end destroys its queue pair and its id as soon as it has received a Send, over InfiniBand's
 * transports. The peer's requests must complete, because an adapter acknowledges a Send before
 * the program sees it. The peer's Read is posted before the Send and uses its only slot for
 * Reads. Both ends are in this process. */
#include "cm.h"

enum { ROUNDS = 20, BYTES = 1 << 16 };

static struct rdma_event_channel *passive, *active;
static char from[BYTES], to[BYTES];

static void completes(struct ibv_cq *cq, int round)
{
	struct ibv_wc wc;
	int found;

	while (!(found = ibv_poll_cq(cq, 1, &wc)))
		;
	CHECK(found == 1);
	if (wc.status) {
		fprintf(stderr, "round %d: %s\n", round, ibv_wc_status_str(wc.status));
		_exit(EXIT_FAILURE);
	}
}

static void round_of(struct sockaddr_in *address, int round)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7 };
	struct ibv_recv_wr receive = { 0 }, *bad_receive;
	struct ibv_send_wr *bad_send;
	struct rdma_cm_id *client, *server;
	struct ibv_mr *source, *sink;

	client = resolve(active, address);
	create_queue_pair(client);
	CHECK(!rdma_connect(client, &param));
	server = await(passive, RDMA_CM_EVENT_CONNECT_REQUEST);
	create_queue_pair(server);
	CHECK((source = ibv_reg_mr(server->pd, from, BYTES, IBV_ACCESS_REMOTE_READ)));
	CHECK((sink = ibv_reg_mr(client->pd, to, BYTES, IBV_ACCESS_LOCAL_WRITE)));
	CHECK(!ibv_post_recv(server->qp, &receive, &bad_receive));
	CHECK(!rdma_accept(server, &param));
	await(active, RDMA_CM_EVENT_ESTABLISHED);
	await(passive, RDMA_CM_EVENT_ESTABLISHED);

	struct ibv_sge sge = { .addr = (uintptr_t)to, .length = BYTES, .lkey = sink->lkey };
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND };
	struct ibv_send_wr read = { .opcode = IBV_WR_RDMA_READ, .sg_list = &sge, .num_sge = 1, .next = &send,
		.wr.rdma = { .remote_addr = (uintptr_t)from, .rkey = source->rkey } };

	memset(from, round + 1, BYTES);
	CHECK(!ibv_post_send(client->qp, &read, &bad_send));
	completes(server->recv_cq, round);
	rdma_destroy_ep(server);
	completes(client->send_cq, round);
	completes(client->send_cq, round);
	CHECK(!memcmp(from, to, BYTES));
	CHECK(!ibv_dereg_mr(source) && !ibv_dereg_mr(sink));
	rdma_destroy_ep(client);
}

int main(void)
{
	struct sockaddr_in own;

	CHECK((passive = rdma_create_event_channel()) && (active = rdma_create_event_channel()));
	listen_on_loopback(passive, &own);
	for (int round = 0; round < ROUNDS; round++)
		round_of(&own, round);
	puts("everything completes though the peer is gone");
	return 0;
}
