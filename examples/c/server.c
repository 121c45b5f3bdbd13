/*
 * Answers all messages of all clients. The argument is the number of clients after which the server exits (0: never).
 *
 *     cc -o server server.c -lrdmacm -libverbs
 *     uiw run -- ./server 1
 */
#include "common.h"

static void on_request(struct rdma_cm_id *id)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };

	make_connection(id);
	if (rdma_accept(id, &param))
		fail("rdma_accept");
}

static void on_established(struct connection *c)
{
	char answer[MESSAGE_SIZE];

	wait_completions(c, 1);
	printf("server got: %s\n", c->in);
	snprintf(answer, sizeof answer, "you said %zu bytes", strlen(c->in));
	send_message(c, answer);
	wait_completions(c, 1);
}

int main(int argc, char **argv)
{
	int clients = argc > 1 ? atoi(argv[1]) : 0, served = 0;
	struct sockaddr_in any = { .sin_family = AF_INET };
	struct rdma_event_channel *channel;
	struct rdma_cm_event *event;
	struct rdma_cm_id *listener;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!(channel = rdma_create_event_channel()))
		fail("rdma_create_event_channel");
	if (rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP))
		fail("rdma_create_id");
	if (rdma_bind_addr(listener, (struct sockaddr *)&any))
		fail("rdma_bind_addr");
	if (rdma_listen(listener, 8))
		fail("rdma_listen");
	printf("port %d\n", ntohs(rdma_get_src_port(listener)));

	while (!clients || served < clients) {
		enum rdma_cm_event_type type;
		struct rdma_cm_id *id;

		if (rdma_get_cm_event(channel, &event))
			fail("rdma_get_cm_event");
		type = event->event;
		id = event->id;
		/* An id cannot be destroyed before its events are acknowledged. */
		rdma_ack_cm_event(event);
		switch (type) {
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			on_request(id);
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
			on_established(id->context);
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
			free_connection(id->context);
			served++;
			break;
		default:
			fprintf(stderr, "unexpected: %s\n", rdma_event_str(type));
			return EXIT_FAILURE;
		}
	}
	if (rdma_destroy_id(listener))
		fail("rdma_destroy_id");
	rdma_destroy_event_channel(channel);
	return EXIT_SUCCESS;
}
