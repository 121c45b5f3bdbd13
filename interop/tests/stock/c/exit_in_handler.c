/* Calls exit(3) in a signal handler, as libraries below libfabric do. The signal interrupts
 * polls that drive a connection, so the library's exit handlers run on the interrupted thread. */
#include "ends.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILDREN = 20 };

static void on_alarm(int number)
{
	(void)number;
	exit(0);
}

static struct queues one_queue(struct ibv_context *verbs, void *argument)
{
	struct ibv_cq *cq = make_queue(verbs, 16, NULL, 0);

	(void)argument;
	return (struct queues){ cq, cq };
}

static void poll_until_interrupted(void)
{
	const struct setup setup = { .window = 4, .memory = 4096 };
	const struct itimerval soon = { .it_value = { .tv_usec = 20000 } };
	struct ibv_wc wcs[BATCH];
	struct pair pair;

	pair_connect(&pair, &setup, one_queue, NULL);
	signal(SIGALRM, on_alarm);
	if (setitimer(ITIMER_REAL, &soon, NULL))
		fail("setitimer");
	for (;;)
		take(pair.a.cqs.recv, wcs);
}

int main(void)
{
	for (int i = 0; i < CHILDREN; i++) {
		pid_t child = fork();
		int status;

		if (child < 0)
			fail("fork");
		if (child == 0)
			poll_until_interrupted();
		if (waitpid(child, &status, 0) != child || status != 0)
			fail("a child did not end as it should");
	}
	printf("%d children ended\n", CHILDREN);
	return 0;
}
