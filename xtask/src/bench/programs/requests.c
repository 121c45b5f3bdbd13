/*
 * requests uiw|tcp SECONDS beside|asleep|reads|reads-computing [busy]
 *
 * A client and a server, a process of one thread each: 64-byte requests and answers over one connection, one at a time. `beside`: both
 * poll, beside 8 connections on which the client writes 1 MiB messages, one under way on each. `asleep`: both wait for whatever comes,
 * in poll(2) on a completion channel or in epoll_wait(2). Over plain TCP both ends are epoll loops that give each ready socket one call.
 * `reads`: the client reads 64 bytes of the server, again and again, and polls. The server waits in rdma_get_cm_event(3), or computes and
 * makes no call at all. Only with uiw.
 * `busy`: a third process keeps a processor busy. Prints requests a second, percentiles, and bytes a second of the large messages.
 */
#include "ends.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define BYTES 64
#define BULK (1u << 20)
#define MOST 9
#define WARM_UP 0.2

static bool asleep, reads, computing;
/* Connection 0 is used for the requests. */
static int connections = 1;

/* Figures, which are counted after the warm-up. */
static struct {
	double begun, asked;
	uint64_t requests, bulk_bytes;
} measured;

static void begin(void)
{
	measured.asked = now();
	measured.begun = measured.asked + WARM_UP;
}

/* Called when an answer has arrived and the next request is sent. */
static void answered(void)
{
	const double time = now();

	if (measured.asked >= measured.begun) {
		add_sample(time - measured.asked);
		measured.requests++;
	}
	measured.asked = time;
}

static void wrote(uint64_t bytes)
{
	if (measured.asked >= measured.begun)
		measured.bulk_bytes += bytes;
}

static void set_nonblocking(int fd)
{
	checked(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK), "O_NONBLOCK");
}

static struct end ends[MOST];
static struct ibv_comp_channel *channel;

static void create_end(int number, struct rdma_cm_id *id, int shares)
{
	const struct setup setup = { .window = 8, .memory = number ? BULK : BYTES };
	struct queues cqs = ends[shares].cqs;

	if (asleep && !channel) {
		if (!(channel = ibv_create_comp_channel(id->verbs)))
			fail("ibv_create_comp_channel");
		/* ibv_get_cq_event(3) requires this for poll(2). */
		set_nonblocking(channel->fd);
	}
	if (shares == number)
		cqs.send = cqs.recv = make_queue(id->verbs, 64, channel, 0);
	end_create(&ends[number], id, cqs, &setup);
}

/* Returns whether a message has arrived. With `asleep`, waits for it. */
static bool has_received(void)
{
	uint64_t sent = 0, received = 0;

	for (;;) {
		struct pollfd polled = { .fd = asleep ? channel->fd : -1, .events = POLLIN };

		if (take_counting(ends[0].cqs.recv, &sent, &received) && asleep && !received)
			continue;
		if (received || !asleep)
			return received;
		checked(poll(&polled, 1, -1), "poll");
		take_event(channel);
	}
}

static void post_request(void)
{
	post_recv(&ends[0], BYTES);
	post_send(&ends[0], BYTES);
}

static void compute(int unused)
{
	volatile uint64_t state = (uint64_t)unused;

	for (;;)
		state = state * 6364136223846793005u + 1442695040888963407u;
}

static void serve_uiw(int fd)
{
	struct rdma_event_channel *events = new_events();
	uint16_t port;

	listen_on_loopback(events, &port);
	tell_port(fd, port);
	for (int i = 0; i < connections; i++) {
		create_end(i, expect(events, RDMA_CM_EVENT_CONNECT_REQUEST, NULL), 0);
		if (!i)
			post_recv(&ends[0], BYTES);
		end_accept(&ends[i]);
		expect(events, RDMA_CM_EVENT_ESTABLISHED, NULL);
	}
	if (computing)
		compute(1);
	if (reads)
		expect(events, RDMA_CM_EVENT_DISCONNECTED, NULL);
	else
		for (;;)
			if (has_received())
				post_request();
}

static void run_reads(struct remote from, double seconds)
{
	struct ibv_wc wcs[BATCH];

	begin();
	while (measured.asked < measured.begun + seconds) {
		post_read(&ends[0], BYTES, from);
		while (!take(ends[0].cqs.send, wcs))
			;
		answered();
	}
}

static void run_uiw(uint16_t port, double seconds)
{
	struct rdma_event_channel *events = new_events();
	struct remote regions[MOST];

	for (int i = 0; i < connections; i++) {
		/* One queue for requests, one for Writes. */
		create_end(i, resolve(events, port), i > 1 ? 1 : i);
		end_connect(&ends[i]);
		expect(events, RDMA_CM_EVENT_ESTABLISHED, &regions[i]);
	}
	if (reads) {
		run_reads(regions[0], seconds);
		return;
	}
	for (int i = 1; i < connections; i++)
		post_write(&ends[i], BULK, regions[i], (uint64_t)i);
	begin();
	post_request();
	while (measured.asked < measured.begun + seconds) {
		struct ibv_wc wcs[BATCH];
		unsigned written;

		if (has_received()) {
			answered();
			post_request();
		}
		if (connections == 1)
			continue;
		written = take(ends[1].cqs.send, wcs);
		for (unsigned i = 0; i < written; i++)
			post_write(&ends[wcs[i].wr_id], BULK, regions[wcs[i].wr_id], wcs[i].wr_id);
		wrote((uint64_t)written * BULK);
	}
}

static char buffers[MOST][BULK];
static size_t filled[MOST];
static int sockets[MOST], set;

static void add_socket(int number, int fd, uint32_t ready)
{
	struct epoll_event event = { .events = ready, .data.u64 = (uint64_t)number };
	const int on = 1;

	sockets[number] = checked(fd, "a connection");
	/* Each process has its own set. */
	if (!number)
		set = checked(epoll_create1(0), "epoll_create1");
	set_nonblocking(fd);
	checked(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), "TCP_NODELAY");
	checked(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
}

/* Counts the bytes of a message that a call has transferred. Returns true at the end of the message. If the peer has exited, ends the process. */
static bool moved(int number, ssize_t some, const char *what)
{
	if (!some || (some < 0 && errno == ECONNRESET))
		exit(EXIT_SUCCESS);
	if (some < 0 && errno != EAGAIN)
		fail(what);
	if (number && some > 0)
		wrote((uint64_t)some);
	filled[number] += some > 0 ? (size_t)some : 0;
	if (filled[number] < (number ? BULK : BYTES))
		return false;
	filled[number] = 0;
	return true;
}

static bool receive(int number)
{
	const size_t size = number ? BULK : BYTES;

	return moved(number, recv(sockets[number], buffers[number] + filled[number], size - filled[number], 0), "recv");
}

static void send_request(void)
{
	if (send(sockets[0], buffers[0], BYTES, MSG_NOSIGNAL) != BYTES)
		fail("send");
}

/* Gives each ready socket one call. */
static void run_ready(bool is_client)
{
	struct epoll_event events[MOST];
	int ready = checked(epoll_wait(set, events, MOST, asleep ? -1 : 0), "epoll_wait");

	for (int i = 0; i < ready; i++) {
		const int n = (int)events[i].data.u64;

		if (n && is_client) {
			moved(n, send(sockets[n], buffers[n] + filled[n], BULK - filled[n], MSG_NOSIGNAL), "send");
		} else if (receive(n) && !n) {
			if (is_client)
				answered();
			send_request();
		}
	}
}

static void serve_tcp(int fd)
{
	struct sockaddr_in address = loopback(0);
	socklen_t length = sizeof address;
	int listener = checked(socket(AF_INET, SOCK_STREAM, 0), "socket");

	checked(bind(listener, (struct sockaddr *)&address, length), "bind");
	checked(listen(listener, 64), "listen");
	checked(getsockname(listener, (struct sockaddr *)&address, &length), "getsockname");
	tell_port(fd, ntohs(address.sin_port));
	for (int i = 0; i < connections; i++)
		add_socket(i, accept(listener, NULL, NULL), EPOLLIN);
	for (;;)
		run_ready(false);
}

static void run_tcp(uint16_t port, double seconds)
{
	struct sockaddr_in address = loopback(port);

	for (int i = 0; i < connections; i++) {
		int fd = checked(socket(AF_INET, SOCK_STREAM, 0), "socket");

		checked(connect(fd, (struct sockaddr *)&address, sizeof address), "connect");
		add_socket(i, fd, i ? EPOLLOUT : EPOLLIN);
	}
	begin();
	send_request();
	while (measured.asked < measured.begun + seconds)
		run_ready(true);
}

int main(int argc, char **argv)
{
	const bool uiw = argc > 3 && !strcmp(argv[1], "uiw");
	const double seconds = argc > 3 ? atof(argv[2]) : 0;
	double took;

	if (seconds <= 0) {
		fprintf(stderr, "usage: requests uiw|tcp SECONDS beside|asleep|reads|reads-computing [busy]\n");
		return 2;
	}
	asleep = !strcmp(argv[3], "asleep");
	computing = !strcmp(argv[3], "reads-computing");
	reads = computing || !strcmp(argv[3], "reads");
	connections = asleep || reads ? 1 : MOST;
	memset(buffers, 0x5A, sizeof buffers);
	if (argc > 4)
		start_process(compute, 1);
	(uiw ? run_uiw : run_tcp)(start_server(uiw ? serve_uiw : serve_tcp), seconds);
	took = measured.asked - measured.begun;
	printf("{");
	print_percentiles();
	printf("\"rate\": %f, \"bytes_per_second\": %f}\n", (double)measured.requests / took,
	       (double)measured.bulk_bytes / took);
	return EXIT_SUCCESS;
}
