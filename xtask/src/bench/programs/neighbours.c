/*
 * neighbours uiw|tcp SECONDS
 *
 * A client and a server, a process of one thread each: 64-byte requests and answers over one connection, one at a time, beside 8
 * connections on which the client writes 1 MiB messages, one under way on each. Over plain TCP both ends are epoll loops that give each
 * ready socket one call. Prints requests a second, the round trip's percentiles, and bytes a second of the large messages.
 */
#include "clock.h"
#include "ends.h"
#include "peers.h"
#include "sockets.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#define BYTES 64
#define BULK (1u << 20)
#define STREAMS 8
#define WARM_UP 0.2

static struct samples samples;

/* What is measured: from the warm-up's end on. */
static struct {
	double begun, asked;
	uint64_t bulk_bytes;
} measured;

/* An answer has come, and the next request goes out now. */
static void answered(void)
{
	const double time = now();

	if (measured.asked >= measured.begun)
		add_sample(&samples, time - measured.asked);
	measured.asked = time;
}

static void wrote(uint64_t bytes)
{
	if (measured.asked >= measured.begun)
		measured.bulk_bytes += bytes;
}

static struct rdma_event_channel *new_events(void)
{
	struct rdma_event_channel *events = rdma_create_event_channel();

	if (!events)
		fail("rdma_create_event_channel");
	return events;
}

static struct setup setup_of(int connection)
{
	return (struct setup){ .window = 8, .memory = connection ? BULK : BYTES };
}

static struct queues one_queue(struct ibv_context *verbs)
{
	struct ibv_cq *cq = make_queue(verbs, 64, NULL, 0);

	return (struct queues){ cq, cq };
}

/* Connection 0 is that of the requests. */
static void serve_uiw(int fd)
{
	struct rdma_event_channel *events = new_events();
	static struct end ends[1 + STREAMS];
	uint16_t port;

	listen_on_loopback(events, &port);
	tell_port(fd, port);
	for (int i = 0; i <= STREAMS; i++) {
		struct rdma_cm_id *id = expect(events, RDMA_CM_EVENT_CONNECT_REQUEST, NULL);
		struct setup setup = setup_of(i);

		end_create(&ends[i], id, i ? ends[0].cqs : one_queue(id->verbs), &setup);
		if (!i)
			post_recv(&ends[0], BYTES);
		end_accept(&ends[i]);
		expect(events, RDMA_CM_EVENT_ESTABLISHED, NULL);
	}
	for (;;) {
		uint64_t sent = 0, received = 0;

		take_counting(ends[0].cqs.recv, &sent, &received);
		if (received) {
			post_recv(&ends[0], BYTES);
			post_send(&ends[0], BYTES);
		}
	}
}

static void run_uiw(uint16_t port, double until)
{
	struct rdma_event_channel *events = new_events();
	static struct end ends[1 + STREAMS];
	struct remote regions[1 + STREAMS];

	for (int i = 0; i <= STREAMS; i++) {
		struct rdma_cm_id *id = resolve(events, port);
		struct setup setup = setup_of(i);

		/* One queue for requests, one for Writes. */
		end_create(&ends[i], id, i > 1 ? ends[1].cqs : one_queue(id->verbs), &setup);
		end_connect(&ends[i]);
		expect(events, RDMA_CM_EVENT_ESTABLISHED, &regions[i]);
	}
	for (int i = 1; i <= STREAMS; i++)
		post_write(&ends[i], BULK, regions[i], (uint64_t)i);
	measured.asked = now();
	measured.begun = measured.asked + WARM_UP;
	until += measured.begun;
	post_recv(&ends[0], BYTES);
	post_send(&ends[0], BYTES);
	while (measured.asked < until) {
		uint64_t sent = 0, received = 0;
		struct ibv_wc wcs[BATCH];
		unsigned written;

		take_counting(ends[0].cqs.recv, &sent, &received);
		if (received) {
			answered();
			post_recv(&ends[0], BYTES);
			post_send(&ends[0], BYTES);
		}
		written = take(ends[1].cqs.send, wcs);
		for (unsigned i = 0; i < written; i++)
			post_write(&ends[wcs[i].wr_id], BULK, regions[wcs[i].wr_id], wcs[i].wr_id);
		wrote((uint64_t)written * BULK);
	}
}

static void set_nonblocking(int fd)
{
	checked(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK), "O_NONBLOCK");
}

/* What a call moved; 0 where it would have waited. The peer's end ends the process. */
static size_t moved(ssize_t result, const char *what)
{
	if (result > 0)
		return (size_t)result;
	if (!result || errno == ECONNRESET)
		exit(EXIT_SUCCESS);
	if (errno != EAGAIN)
		fail(what);
	return 0;
}

/* A small message is taken whole or not at all. */
static bool has_message(int fd)
{
	char message[BYTES];
	const size_t got = moved(recv(fd, message, BYTES, MSG_PEEK), "recv");

	return got == BYTES && recv(fd, message, BYTES, 0) == BYTES;
}

static void send_message(int fd)
{
	static const char message[BYTES];

	if (send(fd, message, BYTES, MSG_NOSIGNAL) != BYTES)
		fail("send");
}

static char buffers[1 + STREAMS][BULK];
static int sockets[1 + STREAMS];

static void serve_tcp(int fd)
{
	size_t got[1 + STREAMS] = { 0 };
	uint16_t port;
	int listener = listen_tcp(&port), set = checked(epoll_create1(0), "epoll_create1");

	tell_port(fd, port);
	for (uint64_t i = 0; i <= STREAMS; i++) {
		sockets[i] = accept_tcp(listener);
		set_nonblocking(sockets[i]);
		watch(set, sockets[i], EPOLLIN, i);
	}
	for (;;) {
		struct epoll_event events[1 + STREAMS];
		int ready = checked(epoll_wait(set, events, 1 + STREAMS, 0), "epoll_wait");

		for (int i = 0; i < ready; i++) {
			const uint64_t n = events[i].data.u64;

			if (n)
				got[n] = (got[n] + moved(recv(sockets[n], buffers[n] + got[n], BULK - got[n], 0),
							 "recv")) % BULK;
			else if (has_message(sockets[0]))
				send_message(sockets[0]);
		}
	}
}

static void run_tcp(uint16_t port, double until)
{
	size_t put[1 + STREAMS] = { 0 };
	int set = checked(epoll_create1(0), "epoll_create1");

	for (uint64_t i = 0; i <= STREAMS; i++) {
		sockets[i] = connect_tcp(port);
		set_nonblocking(sockets[i]);
		watch(set, sockets[i], i ? EPOLLOUT : EPOLLIN, i);
	}
	measured.asked = now();
	measured.begun = measured.asked + WARM_UP;
	until += measured.begun;
	send_message(sockets[0]);
	while (measured.asked < until) {
		struct epoll_event events[1 + STREAMS];
		int ready = checked(epoll_wait(set, events, 1 + STREAMS, 0), "epoll_wait");

		for (int i = 0; i < ready; i++) {
			const uint64_t n = events[i].data.u64;

			if (n) {
				const size_t some = moved(send(sockets[n], buffers[n] + put[n], BULK - put[n],
							       MSG_NOSIGNAL), "send");

				put[n] = (put[n] + some) % BULK;
				wrote(some);
			} else if (has_message(sockets[0])) {
				answered();
				send_message(sockets[0]);
			}
		}
	}
}

int main(int argc, char **argv)
{
	const bool uiw = argc == 3 && !strcmp(argv[1], "uiw");
	const double seconds = argc == 3 ? atof(argv[2]) : 0;
	double took;

	if (seconds <= 0 || (!uiw && strcmp(argv[1], "tcp"))) {
		fprintf(stderr, "usage: neighbours uiw|tcp SECONDS\n");
		return 2;
	}
	memset(buffers, 0x5A, sizeof buffers);
	(uiw ? run_uiw : run_tcp)(start_server(uiw ? serve_uiw : serve_tcp), seconds);
	took = measured.asked - measured.begun;
	sort_samples(&samples);
	printf("{\"rate\": %f, \"p50_us\": %f, \"p99_us\": %f, \"bytes_per_second\": %f}\n",
	       (double)samples.count / took, percentile(&samples, 0.5), percentile(&samples, 0.99),
	       (double)measured.bulk_bytes / took);
	return EXIT_SUCCESS;
}
