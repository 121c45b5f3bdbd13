/* A wait continues after a signal whose handler has SA_RESTART, and ends with EINTR after one
 * whose handler does not. */
#include "check.h"
#include <errno.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

static struct rdma_event_channel *channel;
static struct rdma_cm_id *id;
static volatile sig_atomic_t signals;
static volatile int result, error, done;

static void on_signal(int number)
{
	(void)number;
	signals++;
}

static void *wait_for_event(void *unused)
{
	struct rdma_cm_event *event;

	result = rdma_get_cm_event(channel, &event);
	error = errno;
	if (!result)
		rdma_ack_cm_event(event);
	done = 1;
	return unused;
}

static void *wait_for_completion(void *unused)
{
	struct ibv_cq *cq;
	void *context;

	result = ibv_get_cq_event(id->recv_cq_channel, &cq, &context);
	error = errno;
	if (!result)
		ibv_ack_cq_events(cq, 1);
	done = 1;
	return unused;
}

static void *wait_for_async_event(void *unused)
{
	struct ibv_async_event event;

	result = ibv_get_async_event(id->verbs, &event);
	error = errno;
	done = 1;
	return unused;
}

/* Signals a waiting thread until its handler has run a few times or its wait has ended. */
static pthread_t signalled(void *(*wait)(void *), int flags, int times)
{
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = flags };
	pthread_t thread;

	CHECK(!sigaction(SIGUSR1, &action, NULL));
	signals = done = 0;
	result = 1;
	CHECK(!pthread_create(&thread, NULL, wait, NULL));
	while (signals < times && !done) {
		usleep(10000);
		CHECK(!pthread_kill(thread, SIGUSR1));
	}
	return thread;
}

static void interrupted(void *(*wait)(void *))
{
	pthread_t thread = signalled(wait, 0, 1 << 20);

	CHECK(!pthread_join(thread, NULL));
	CHECK(result == -1 && error == EINTR);
}

/* A single signal must end a wait, also if it comes soon after the call, because programs end
 * their loops in this way. The signal is repeated later in case the first one came before the
 * call. */
static void interrupted_by_the_first(void)
{
	struct sigaction action = { .sa_handler = on_signal };
	struct itimerval soon = { .it_value = { 0, 2000 }, .it_interval = { 0, 500000 } }, never = { 0 };
	int by_the_first = 0, i;

	CHECK(!sigaction(SIGALRM, &action, NULL));
	for (i = 0; i < 10; i++) {
		struct ibv_cq *cq;
		void *context;

		signals = 0;
		CHECK(!setitimer(ITIMER_REAL, &soon, NULL));
		CHECK(ibv_get_cq_event(id->recv_cq_channel, &cq, &context) == -1 && errno == EINTR);
		by_the_first += signals == 1;
		CHECK(!setitimer(ITIMER_REAL, &never, NULL));
	}
	CHECK(by_the_first > 0);
}

/* siginterrupt(3) also applies to handlers that signal(3) sets later. It is deprecated, but
 * programs use it. */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
static void siginterrupt_before_signal(void)
{
	struct sigaction set;

	CHECK(!siginterrupt(SIGUSR2, 1));
	CHECK(signal(SIGUSR2, on_signal) != SIG_ERR);
	CHECK(!sigaction(SIGUSR2, NULL, &set));
	CHECK(set.sa_handler == on_signal && !(set.sa_flags & SA_RESTART));
	CHECK(!siginterrupt(SIGUSR2, 0));
	CHECK(signal(SIGUSR2, SIG_DFL) == on_signal);
	CHECK(!sigaction(SIGUSR2, NULL, &set));
	CHECK(set.sa_handler == SIG_DFL && (set.sa_flags & SA_RESTART));
}

int main(void)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	struct ibv_qp_attr to_error = { .qp_state = IBV_QPS_ERR };
	struct ibv_recv_wr wr = { .wr_id = 1 }, *bad;
	pthread_t thread;

	siginterrupt_before_signal();
	CHECK((channel = rdma_create_event_channel()) && !rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	interrupted(wait_for_event);
	thread = signalled(wait_for_event, SA_RESTART, 5);
	CHECK(!done);
	CHECK(!rdma_resolve_addr(id, NULL, (void *)&to, 1000));
	CHECK(!pthread_join(thread, NULL) && result == 0);

	CHECK(!rdma_create_qp(id, NULL, &attr));
	interrupted(wait_for_async_event);
	CHECK(!ibv_post_recv(id->qp, &wr, &bad));
	CHECK(!ibv_req_notify_cq(id->recv_cq, 0));
	interrupted(wait_for_completion);
	interrupted_by_the_first();
	thread = signalled(wait_for_completion, SA_RESTART, 5);
	CHECK(!done);
	CHECK(!ibv_modify_qp(id->qp, &to_error, IBV_QP_STATE));
	CHECK(!pthread_join(thread, NULL) && result == 0);

	rdma_destroy_qp(id);
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
	return EXIT_SUCCESS;
}
