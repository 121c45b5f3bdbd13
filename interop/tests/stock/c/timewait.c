/* Tests RDMA_CM_EVENT_TIMEWAIT_EXIT. With the argument "once" both ends get it once, as with
 * InfiniBand and RoCE; with "never" it does not occur, as with iWARP. Both ends are in this
 * process. */
#include "cm.h"
#include <poll.h>
#include <time.h>

static struct sockaddr_in to;
static struct rdma_event_channel *passive, *active;

static double now(void)
{
	struct timespec time;

	CHECK(!clock_gettime(CLOCK_MONOTONIC, &time));
	return time.tv_sec + time.tv_nsec * 1e-9;
}

static int readable(struct rdma_event_channel *channel, int milliseconds)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };

	return poll(&fd, 1, milliseconds) == 1;
}

static void connected(struct rdma_cm_id **client, struct rdma_cm_id **server)
{
	*client = resolve(active, &to);
	create_queue_pair(*client);
	CHECK(!rdma_connect(*client, NULL));
	*server = await(passive, RDMA_CM_EVENT_CONNECT_REQUEST);
	create_queue_pair(*server);
	CHECK(!rdma_accept(*server, NULL));
	await(active, RDMA_CM_EVENT_ESTABLISHED);
	await(passive, RDMA_CM_EVENT_ESTABLISHED);
}

/* Takes DISCONNECTED at both ends and returns the time of the first one. */
static double disconnected(struct rdma_cm_id *client, struct rdma_cm_id *server)
{
	double at;

	CHECK(!rdma_disconnect(client));
	at = now();
	CHECK(await(active, RDMA_CM_EVENT_DISCONNECTED) == client);
	CHECK(await(passive, RDMA_CM_EVENT_DISCONNECTED) == server);
	return at;
}

static void let_go(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	CHECK(!rdma_destroy_id(id));
}

/* Checks that the event has neither status nor private data. */
static void await_exit(struct rdma_event_channel *channel, struct rdma_cm_id *id)
{
	struct rdma_cm_event *event;

	CHECK(!rdma_get_cm_event(channel, &event));
	CHECK(event->event == RDMA_CM_EVENT_TIMEWAIT_EXIT && event->id == id && event->status == 0);
	CHECK(!event->param.conn.private_data && event->param.conn.private_data_len == 0);
	CHECK(!rdma_ack_cm_event(event));
}

int main(int argc, char **argv)
{
	const int once = argc == 2 && !strcmp(argv[1], "once");
	struct rdma_cm_id *listener, *client, *server;
	double at;

	CHECK((passive = rdma_create_event_channel()) && (active = rdma_create_event_channel()));
	listener = listen_on_loopback(passive, &to);

	/* The event also comes if the queue pair was destroyed, and after a second disconnect. */
	connected(&client, &server);
	at = disconnected(client, server);
	rdma_destroy_qp(server);
	CHECK(!rdma_disconnect(client));
	if (once) {
		await_exit(active, client);
		CHECK(now() - at > 0.4);
		await_exit(passive, server);
	}
	CHECK(!readable(active, 1200) && !readable(passive, 0));
	let_go(client);
	let_go(server);

	/* Destroying an id does not wait, and none of its events arrives later. Other programs may
	 * delay a round, but not all ten. */
	for (int round = 1;; round++) {
		connected(&client, &server);
		at = disconnected(client, server);
		let_go(client);
		let_go(server);
		if (now() - at < 0.4)
			break;
		CHECK(round < 10);
	}
	CHECK(!readable(active, 1000) && !readable(passive, 0));

	/* If an id moves to another channel in the meantime, the event arrives there. */
	connected(&client, &server);
	disconnected(client, server);
	CHECK(!rdma_migrate_id(client, passive));
	if (once) {
		struct rdma_cm_id *first = await(passive, RDMA_CM_EVENT_TIMEWAIT_EXIT);
		struct rdma_cm_id *second = await(passive, RDMA_CM_EVENT_TIMEWAIT_EXIT);

		CHECK((first == client && second == server) || (first == server && second == client));
	}
	CHECK(!readable(active, 100));
	let_go(client);
	let_go(server);
	let_go(listener);
	rdma_destroy_event_channel(passive);
	rdma_destroy_event_channel(active);
	printf("events as expected\n");
	return EXIT_SUCCESS;
}
