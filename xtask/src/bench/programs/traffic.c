#include "traffic.h"
#include "clock.h"
#include <stdio.h>
#include <string.h>

static const struct pattern patterns[] = {
	{ .name = "ping-pong", .bytes = 64, .window = 1 },
	{ .name = "send-64", .bytes = 64, .window = 32 },
	{ .name = "send-64K", .bytes = 1 << 16, .window = 32 },
	{ .name = "write-64K", .bytes = 1 << 16, .window = 32, .write = true },
};

const struct pattern *find_pattern(const char *name)
{
	for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
		if (!strcmp(patterns[i].name, name))
			return &patterns[i];
	return NULL;
}

/* Takes what has completed; a driver that may sleep does so while there is nothing. */
static unsigned wait_some(struct driver *driver, uint64_t *sent, uint64_t *received)
{
	unsigned got = take_counting(driver->cq, sent, received);

	if (!got && driver->asleep) {
		wait_event(driver->channel);
		got = take_counting(driver->cq, sent, received);
	}
	return got;
}

static void count_rounds(struct driver *driver, unsigned long rounds)
{
	const unsigned long before = atomic_load_explicit(&driver->rounds, memory_order_relaxed);

	atomic_store_explicit(&driver->rounds, before + rounds, memory_order_relaxed);
}

static void ping_pong(struct driver *driver)
{
	struct end *ends[] = { &driver->pair.a, &driver->pair.b };

	for (int i = 0; i < 2; i++) {
		uint64_t sent = 0, received = 0;

		post_recv(ends[!i], driver->pattern->bytes);
		post_send(ends[i], driver->pattern->bytes);
		while (!sent || !received)
			wait_some(driver, &sent, &received);
	}
	count_rounds(driver, 1);
}

/* Keeps the window full until it is stopped. */
static void stream(struct driver *driver)
{
	const struct pattern *pattern = driver->pattern;
	struct pair *pair = &driver->pair;

	for (unsigned i = 0; !pattern->write && i < 2 * pattern->window; i++)
		post_recv(&pair->b, pattern->bytes);
	for (unsigned i = 0; i < pattern->window; i++)
		if (pattern->write)
			post_write(&pair->a, pattern->bytes, pair->b_region, 0);
		else
			post_send(&pair->a, pattern->bytes);
	while (!atomic_load_explicit(&driver->stop, memory_order_relaxed)) {
		uint64_t sent = 0, received = 0;

		wait_some(driver, &sent, &received);
		for (uint64_t i = 0; i < received; i++)
			post_recv(&pair->b, pattern->bytes);
		for (uint64_t i = 0; i < sent; i++)
			if (pattern->write)
				post_write(&pair->a, pattern->bytes, pair->b_region, 0);
			else
				post_send(&pair->a, pattern->bytes);
		count_rounds(driver, pattern->write ? sent : received);
	}
}

static void compute(struct driver *driver)
{
	volatile uint64_t state = 1;

	while (!atomic_load_explicit(&driver->stop, memory_order_relaxed))
		for (int i = 0; i < 1000; i++)
			state = state * 6364136223846793005u + 1442695040888963407u;
}

static struct queues own_queue(struct ibv_context *verbs, void *argument)
{
	struct driver *driver = argument;

	if (driver->asleep && !driver->channel && !(driver->channel = ibv_create_comp_channel(verbs)))
		fail("ibv_create_comp_channel");
	if (!driver->cq)
		driver->cq = make_queue(verbs, 1024, driver->channel, driver->vector);
	return (struct queues){ driver->cq, driver->cq };
}

static void *drive(void *argument)
{
	struct driver *driver = argument;
	struct setup setup = { .window = 4 * driver->pattern->window, .memory = driver->pattern->bytes };

	pair_connect(&driver->pair, &setup, own_queue, driver);
	atomic_store(&driver->ready, true);
	if (driver->arithmetic)
		compute(driver);
	else if (driver->pattern->window > 1)
		stream(driver);
	else
		while (!atomic_load_explicit(&driver->stop, memory_order_relaxed))
			ping_pong(driver);
	return NULL;
}

void start_driver(struct driver *driver)
{
	if (pthread_create(&driver->thread, NULL, drive, driver))
		fail("pthread_create");
	while (!atomic_load(&driver->ready))
		sleep_for(0.001);
}

void stop_driver(struct driver *driver)
{
	atomic_store(&driver->stop, true);
	pthread_join(driver->thread, NULL);
}

void pinned_vectors(int vectors[2])
{
	struct ibv_context **contexts = rdma_get_devices(NULL);
	int count;

	if (!contexts || !contexts[0])
		fail("rdma_get_devices");
	count = contexts[0]->num_comp_vectors;
	rdma_free_devices(contexts);
	vectors[0] = count > 1 ? 1 : 0;
	vectors[1] = count > 2 ? 2 : 0;
}
