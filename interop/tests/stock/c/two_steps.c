/* Tests how rdma_cm connects a program that changes the state of its queue pairs itself, on
 * transports other than iWARP; the id has no queue pair. The active side gets CONNECT_RESPONSE
 * after the peer has accepted, and the passive side gets ESTABLISHED after the active one has
 * called rdma_establish. Both ends are in this process. */
#include "cm.h"
#include <poll.h>

static struct rdma_event_channel *passive, *active;

/* An event that has not arrived after this time was not sent. */
static int nothing_comes(struct rdma_event_channel *channel)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };

	return poll(&fd, 1, 300) == 0;
}

static struct ibv_qp *queue_pair(struct rdma_cm_id *id, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_UD, .cap = { 2, 2, 1, 1, 0 }, .send_cq = cq, .recv_cq = cq };
	struct ibv_qp *qp = ibv_create_qp(id->pd, &attr);

	CHECK(qp);
	return qp;
}

enum ending { ESTABLISHES, DISCONNECTS, GIVES_UP };

static void connect_and(enum ending ending)
{
	struct sockaddr_in to;
	struct rdma_conn_param param = { .private_data = "data", .private_data_len = 4 };
	struct rdma_cm_id *listener, *client, *server;
	struct ibv_qp *of_client, *of_server;
	struct ibv_cq *cq;

	listener = listen_on_loopback(passive, &to);
	client = resolve(active, &to);
	CHECK((cq = ibv_create_cq(client->verbs, 1, NULL, NULL, 0)));
	of_client = queue_pair(client, cq);
	param.qp_num = of_client->qp_num;
	CHECK(!rdma_connect(client, &param));
	server = await(passive, RDMA_CM_EVENT_CONNECT_REQUEST);
	/* The peer has not answered yet. */
	CHECK(rdma_establish(client) == -1 && errno == EINVAL);
	of_server = queue_pair(server, cq);
	param.qp_num = of_server->qp_num;
	CHECK(!rdma_accept(server, &param));
	await(active, RDMA_CM_EVENT_CONNECT_RESPONSE);
	CHECK(nothing_comes(passive) && nothing_comes(active));
	switch (ending) {
	case ESTABLISHES:
		CHECK(!rdma_establish(client));
		await(passive, RDMA_CM_EVENT_ESTABLISHED);
		CHECK(nothing_comes(active));
		CHECK(!rdma_disconnect(client));
		await(passive, RDMA_CM_EVENT_DISCONNECTED);
		await(active, RDMA_CM_EVENT_DISCONNECTED);
		break;
	case DISCONNECTS:
		CHECK(!rdma_disconnect(client));
		await(passive, RDMA_CM_EVENT_REJECTED);
		await(active, RDMA_CM_EVENT_DISCONNECTED);
		break;
	case GIVES_UP:
		break;
	}
	CHECK(!rdma_destroy_id(client));
	if (ending == GIVES_UP)
		await(passive, RDMA_CM_EVENT_REJECTED);
	CHECK(!ibv_destroy_qp(of_client) && !ibv_destroy_qp(of_server) && !ibv_destroy_cq(cq));
	CHECK(!rdma_destroy_id(server) && !rdma_destroy_id(listener));
}

int main(void)
{
	CHECK((passive = rdma_create_event_channel()) && (active = rdma_create_event_channel()));
	connect_and(ESTABLISHES);
	connect_and(DISCONNECTS);
	connect_and(GIVES_UP);
	rdma_destroy_event_channel(passive);
	rdma_destroy_event_channel(active);
	printf("done\n");
	return 0;
}
