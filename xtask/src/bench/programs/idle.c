/*
 * idle SECONDS
 *
 * This thread polls the completion queue of an idle queue pair while another thread floods a connection of its own with 64 KiB Writes;
 * the two completion queues are pinned to different shards where there are such. To be run under strace: the phase that counts lies
 * between this thread's two calls of getppid(2), and what it sends or receives there is another queue pair's. Prints the other thread's
 * rounds a second, and this thread's number.
 */
#include "clock.h"
#include "traffic.h"
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int own_vector;

static struct queues own_queue(struct ibv_context *verbs, void *slot)
{
	struct ibv_cq **cq = slot;

	if (!*cq)
		*cq = make_queue(verbs, 64, NULL, own_vector);
	return (struct queues){ *cq, *cq };
}

int main(int argc, char **argv)
{
	const double seconds = argc == 2 ? atof(argv[1]) : 0;
	const struct setup setup = { .window = 4, .memory = 64 };
	static struct driver flooder;
	struct pair idle;
	struct ibv_cq *cq = NULL;
	unsigned long before, polls = 0;
	uint64_t completions = 0;
	double begun, rate;
	int vectors[2];

	if (seconds <= 0) {
		fprintf(stderr, "usage: idle SECONDS\n");
		return 2;
	}
	pinned_vectors(vectors);
	own_vector = vectors[1];
	pair_connect(&idle, &setup, own_queue, &cq);
	flooder.pattern = find_pattern("write-64K");
	flooder.vector = vectors[0];
	start_driver(&flooder);
	/* Connection set-up is over for both. */
	for (begun = now(); now() < begun + 0.2;)
		take_counting(cq, &completions, &completions);
	getppid();
	begun = now();
	before = atomic_load(&flooder.rounds);
	for (; now() < begun + seconds; polls++)
		take_counting(cq, &completions, &completions);
	rate = (double)(atomic_load(&flooder.rounds) - before) / (now() - begun);
	getppid();
	stop_driver(&flooder);
	if (completions) {
		fprintf(stderr, "an idle queue pair had %lu completions\n", (unsigned long)completions);
		return EXIT_FAILURE;
	}
	printf("{\"thread\": %ld, \"polls\": %lu, \"rate\": %f, \"vectors\": [%d, %d]}\n", syscall(SYS_gettid), polls, rate,
	       vectors[0], vectors[1]);
	return EXIT_SUCCESS;
}
