/* Several threads use epoll sets at once, in a program that knows only TCP. The program also
 * passes on the kernel's TCP. */
#define _GNU_SOURCE
#include "tcp.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/epoll.h>

static void pair(int listener, const union address *at, socklen_t len, int ends[2])
{
	ends[0] = socket(family, SOCK_STREAM, 0);
	CHECK(ends[0] >= 0 && connect(ends[0], &at->any, len) == 0);
	ends[1] = accept(listener, NULL, NULL);
	CHECK(ends[1] >= 0);
	/* Before its first use, an accepted connection belongs to the kernel. */
	crosses(ends[0], ends[1]);
}

/* These variables are atomic, because the compiler may keep an ordinary one in a register across
 * a call of meet(). */
static atomic_int set_of_first, first;
/* Number of threads that have reached a meeting point. A thread leaves the point only after the
 * other thread has arrived. */
static atomic_int arrived;

static void meet(int *met)
{
	*met += 2;
	atomic_fetch_add(&arrived, 1);
	/* On a busy machine the other thread may need the processor of this thread. */
	for (int spins = 0; atomic_load(&arrived) < *met; spins++)
		if (spins > 1000)
			sched_yield();
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

/* Two threads add the first two members of a set at the same time; both must be in the set. */
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

/* Accepts connections one after the other and sends a byte on each. */
static void *greets(void *listener)
{
	for (;;) {
		char byte;
		int fd = accept((int)(intptr_t)listener, NULL, NULL);
		if (fd < 0)
			return NULL;
		CHECK(write(fd, "x", 1) == 1);
		while (read(fd, &byte, 1) > 0) {
		}
		close(fd);
	}
}

static int shared_set;
static atomic_uint greeted;

static void *waits(void *unused)
{
	for (;;) {
		struct epoll_event events[8];
		int found = epoll_wait(shared_set, events, 8, -1);
		CHECK(found > 0);
		for (int i = 0; i < found; i++) {
			if (events[i].data.u32 == 0)
				return unused;
			/* A socket that is not connected reports EPOLLHUP. */
			if (events[i].events & EPOLLIN && !(events[i].events & EPOLLHUP))
				atomic_store(&greeted, events[i].data.u32);
		}
	}
}

/* Members of a set begin to connect while threads wait for the set. */
static void members_connect(unsigned rounds)
{
	union address at;
	socklen_t len;
	int listener = listening(&at, &len), over[2];
	struct epoll_event event = {.events = EPOLLIN};
	pthread_t server, waiting[2];
	shared_set = epoll_create1(EPOLL_CLOEXEC);
	CHECK(pipe(over) == 0 && epoll_ctl(shared_set, EPOLL_CTL_ADD, over[0], &event) == 0);
	CHECK(pthread_create(&server, NULL, greets, (void *)(intptr_t)listener) == 0);
	for (unsigned round = 1; round <= rounds; round++) {
		int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK, 0), waited = 0;
		event = (struct epoll_event){.events = EPOLLIN | EPOLLET, .data.u32 = round};
		CHECK(epoll_ctl(shared_set, EPOLL_CTL_ADD, fd, &event) == 0);
		for (int i = 0; round == 1 && i < 2; i++)
			CHECK(pthread_create(&waiting[i], NULL, waits, NULL) == 0);
		usleep(1000);
		CHECK(connect(fd, &at.any, len) == 0 || errno == EINPROGRESS);
		/* The event comes soon or never. */
		while (atomic_load(&greeted) != round) {
			CHECK(waited++ < 20000);
			usleep(1000);
		}
		CHECK(epoll_ctl(shared_set, EPOLL_CTL_DEL, fd, NULL) == 0 && close(fd) == 0);
	}
	CHECK(write(over[1], "x", 1) == 1);
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(waiting[i], NULL) == 0);
	CHECK(shutdown(listener, SHUT_RD) == 0 && pthread_join(server, NULL) == 0 && close(listener) == 0);
	CHECK(close(shared_set) == 0 && close(over[0]) == 0 && close(over[1]) == 0);
}

enum { WAITING = 4 };

struct waits_for_one {
	int set, how;
	struct epoll_event event;
};

static void *waits_for_one(void *argument)
{
	struct waits_for_one *wait = argument;
	struct timespec minute = {.tv_sec = 60};
	int found = -1;
	errno = ENOSYS;
	if (wait->how == 0)
		found = epoll_wait(wait->set, &wait->event, 1, -1);
	if (wait->how == 1)
		found = epoll_pwait(wait->set, &wait->event, 1, 60000, NULL);
	if (wait->how == 2)
		found = epoll_pwait2(wait->set, &wait->event, 1, &minute, NULL);
	if (found < 0 && errno == ENOSYS)
		found = epoll_wait(wait->set, &wait->event, 1, 60000);
	CHECK(found == 1);
	return NULL;
}

/* Connected sockets are added to a set for which threads are waiting. Each thread gets one of
 * the events, and no other event is reported. */
static void sockets_enter(void)
{
	union address at;
	socklen_t len;
	int listener = listening(&at, &len), ends[WAITING][2], ordinary[2], set = epoll_create1(EPOLL_CLOEXEC), count, seen = 0;
	struct epoll_event event = {.events = EPOLLIN, .data.u32 = 99}, events[WAITING + 2];
	struct waits_for_one waiting[WAITING];
	pthread_t threads[WAITING];
	CHECK(pipe(ordinary) == 0 && epoll_ctl(set, EPOLL_CTL_ADD, ordinary[0], &event) == 0);
	for (int i = 0; i < WAITING; i++)
		pair(listener, &at, len, ends[i]);
	for (int i = 0; i < WAITING; i++) {
		waiting[i] = (struct waits_for_one){.set = set, .how = i};
		CHECK(pthread_create(&threads[i], NULL, waits_for_one, &waiting[i]) == 0);
	}
	/* Most of the threads are waiting by now. */
	usleep(20000);
	for (int i = 0; i < WAITING; i++) {
		event = (struct epoll_event){.events = EPOLLIN | EPOLLONESHOT, .data.u32 = i};
		CHECK(epoll_ctl(set, EPOLL_CTL_ADD, ends[i][1], &event) == 0);
		usleep(1000);
		CHECK(write(ends[i][0], "x", 1) == 1);
	}
	for (int i = 0; i < WAITING; i++) {
		CHECK(pthread_join(threads[i], NULL) == 0 && waiting[i].event.events == EPOLLIN);
		CHECK(waiting[i].event.data.u32 < WAITING && !(seen & 1 << waiting[i].event.data.u32));
		seen |= 1 << waiting[i].event.data.u32;
	}
	/* The set contains only the members that the program has added. */
	CHECK(epoll_wait(set, events, WAITING + 2, 5) == 0);
	CHECK(poll(&(struct pollfd){.fd = set, .events = POLLIN}, 1, 5) == 0);
	CHECK(write(ordinary[1], "x", 1) == 1);
	CHECK((count = epoll_wait(set, events, WAITING + 2, -1)) == 1 && events[0].data.u32 == 99);
	for (int i = 0; i < WAITING; i++)
		CHECK(close(ends[i][0]) == 0 && close(ends[i][1]) == 0);
	CHECK(close(listener) == 0 && close(set) == 0 && close(ordinary[0]) == 0 && close(ordinary[1]) == 0);
}

static void *waits_in_vain(void *set)
{
	struct epoll_event event;
	CHECK(epoll_wait((int)(intptr_t)set, &event, 1, 300) == 0);
	return NULL;
}

/* The timeout of a wait does not change if a socket is added to the set during the wait. */
static void times_out(void)
{
	union address at;
	socklen_t len;
	int listener = listening(&at, &len), ends[2], set = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event event = {.events = EPOLLIN};
	pthread_t thread;
	pair(listener, &at, len, ends);
	CHECK(pthread_create(&thread, NULL, waits_in_vain, (void *)(intptr_t)set) == 0);
	usleep(20000);
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(close(ends[0]) == 0 && close(ends[1]) == 0 && close(listener) == 0 && close(set) == 0);
}

static void *waits_for_ever(void *set)
{
	struct epoll_event event;
	epoll_wait((int)(intptr_t)set, &event, 1, -1);
	return NULL;
}

/* A thread is cancelled during its wait, and a socket is added to the set afterwards. */
static void cancels(void)
{
	union address at;
	socklen_t len;
	int listener = listening(&at, &len), ends[2], ordinary[2], set = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.u32 = 1};
	pthread_t thread;
	void *result;
	CHECK(pipe(ordinary) == 0 && epoll_ctl(set, EPOLL_CTL_ADD, ordinary[0], &event) == 0);
	pair(listener, &at, len, ends);
	CHECK(pthread_create(&thread, NULL, waits_for_ever, (void *)(intptr_t)set) == 0);
	usleep(1000);
	CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
	event.data.u32 = 2;
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event) == 0);
	CHECK(epoll_wait(set, &event, 1, 20) == 0);
	CHECK(write(ordinary[1], "x", 1) == 1 && epoll_wait(set, &event, 1, -1) == 1 && event.data.u32 == 1);
	CHECK(write(ends[1], "x", 1) == 1 && epoll_wait(set, &event, 1, -1) == 1 && event.data.u32 == 2);
	CHECK(epoll_wait(set, &event, 1, 0) == 0);
	CHECK(close(ends[0]) == 0 && close(ends[1]) == 0 && close(listener) == 0 && close(set) == 0);
	CHECK(close(ordinary[0]) == 0 && close(ordinary[1]) == 0);
}

static int busy_set, busy_socket;
/* Number of threads that have received a byte in this round. */
static atomic_int busy;

/* Takes one byte and then stays busy until the other thread has received one. */
static void *takes_one(void *unused)
{
	struct epoll_event event;
	char byte;
	do
		CHECK(epoll_wait(busy_set, &event, 1, -1) == 1);
	while (recv(busy_socket, &byte, 1, MSG_DONTWAIT) != 1);
	atomic_fetch_add(&busy, 1);
	while (atomic_load(&busy) < 2)
		usleep(100);
	return unused;
}

/* A byte that one thread leaves in a socket is reported to another thread, even if the first one
 * does not wait for the set again. */
static void leaves_the_rest(int rounds)
{
	union address at;
	socklen_t len;
	int listener = listening(&at, &len), ends[2];
	struct epoll_event event = {.events = EPOLLIN};
	pair(listener, &at, len, ends);
	busy_socket = ends[0];
	busy_set = epoll_create1(EPOLL_CLOEXEC);
	CHECK(epoll_ctl(busy_set, EPOLL_CTL_ADD, busy_socket, &event) == 0);
	for (int round = 0; round < rounds; round++) {
		pthread_t threads[2];
		atomic_store(&busy, 0);
		for (int i = 0; i < 2; i++)
			CHECK(pthread_create(&threads[i], NULL, takes_one, NULL) == 0);
		if (round % 2)
			usleep(1000);
		CHECK(write(ends[1], "xy", 2) == 2);
		for (int i = 0; i < 2; i++)
			CHECK(pthread_join(threads[i], NULL) == 0);
	}
	CHECK(close(ends[0]) == 0 && close(ends[1]) == 0 && close(listener) == 0 && close(busy_set) == 0);
}

static int polled;

/* poll(2) without a timeout returns when data is available, although another thread may take the
 * data first. */
static void *polls(void *unused)
{
	char byte;
	for (;;) {
		struct pollfd fd = {.fd = polled, .events = POLLIN};
		CHECK(poll(&fd, 1, -1) == 1 && fd.revents);
		if (recv(polled, &byte, 1, MSG_DONTWAIT) == 0)
			return unused;
		atomic_fetch_add(&busy, 1);
	}
}

static void polled_by_two(int bytes)
{
	union address at;
	socklen_t len;
	int listener = listening(&at, &len), ends[2];
	pthread_t threads[2];
	pair(listener, &at, len, ends);
	polled = ends[0];
	for (int i = 0; i < 2; i++)
		CHECK(pthread_create(&threads[i], NULL, polls, NULL) == 0);
	for (int i = 0; i < bytes; i++) {
		atomic_store(&busy, 0);
		CHECK(write(ends[1], "x", 1) == 1);
		while (atomic_load(&busy) == 0)
			sched_yield();
	}
	CHECK(shutdown(ends[1], SHUT_WR) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	CHECK(close(ends[0]) == 0 && close(ends[1]) == 0 && close(listener) == 0);
}

/* A descriptor that is not an epoll set is refused as by the kernel, and stays usable. */
static void others_are_no_sets(void)
{
	union address at;
	socklen_t len;
	int listener = listening(&at, &len), ends[2], others[2];
	struct epoll_event event = {.events = EPOLLIN};
	pair(listener, &at, len, ends);
	CHECK(pipe(others) == 0);
	for (int i = 0; i < 2; i++) {
		int no_set = i ? ends[0] : others[0];
		errno = 0;
		CHECK(epoll_ctl(no_set, EPOLL_CTL_ADD, ends[1], &event) < 0 && errno == EINVAL);
	}
	crosses(ends[0], ends[1]);
	crosses(ends[1], ends[0]);
	for (int i = 0; i < 2; i++)
		CHECK(close(ends[i]) == 0 && close(others[i]) == 0);
	CHECK(close(listener) == 0);
}

/* Number of events that epoll_wait returned to the function below. */
static int found_early;

/* Runs before the constructors of all libraries, and waits for an event whose data is 0. */
static void waits_early(void)
{
	int ordinary[2], set = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT};
	CHECK(pipe(ordinary) == 0 && epoll_ctl(set, EPOLL_CTL_ADD, ordinary[0], &event) == 0);
	CHECK(write(ordinary[1], "x", 1) == 1);
	found_early = epoll_wait(set, &event, 1, 0);
	CHECK(close(ordinary[0]) == 0 && close(ordinary[1]) == 0 && close(set) == 0);
}

__attribute__((section(".preinit_array"), used)) static void (*before_all)(void) = waits_early;

int main(void)
{
	CHECK(found_early == 1);
	others_are_no_sets();
	cancels();
	leaves_the_rest(200);
	polled_by_two(2000);
	for (int i = 0; i < 20; i++)
		sockets_enter();
	times_out();
	members_connect(100);
	first_members(3000);
	puts("sets are as they should be");
	return 0;
}
