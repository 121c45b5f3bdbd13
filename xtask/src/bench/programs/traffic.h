/* Threads of which each drives both ends of a connection of its own. */
#ifndef UIW_BENCH_TRAFFIC_H
#define UIW_BENCH_TRAFFIC_H

#include "ends.h"
#include <pthread.h>
#include <stdatomic.h>

/* The traffic of a thread. */
struct pattern {
	const char *name;
	unsigned bytes;
	/* Requests under way; 1 is a ping-pong. */
	unsigned window;
	bool write;
};

/* NULL when there is none of this name. */
const struct pattern *find_pattern(const char *name);

struct driver {
	/* To be set before `start_driver`. */
	const struct pattern *pattern;
	/* Of its completion queues. */
	int vector;
	/* Waits on a completion channel of its own instead of polling. */
	bool asleep;
	/* Computes instead of sending anything. */
	bool arithmetic;

	pthread_t thread;
	struct pair pair;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	atomic_bool ready, stop;
	/* Rounds: round trips, or messages. On a cache line of its own. */
	_Alignas(128) atomic_ulong rounds;
	char end_of_line[128 - sizeof(atomic_ulong)];
};

/* Starts a thread and waits until its ends are connected and it has begun. */
void start_driver(struct driver *driver);

void stop_driver(struct driver *driver);

/* Completion vectors for two queues on two shards: 1 and 2, each of which pins a shard; 1 and 0 or twice 0 where the device has fewer.
   Vector 0 lets the library choose. */
void pinned_vectors(int vectors[2]);

#endif
