/* A Send arrives before its receive is posted, over InfiniBand's transports. The connection
 * parameters of the receiver let the peer retry forever, and the receiver posts later than the
 * time for which other peers wait. Both ends are in this process. */
#include "cm.h"

static struct rdma_event_channel *passive, *active;

static void completes(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int found;

	while (!(found = ibv_poll_cq(cq, 1, &wc)))
		usleep(1000);
	CHECK(found == 1);
	if (wc.status) {
		fprintf(stderr, "%s\n", ibv_wc_status_str(wc.status));
		_exit(EXIT_FAILURE);
	}
}

int main(void)
{
	struct sockaddr_in to;
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND }, *bad_send;
	struct ibv_recv_wr receive = { 0 }, *bad_receive;
	struct rdma_cm_id *client, *server;

	CHECK((passive = rdma_create_event_channel()) && (active = rdma_create_event_channel()));
	listen_on_loopback(passive, &to);
	client = resolve(active, &to);
	create_queue_pair(client);
	CHECK(!rdma_connect(client, &param));
	server = await(passive, RDMA_CM_EVENT_CONNECT_REQUEST);
	create_queue_pair(server);
	CHECK(!rdma_accept(server, &param));
	await(active, RDMA_CM_EVENT_ESTABLISHED);
	await(passive, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(!ibv_post_send(client->qp, &send, &bad_send));
	/* A peer without such parameters would be given one second. */
	sleep(3);
	CHECK(!ibv_post_recv(server->qp, &receive, &bad_receive));
	completes(server->recv_cq);
	completes(client->send_cq);
	puts("a late receive is in time");
	return 0;
}
