/* Tests events of completion channels while a peer writes to memory, which causes no completions
 * here. A blocking channel raises an event only for a completion. A non-blocking channel that
 * poll(2) reports as readable has an event. */
#include "check.h"
#include "ends.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define BYTES 64
#define ROUNDS 5

static struct pair pair;

/* Creates a completion queue with a channel of its own for each end. */
static struct queues one_queue(struct ibv_context *verbs, void *unused)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(verbs);
	struct ibv_cq *cq;

	(void)unused;
	CHECK(channel);
	cq = make_queue(verbs, 64, channel, 0);
	return (struct queues){ cq, cq };
}

static void await_sent(void)
{
	struct ibv_wc wcs[BATCH];

	while (!take(pair.a.cqs.send, wcs))
		;
}

static void *write_and_send(void *unused)
{
	for (int i = 0; i < 30; i++) {
		post_write(&pair.a, BYTES, pair.b_region, 0);
		await_sent();
		usleep(300);
	}
	post_send(&pair.a, BYTES);
	await_sent();
	return unused;
}

static void acknowledge(struct ibv_comp_channel *channel)
{
	struct ibv_cq *cq;
	void *context;

	CHECK(!ibv_get_cq_event(channel, &cq, &context));
	ibv_ack_cq_events(cq, 1);
}

/* Takes the pending event of a completion that has already been polled, if there is one. */
static void drain(struct ibv_comp_channel *channel)
{
	const int flags = fcntl(channel->fd, F_GETFL);
	struct ibv_cq *cq;
	void *context;

	CHECK(!fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK));
	while (!ibv_get_cq_event(channel, &cq, &context))
		ibv_ack_cq_events(cq, 1);
	CHECK(errno == EAGAIN);
	CHECK(!fcntl(channel->fd, F_SETFL, flags));
}

/* Receives the Send. */
static void receive(struct ibv_cq *cq, int nonblocking)
{
	struct ibv_wc wcs[BATCH];

	for (;;) {
		struct pollfd polled = { .fd = cq->channel->fd, .events = POLLIN };

		CHECK(!ibv_req_notify_cq(cq, 0));
		if (take(cq, wcs))
			return;
		if (nonblocking) {
			CHECK(poll(&polled, 1, 20000) == 1);
			acknowledge(cq->channel);
		} else {
			/* Writes arrive during this time. */
			usleep(2000);
			acknowledge(cq->channel);
			CHECK(take(cq, wcs));
			return;
		}
	}
}

static void rounds(int nonblocking)
{
	const int fd = pair.b.cqs.recv->channel->fd;

	CHECK(!fcntl(fd, F_SETFL, nonblocking ? O_NONBLOCK : 0));
	for (int i = 0; i < ROUNDS; i++) {
		pthread_t writer;

		/* If the queue were armed soon after a wait, the library would take this for the beginning of
		 * the next wait. */
		usleep(15000);
		drain(pair.b.cqs.recv->channel);
		post_recv(&pair.b, BYTES);
		CHECK(!pthread_create(&writer, NULL, write_and_send, NULL));
		receive(pair.b.cqs.recv, nonblocking);
		CHECK(!pthread_join(writer, NULL));
	}
}

int main(void)
{
	const struct setup setup = { .window = 8, .memory = BYTES };

	pair_connect(&pair, &setup, one_queue, NULL);
	rounds(0);
	rounds(1);
	return EXIT_SUCCESS;
}
