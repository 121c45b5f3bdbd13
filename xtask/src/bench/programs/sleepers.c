/*
 * sleepers uiw|tcp SECONDS [busy]
 *
 * A client and a server, a process each, exchange 64-byte requests and answers over one connection; each waits for whatever comes in
 * poll(2) on a completion channel, or in epoll_wait(2) on a TCP socket. `busy`: a third process keeps a processor busy. Prints
 * requests a second and the round trip's percentiles.
 */
#include "clock.h"
#include "ends.h"
#include "peers.h"
#include "sockets.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>

#define BYTES 64
#define WARM_UP 0.1

static struct samples samples;
static struct ibv_comp_channel *channel;

static struct queues one_queue(struct ibv_context *verbs)
{
	struct ibv_cq *cq;

	if (!(channel = ibv_create_comp_channel(verbs)))
		fail("ibv_create_comp_channel");
	/* As ibv_get_cq_event(3) has it for poll(2). */
	if (fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK))
		fail("fcntl");
	cq = make_queue(verbs, 64, channel, 0);
	return (struct queues){ cq, cq };
}

static const struct setup setup = { .window = 8, .memory = BYTES };

/* Takes an event of the channel, if there is one, acknowledges it and arms its queue. */
static void take_event(void)
{
	struct ibv_cq *cq;
	void *context;

	if (ibv_get_cq_event(channel, &cq, &context)) {
		if (errno == EAGAIN)
			return;
		fail("ibv_get_cq_event");
	}
	ibv_ack_cq_events(cq, 1);
	if (ibv_req_notify_cq(cq, 0))
		fail("ibv_req_notify_cq");
}

/* Waits in poll(2) until a message has come. */
static void wait_message(struct end *end)
{
	uint64_t sent = 0, received = 0;

	while (!received) {
		struct pollfd polled = { .fd = channel->fd, .events = POLLIN };

		if (take_counting(end->cqs.recv, &sent, &received))
			continue;
		if (poll(&polled, 1, -1) != 1)
			fail("poll");
		take_event();
	}
}

static struct rdma_event_channel *new_events(void)
{
	struct rdma_event_channel *events = rdma_create_event_channel();

	if (!events)
		fail("rdma_create_event_channel");
	return events;
}

static void serve_uiw(int fd)
{
	struct rdma_event_channel *events = new_events();
	struct rdma_cm_id *id;
	struct end end;
	uint16_t port;

	listen_on_loopback(events, &port);
	tell_port(fd, port);
	id = expect(events, RDMA_CM_EVENT_CONNECT_REQUEST, NULL);
	end_create(&end, id, one_queue(id->verbs), &setup);
	post_recv(&end, BYTES);
	end_accept(&end);
	expect(events, RDMA_CM_EVENT_ESTABLISHED, NULL);
	for (;;) {
		wait_message(&end);
		post_recv(&end, BYTES);
		post_send(&end, BYTES);
	}
}

static struct end client;

static void connect_uiw(uint16_t port)
{
	struct rdma_event_channel *events = new_events();
	struct rdma_cm_id *id = resolve(events, port);

	end_create(&client, id, one_queue(id->verbs), &setup);
	end_connect(&client);
	expect(events, RDMA_CM_EVENT_ESTABLISHED, NULL);
}

static void request_uiw(void)
{
	post_recv(&client, BYTES);
	post_send(&client, BYTES);
	wait_message(&client);
}

/* Waits in epoll_wait(2) until a message has come, and reads it. */
static void read_message(int set, int fd)
{
	char message[BYTES];
	size_t got = 0;

	while (got < BYTES) {
		struct epoll_event event;
		ssize_t some;

		if (checked(epoll_wait(set, &event, 1, -1), "epoll_wait") != 1)
			continue;
		some = recv(fd, message + got, BYTES - got, 0);
		if (!some)
			exit(EXIT_SUCCESS);
		if (some < 0)
			fail("recv");
		got += (size_t)some;
	}
}

static void send_message(int fd)
{
	static const char message[BYTES];

	if (send(fd, message, BYTES, MSG_NOSIGNAL) != BYTES)
		fail("send");
}

static int new_set(int fd)
{
	int set = checked(epoll_create1(0), "epoll_create1");

	watch(set, fd, EPOLLIN, 0);
	return set;
}

static void serve_tcp(int fd)
{
	uint16_t port;
	int listener = listen_tcp(&port), stream, set;

	tell_port(fd, port);
	stream = accept_tcp(listener);
	set = new_set(stream);
	for (;;) {
		read_message(set, stream);
		send_message(stream);
	}
}

static int stream, set;

static void connect_to_tcp(uint16_t port)
{
	stream = connect_tcp(port);
	set = new_set(stream);
}

static void request_tcp(void)
{
	send_message(stream);
	read_message(set, stream);
}

static void compute(int unused)
{
	volatile uint64_t state = 1;

	(void)unused;
	for (;;)
		state = state * 6364136223846793005u + 1442695040888963407u;
}

int main(int argc, char **argv)
{
	const bool uiw = argc > 2 && !strcmp(argv[1], "uiw");
	const double seconds = argc > 2 ? atof(argv[2]) : 0;
	uint64_t requests = 0;
	double begun, end, last;
	uint16_t port;

	if (seconds <= 0 || (!uiw && strcmp(argv[1], "tcp"))) {
		fprintf(stderr, "usage: sleepers uiw|tcp SECONDS [busy]\n");
		return 2;
	}
	if (argc > 3 && !strcmp(argv[3], "busy"))
		start_process(compute, -1);
	port = start_server(uiw ? serve_uiw : serve_tcp);
	(uiw ? connect_uiw : connect_to_tcp)(port);
	for (end = now() + WARM_UP; now() < end;)
		(uiw ? request_uiw : request_tcp)();
	begun = last = now();
	end = begun + seconds;
	while (last < end) {
		double then = last;

		(uiw ? request_uiw : request_tcp)();
		last = now();
		add_sample(&samples, last - then);
		requests++;
	}
	sort_samples(&samples);
	printf("{\"rate\": %f, \"p50_us\": %f, \"p99_us\": %f}\n", (double)requests / (last - begun),
	       percentile(&samples, 0.5), percentile(&samples, 0.99));
	return EXIT_SUCCESS;
}
