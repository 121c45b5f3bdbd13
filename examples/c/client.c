/*
 * Sends one message to a server and prints the answer.
 *
 *     cc -o client client.c -lrdmacm -libverbs
 *     uiw run -- ./client HOST PORT "good day"
 */
#include "common.h"
#include <netdb.h>

static struct rdma_cm_event *next(struct rdma_event_channel *channel, enum rdma_cm_event_type expected)
{
	struct rdma_cm_event *event;

	if (rdma_get_cm_event(channel, &event))
		fail("rdma_get_cm_event");
	if (event->event != expected) {
		fprintf(stderr, "expected %s, got %s, status %d\n", rdma_event_str(expected),
			rdma_event_str(event->event), event->status);
		exit(EXIT_FAILURE);
	}
	return event;
}

static void await(struct rdma_event_channel *channel, enum rdma_cm_event_type expected)
{
	rdma_ack_cm_event(next(channel, expected));
}

int main(int argc, char **argv)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7 };
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *address;
	struct rdma_event_channel *channel;
	struct connection *c;
	struct rdma_cm_id *id;
	int error;

	if (argc != 4) {
		fprintf(stderr, "usage: client HOST PORT MESSAGE\n");
		return EXIT_FAILURE;
	}
	if ((error = getaddrinfo(argv[1], argv[2], &hints, &address))) {
		fprintf(stderr, "%s: %s\n", argv[1], gai_strerror(error));
		return EXIT_FAILURE;
	}
	if (!(channel = rdma_create_event_channel()))
		fail("rdma_create_event_channel");
	if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP))
		fail("rdma_create_id");
	if (rdma_resolve_addr(id, NULL, address->ai_addr, 2000))
		fail("rdma_resolve_addr");
	freeaddrinfo(address);
	await(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	if (rdma_resolve_route(id, 2000))
		fail("rdma_resolve_route");
	await(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);

	c = make_connection(id);
	if (rdma_connect(id, &param))
		fail("rdma_connect");
	await(channel, RDMA_CM_EVENT_ESTABLISHED);

	send_message(c, argv[3]);
	wait_completions(c, 2);
	printf("client got: %s\n", c->in);

	if (rdma_disconnect(id))
		fail("rdma_disconnect");
	await(channel, RDMA_CM_EVENT_DISCONNECTED);
	free_connection(c);
	rdma_destroy_event_channel(channel);
	return EXIT_SUCCESS;
}
