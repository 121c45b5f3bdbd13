/* Epoll sets that several threads use at once, in a program of TCP alone. It passes on the kernel's TCP as well. */
#define _GNU_SOURCE
#include "tcp.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>

static void pair(int listener, const union address *at, socklen_t len, int ends[2])
{
	ends[0] = socket(family, SOCK_STREAM, 0);
	CHECK(ends[0] >= 0 && connect(ends[0], &at->any, len) == 0);
	ends[1] = accept(listener, NULL, NULL);
	CHECK(ends[1] >= 0);
	/* Before the first use an accepted connection is the kernel's. */
	crosses(ends[0], ends[1]);
}

static int set_of_first, first;
/* How many of the two threads have come to a point, which none leaves before the other has come. */
static atomic_int arrived;

static void meet(int *met)
{
	*met += 2;
	atomic_fetch_add(&arrived, 1);
	while (atomic_load(&arrived) < *met)
		;
}

static void *adds(void *unused)
{
	int met = 0;
	struct epoll_event event = {.events = EPOLLIN};
	for (;;) {
		meet(&met);
		if (set_of_first < 0)
			return unused;
		CHECK(epoll_ctl(set_of_first, EPOLL_CTL_ADD, first, &event) == 0);
		meet(&met);
	}
}

/* Two threads add the first two members of a set at once: both are in it. */
static void first_members(int rounds)
{
	union address at;
	socklen_t len;
	int listener = listening(&at, &len), ends[2], met = 0;
	struct epoll_event event = {.events = EPOLLIN};
	pthread_t thread;
	pair(listener, &at, len, ends);
	first = ends[1];
	CHECK(pthread_create(&thread, NULL, adds, NULL) == 0);
	for (int round = 0; round < rounds; round++) {
		set_of_first = epoll_create1(EPOLL_CLOEXEC);
		meet(&met);
		CHECK(epoll_ctl(set_of_first, EPOLL_CTL_ADD, ends[0], &event) == 0);
		meet(&met);
		CHECK(epoll_ctl(set_of_first, EPOLL_CTL_MOD, ends[0], &event) == 0);
		CHECK(epoll_ctl(set_of_first, EPOLL_CTL_MOD, ends[1], &event) == 0);
		CHECK(close(set_of_first) == 0);
	}
	set_of_first = -1;
	meet(&met);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(close(ends[0]) == 0 && close(ends[1]) == 0 && close(listener) == 0);
}

int main(void)
{
	first_members(3000);
	puts("sets are as they should be");
	return 0;
}
