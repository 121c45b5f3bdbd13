/* Tests private data and reject reasons of rdma_cm events. The first argument is the family of
 * the reasons, "infiniband" or "iwarp". The second one is the length of private data: "padded"
 * to InfiniBand's fields, or "exact" as sent by the peer. Both ends are in this process. */
#include "cm.h"
#include <poll.h>
#include <sys/socket.h>

static const struct sockaddr_in loopback = { .sin_family = AF_INET, .sin_addr.s_addr = 0x0100007f };

static struct rdma_event_channel *passive, *active;
static int infiniband, padded;

/* Lengths of InfiniBand's private data fields. */
enum { REQUEST = 56, REPLY = 196, REJECT = 148, SIDR_REQUEST = 180, SIDR_REPLY = 136 };

static unsigned char data[256];

static struct rdma_cm_event *next(struct rdma_event_channel *channel, enum rdma_cm_event_type expected)
{
	struct rdma_cm_event *event;

	CHECK(!rdma_get_cm_event(channel, &event));
	if (event->event != expected) {
		fprintf(stderr, "expected %s, got %s, status %d\n", rdma_event_str(expected), rdma_event_str(event->event),
			event->status);
		_exit(EXIT_FAILURE);
	}
	return event;
}

/* Checks that the event contains the peer's data in a field of that length. The structures for
 * connections and datagrams begin with the same members. */
static void carries(struct rdma_cm_event *event, int sent, int field)
{
	const unsigned char *seen = event->param.conn.private_data;
	const int len = padded ? field : sent;

	CHECK(event->param.conn.private_data_len == len);
	CHECK(!seen == !len);
	for (int i = 0; i < len; i++)
		CHECK(seen[i] == (i < sent ? data[i] : 0));
}

static void carries_nothing(struct rdma_cm_event *event)
{
	CHECK(!event->param.conn.private_data && event->param.conn.private_data_len == 0);
}

static void await_nothing(struct rdma_event_channel *channel, enum rdma_cm_event_type expected)
{
	struct rdma_cm_event *event = next(channel, expected);

	CHECK(event->status == 0);
	carries_nothing(event);
	CHECK(!rdma_ack_cm_event(event));
}

static struct rdma_cm_id *listening(enum rdma_port_space space)
{
	struct rdma_cm_id *id;

	CHECK(!rdma_create_id(passive, &id, NULL, space));
	CHECK(!rdma_bind_addr(id, (void *)&loopback) && !rdma_listen(id, 8));
	return id;
}

static struct rdma_cm_id *aimed(enum rdma_port_space space, uint16_t port)
{
	struct sockaddr_in to = loopback;
	struct rdma_cm_id *id;

	to.sin_port = port;
	CHECK(!rdma_create_id(active, &id, NULL, space));
	CHECK(!rdma_resolve_addr(id, NULL, (void *)&to, 1000));
	await(active, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_resolve_route(id, 1000));
	await(active, RDMA_CM_EVENT_ROUTE_RESOLVED);
	return id;
}

static struct rdma_cm_id *with_queue_pair(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = { .qp_type = id->ps == RDMA_PS_TCP ? IBV_QPT_RC : IBV_QPT_UD, .cap = { 2, 2, 1, 1, 0 } };

	CHECK(!rdma_create_qp(id, NULL, &attr));
	return id;
}

static void let_go(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	CHECK(!rdma_destroy_id(id));
}

static struct rdma_conn_param parameters(int len)
{
	return (struct rdma_conn_param){ .private_data = data, .private_data_len = len, .retry_count = 7, .rnr_retry_count = 7 };
}

/* Returns the length that is refused, or -1. */
static int too_long(int field)
{
	return padded ? field + 1 : -1;
}

static void nobody_listens(void)
{
	struct rdma_cm_id *listener = listening(RDMA_PS_TCP), *client;
	struct rdma_conn_param param = parameters(1);
	struct rdma_cm_event *event;
	uint16_t port = rdma_get_src_port(listener);

	CHECK(!rdma_destroy_id(listener));
	client = with_queue_pair(aimed(RDMA_PS_TCP, port));
	CHECK(!rdma_connect(client, &param));
	event = next(active, RDMA_CM_EVENT_REJECTED);
	CHECK(event->status == (infiniband ? 8 : -ECONNREFUSED));
	carries(event, 0, REJECT);
	CHECK(!rdma_ack_cm_event(event));
	let_go(client);
}

/* The peer resets the TCP connection instead of answering, also at the second attempt with an
 * earlier MPA revision. */
static void reset_before_the_answer(void)
{
	struct linger none = { .l_onoff = 1 };
	struct rdma_conn_param param = parameters(1);
	struct sockaddr_in at = loopback;
	socklen_t len = sizeof at;
	struct rdma_cm_event *event;
	struct rdma_cm_id *client;
	char byte;
	int listener = socket(AF_INET, SOCK_STREAM, 0), peer;

	CHECK(!bind(listener, (void *)&at, len) && !listen(listener, 1) && !getsockname(listener, (void *)&at, &len));
	client = with_queue_pair(aimed(RDMA_PS_TCP, at.sin_port));
	CHECK(!rdma_connect(client, &param));
	for (;;) {
		struct pollfd fds[] = { { .fd = listener, .events = POLLIN }, { .fd = active->fd, .events = POLLIN } };

		CHECK(poll(fds, 2, 20000) > 0);
		if (!fds[0].revents)
			break;
		CHECK((peer = accept(listener, NULL, NULL)) >= 0 && read(peer, &byte, 1) == 1);
		CHECK(!setsockopt(peer, SOL_SOCKET, SO_LINGER, &none, sizeof none) && !close(peer));
	}
	CHECK(!close(listener));
	event = next(active, RDMA_CM_EVENT_REJECTED);
	CHECK(event->status == (infiniband ? 10 : -ECONNRESET));
	carries(event, 0, REJECT);
	CHECK(!rdma_ack_cm_event(event));
	let_go(client);
}

static void connect_with(int asked, int answered)
{
	struct rdma_cm_id *listener = listening(RDMA_PS_TCP), *client, *server;
	struct rdma_conn_param param = parameters(too_long(REQUEST));
	struct rdma_cm_event *event;

	client = with_queue_pair(aimed(RDMA_PS_TCP, rdma_get_src_port(listener)));
	if (padded)
		CHECK(rdma_connect(client, &param) == -1 && errno == EINVAL);
	param = parameters(asked);
	CHECK(!rdma_connect(client, &param));
	event = next(passive, RDMA_CM_EVENT_CONNECT_REQUEST);
	carries(event, asked, REQUEST);
	server = with_queue_pair(event->id);
	CHECK(!rdma_ack_cm_event(event));
	param = parameters(too_long(REPLY));
	if (padded)
		CHECK(rdma_accept(server, &param) == -1 && errno == EINVAL);
	param = parameters(answered);
	CHECK(!rdma_accept(server, &param));
	event = next(active, RDMA_CM_EVENT_ESTABLISHED);
	carries(event, answered, REPLY);
	CHECK(!rdma_ack_cm_event(event));
	await_nothing(passive, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(!rdma_disconnect(client));
	await_nothing(active, RDMA_CM_EVENT_DISCONNECTED);
	await_nothing(passive, RDMA_CM_EVENT_DISCONNECTED);
	let_go(client);
	let_go(server);
	let_go(listener);
}

static void reject_with(int answered)
{
	struct rdma_cm_id *listener = listening(RDMA_PS_TCP), *client, *server;
	struct rdma_conn_param param = parameters(1);
	struct rdma_cm_event *event;

	client = with_queue_pair(aimed(RDMA_PS_TCP, rdma_get_src_port(listener)));
	CHECK(!rdma_connect(client, &param));
	server = await(passive, RDMA_CM_EVENT_CONNECT_REQUEST);
	if (padded)
		CHECK(rdma_reject(server, data, too_long(REJECT)) == -1 && errno == EINVAL);
	CHECK(!rdma_reject(server, data, answered));
	event = next(active, RDMA_CM_EVENT_REJECTED);
	CHECK(event->status == (infiniband ? 28 : -ECONNREFUSED));
	carries(event, answered, REJECT);
	CHECK(!rdma_ack_cm_event(event));
	let_go(client);
	let_go(server);
	let_go(listener);
}

/* Connects without a queue pair in the id, which iWARP does not support. */
static void connect_in_two_steps(void)
{
	struct rdma_cm_id *listener = listening(RDMA_PS_TCP), *client, *server;
	struct rdma_conn_param param = parameters(0);
	struct rdma_cm_event *event;

	client = aimed(RDMA_PS_TCP, rdma_get_src_port(listener));
	CHECK(!rdma_connect(client, &param));
	event = next(passive, RDMA_CM_EVENT_CONNECT_REQUEST);
	carries(event, 0, REQUEST);
	server = event->id;
	CHECK(!rdma_ack_cm_event(event));
	param = parameters(3);
	CHECK(!rdma_accept(server, &param));
	event = next(active, RDMA_CM_EVENT_CONNECT_RESPONSE);
	carries(event, 3, REPLY);
	CHECK(!rdma_ack_cm_event(event));
	let_go(client);
	event = next(passive, RDMA_CM_EVENT_REJECTED);
	CHECK(event->status == (infiniband ? 10 : -ECONNRESET));
	carries(event, 0, REJECT);
	CHECK(!rdma_ack_cm_event(event));
	let_go(server);
	let_go(listener);
}

static void resolve_datagrams(int accepted, int asked, int answered)
{
	struct rdma_cm_id *listener = listening(RDMA_PS_UDP), *client, *server;
	struct rdma_conn_param param = parameters(SIDR_REQUEST + 1);
	struct rdma_cm_event *event;

	client = with_queue_pair(aimed(RDMA_PS_UDP, rdma_get_src_port(listener)));
	CHECK(rdma_connect(client, &param) == -1 && errno == EINVAL);
	param = parameters(asked);
	CHECK(!rdma_connect(client, &param));
	event = next(passive, RDMA_CM_EVENT_CONNECT_REQUEST);
	carries(event, asked, SIDR_REQUEST);
	server = with_queue_pair(event->id);
	CHECK(!rdma_ack_cm_event(event));
	param = parameters(SIDR_REPLY + 1);
	if (accepted) {
		CHECK(rdma_accept(server, &param) == -1 && errno == EINVAL);
		param = parameters(answered);
		CHECK(!rdma_accept(server, &param));
		event = next(active, RDMA_CM_EVENT_ESTABLISHED);
		CHECK(event->status == 0 && event->param.ud.qp_num == server->qp->qp_num);
	} else {
		CHECK(rdma_reject(server, data, SIDR_REPLY + 1) == -1 && errno == EINVAL);
		CHECK(!rdma_reject(server, data, answered));
		event = next(active, infiniband ? RDMA_CM_EVENT_UNREACHABLE : RDMA_CM_EVENT_REJECTED);
		CHECK(event->status == (infiniband ? 2 : -ECONNREFUSED));
	}
	carries(event, answered, SIDR_REPLY);
	CHECK(!rdma_ack_cm_event(event));
	let_go(client);
	let_go(server);
	let_go(listener);
}

int main(int argc, char **argv)
{
	static const int lengths[][2] = { { 0, 0 }, { 1, 1 }, { REQUEST, REPLY } };

	CHECK(argc == 3);
	infiniband = !strcmp(argv[1], "infiniband");
	padded = !strcmp(argv[2], "padded");
	for (size_t i = 0; i < sizeof data; i++)
		data[i] = 1 + i % 255;
	CHECK((passive = rdma_create_event_channel()) && (active = rdma_create_event_channel()));
	nobody_listens();
	reset_before_the_answer();
	for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
		connect_with(lengths[i][0], lengths[i][1]);
	if (!padded)
		connect_with(255, 255);
	reject_with(0);
	reject_with(9);
	reject_with(padded ? REJECT : 255);
	if (infiniband)
		connect_in_two_steps();
	for (int accepted = 0; accepted < 2; accepted++) {
		resolve_datagrams(accepted, 0, 0);
		resolve_datagrams(accepted, 5, 7);
		resolve_datagrams(accepted, SIDR_REQUEST, SIDR_REPLY);
	}
	rdma_destroy_event_channel(passive);
	rdma_destroy_event_channel(active);
	printf("events as expected\n");
	return EXIT_SUCCESS;
}
