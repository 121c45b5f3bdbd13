/*
 * threads PATTERN SECONDS COUNT [processes] [pinned] [asleep]
 *
 * COUNT threads, each with both ends of a connection and a completion queue of its own, in one process or (`processes`) in a process
 * each. `pinned`: two threads' queues get completion vectors that pin a shard; otherwise vector 0. `asleep`: each thread waits on a
 * completion channel of its own. Prints rounds (round trips or messages) a second of all together.
 */
#include "clock.h"
#include "traffic.h"
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define MOST 16
/* Seconds before it counts: TCP's buffers grow, and the library learns that it is polled. */
#define WARM_UP 0.15

static struct driver drivers[MOST];

static unsigned long sum(const struct driver *first, int count)
{
	unsigned long rounds = 0;

	for (int i = 0; i < count; i++)
		rounds += atomic_load_explicit(&first[i].rounds, memory_order_relaxed);
	return rounds;
}

/* Rounds a second of drivers that have been started, which it stops. */
static double measure(struct driver *first, int count, double seconds)
{
	unsigned long before;
	double begun, rate;

	sleep_for(WARM_UP);
	begun = now();
	before = sum(first, count);
	sleep_for(seconds);
	rate = (double)(sum(first, count) - before) / (now() - begun);
	for (int i = 0; i < count; i++)
		stop_driver(&first[i]);
	return rate;
}

static double measure_threads(int count, double seconds)
{
	for (int i = 0; i < count; i++)
		start_driver(&drivers[i]);
	return measure(drivers, count, seconds);
}

static void expect_all(ssize_t done, size_t wanted)
{
	if (done != (ssize_t)wanted)
		fail("a pipe between processes");
}

/* As soon as each process is ready, all begin to count. */
static double measure_processes(int count, double seconds)
{
	int ready[2], go[2], rates[2];
	double total = 0, rate;
	char token = 0;

	if (pipe(ready) || pipe(go) || pipe(rates))
		fail("pipe");
	for (int i = 0; i < count; i++) {
		const pid_t child = fork();

		if (child < 0)
			fail("fork");
		if (child)
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		start_driver(&drivers[i]);
		expect_all(write(ready[1], &token, 1), 1);
		expect_all(read(go[0], &token, 1), 1);
		rate = measure(&drivers[i], 1, seconds);
		expect_all(write(rates[1], &rate, sizeof rate), sizeof rate);
		exit(EXIT_SUCCESS);
	}
	/* A process that fails leaves the pipe without a writer. */
	close(ready[1]);
	close(rates[1]);
	for (int i = 0; i < count; i++)
		expect_all(read(ready[0], &token, 1), 1);
	for (int i = 0; i < count; i++)
		expect_all(write(go[1], &token, 1), 1);
	for (int i = 0; i < count; i++) {
		expect_all(read(rates[0], &rate, sizeof rate), sizeof rate);
		total += rate;
	}
	return total;
}

int main(int argc, char **argv)
{
	const struct pattern *pattern = argc > 3 ? find_pattern(argv[1]) : NULL;
	const double seconds = pattern ? atof(argv[2]) : 0;
	const int count = pattern ? atoi(argv[3]) : 0;
	bool processes = false, pinned = false, asleep = false;
	int vectors[2] = { 0, 0 };
	double rate;

	if (seconds <= 0 || count < 1 || count > MOST) {
		fprintf(stderr, "usage: threads PATTERN SECONDS COUNT [processes] [pinned] [asleep]\n");
		return 2;
	}
	for (int i = 4; i < argc; i++) {
		processes |= !strcmp(argv[i], "processes");
		pinned |= !strcmp(argv[i], "pinned");
		asleep |= !strcmp(argv[i], "asleep");
	}
	if (pinned)
		pinned_vectors(vectors);
	for (int i = 0; i < count; i++) {
		drivers[i].pattern = pattern;
		drivers[i].vector = vectors[i % 2];
		drivers[i].asleep = asleep;
	}
	rate = processes ? measure_processes(count, seconds) : measure_threads(count, seconds);
	printf("{\"rate\": %f, \"vectors\": [%d, %d]}\n", rate, vectors[0], vectors[1]);
	return EXIT_SUCCESS;
}
