/* A client opens each connection after the previous one is established. The server must get the
 * event that a connection is established before the next request; the kernel ensures this order
 * with one queue for both. */
#include "check.h"
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <sys/wait.h>

enum { CONNECTIONS = 300 };

static struct rdma_cm_id *await(struct rdma_event_channel *channel, enum rdma_cm_event_type expected, int connection)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	CHECK(!rdma_get_cm_event(channel, &event));
	if (event->event != expected) {
		fprintf(stderr, "connection %d: expected %s, got %s\n", connection, rdma_event_str(expected),
			rdma_event_str(event->event));
		_exit(EXIT_FAILURE);
	}
	id = event->id;
	CHECK(!rdma_ack_cm_event(event));
	return id;
}

/* Creates a queue pair with a completion queue of its own, so that it can be on any shard. */
static void create_queue_pair(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .cap = { 2, 2, 1, 1, 0 } };

	CHECK(!rdma_create_qp(id, NULL, &attr));
}

static void client(int from_server)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct rdma_event_channel *channel;
	char end;

	CHECK(read(from_server, &to.sin_port, sizeof to.sin_port) == sizeof to.sin_port);
	CHECK((channel = rdma_create_event_channel()));
	for (int connection = 0; connection < CONNECTIONS; connection++) {
		struct rdma_cm_id *id;

		CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
		CHECK(!rdma_resolve_addr(id, NULL, (void *)&to, 1000));
		await(channel, RDMA_CM_EVENT_ADDR_RESOLVED, connection);
		CHECK(!rdma_resolve_route(id, 1000));
		await(channel, RDMA_CM_EVENT_ROUTE_RESOLVED, connection);
		create_queue_pair(id);
		CHECK(!rdma_connect(id, NULL));
		await(channel, RDMA_CM_EVENT_ESTABLISHED, connection);
	}
	/* The connections stay open until the server has ended. */
	CHECK(read(from_server, &end, 1) == 0);
}

static void server(int to_client)
{
	struct sockaddr_in own = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct rdma_event_channel *channel;
	struct rdma_cm_id *listener;
	unsigned short port;

	CHECK((channel = rdma_create_event_channel()));
	CHECK(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(listener, (void *)&own) && !rdma_listen(listener, 4));
	port = rdma_get_src_port(listener);
	CHECK(write(to_client, &port, sizeof port) == sizeof port);
	for (int connection = 0; connection < CONNECTIONS; connection++) {
		struct rdma_cm_id *id = await(channel, RDMA_CM_EVENT_CONNECT_REQUEST, connection);

		create_queue_pair(id);
		CHECK(!rdma_accept(id, NULL));
		CHECK(await(channel, RDMA_CM_EVENT_ESTABLISHED, connection) == id);
	}
}

int main(void)
{
	int pipe_[2], status;
	pid_t child;

	CHECK(!pipe(pipe_));
	CHECK((child = fork()) >= 0);
	if (!child) {
		close(pipe_[1]);
		client(pipe_[0]);
		_exit(EXIT_SUCCESS);
	}
	close(pipe_[0]);
	server(pipe_[1]);
	close(pipe_[1]);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	printf("%d connections one by one, each established before the next request\n", CONNECTIONS);
	return 0;
}
