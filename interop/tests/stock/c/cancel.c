/* Cancels threads while they wait in the libraries and while they work in them. The process must
 * continue to work. */
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static struct rdma_event_channel *events;
static struct ibv_comp_channel *completions;
static struct rdma_cm_id *listener;
static volatile int started;

static void fail(const char *what)
{
	perror(what);
	exit(EXIT_FAILURE);
}

static void *wait_for_event(void *unused)
{
	struct rdma_cm_event *event;

	started = 1;
	rdma_get_cm_event(events, &event);
	return unused;
}

static void *wait_for_completion(void *unused)
{
	struct ibv_cq *cq;
	void *context;

	started = 1;
	ibv_get_cq_event(completions, &cq, &context);
	return unused;
}

static void *wait_for_request(void *unused)
{
	struct rdma_cm_id *id;

	started = 1;
	rdma_get_request(listener, &id);
	return unused;
}

/* Creates and closes sockets, which reaches the cancellation points inside the C library. */
static void *work(void *unused)
{
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };

	for (;;) {
		struct rdma_cm_id *id;

		started = 1;
		if (rdma_create_id(events, &id, NULL, RDMA_PS_TCP) || rdma_bind_addr(id, (void *)&any) ||
		    rdma_listen(id, 1) || rdma_destroy_id(id))
			fail("work");
		pthread_testcancel();
	}
	return unused;
}

static void cancel(void *(*what)(void *), int after_us)
{
	pthread_t thread;
	void *result;

	started = 0;
	if (pthread_create(&thread, NULL, what, NULL))
		fail("pthread_create");
	while (!started)
		sched_yield();
	usleep(after_us);
	if (pthread_cancel(thread) || pthread_join(thread, &result))
		fail("pthread_cancel");
	if (result != PTHREAD_CANCELED) {
		fprintf(stderr, "not cancelled\n");
		exit(EXIT_FAILURE);
	}
}

int main(void)
{
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct rdma_cm_id *id;

	if (!(events = rdma_create_event_channel()) || rdma_create_id(events, &id, NULL, RDMA_PS_TCP) ||
	    rdma_bind_addr(id, (void *)&any))
		fail("an id");
	if (!(completions = ibv_create_comp_channel(id->verbs)))
		fail("ibv_create_comp_channel");
	if (rdma_create_id(NULL, &listener, NULL, RDMA_PS_TCP) || rdma_bind_addr(listener, (void *)&any) ||
	    rdma_listen(listener, 1))
		fail("a synchronous listener");
	for (int i = 0; i < 20; i++) {
		cancel(wait_for_event, i * 500);
		cancel(wait_for_completion, i * 500);
		cancel(wait_for_request, i * 500);
		cancel(work, i * 50);
	}
	/* Cancelled threads hold no locks or references. */
	if (rdma_destroy_id(id) || rdma_destroy_id(listener) || ibv_destroy_comp_channel(completions))
		fail("letting go");
	rdma_destroy_event_channel(events);
	return EXIT_SUCCESS;
}
