/*
 * rounds CASE N: both ends of one connection in one thread, N rounds of one kind through the C libraries.
 *
 * The same rounds as the example `rounds` of uiw-verbs: the difference of two runs with different N is the cost of a round
 * (`cargo xtask bench instructions`). The engine has a thread of its own here; only this one is counted.
 */
#include "ends.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Requests of a stream's round. */
#define WINDOW 128
#define CHAIN 16
#define BYTES 64

struct kind {
	const char *name;
	bool is_inline, srq;
	/* Completions are acknowledged, as in personas roce and ib. */
	bool acknowledged;
	/* Writes instead of Sends; there is no ping-pong of them. */
	bool writes;
};

static const struct kind kinds[] = {
	{ .name = "c-send-64" },
	{ .name = "c-send-64-inline", .is_inline = true },
	{ .name = "c-send-64-srq", .srq = true },
	{ .name = "c-ack-send-64", .acknowledged = true },
	{ .name = "c-ack-write-64", .acknowledged = true, .writes = true },
};

static const struct kind *kind;

static uint64_t sent, received;

static void ping_pong(struct pair *pair)
{
	struct end *ends[] = { &pair->a, &pair->b };

	for (int i = 0; i < 2; i++) {
		struct end *from = ends[i], *to = ends[!i];

		post_recv(to, BYTES);
		post_send(from, BYTES);
		while (!take_counting(to->cqs.recv, &sent, &received))
			;
		while (!take_counting(from->cqs.send, &sent, &received))
			;
	}
}

static void stream(struct pair *pair, unsigned chain)
{
	sent = received = 0;
	if (kind->writes) {
		for (unsigned i = 0; i < WINDOW; i++)
			post_write(&pair->a, BYTES, pair->b_region, i);
		while (sent < WINDOW) {
			take_counting(pair->a.cqs.send, &sent, &received);
			/* The other end's part of the work, which a program with one end has elsewhere. */
			take_counting(pair->b.cqs.recv, &sent, &received);
		}
		return;
	}
	for (unsigned i = 0; i < WINDOW; i++)
		post_recv(&pair->b, BYTES);
	for (unsigned i = 0; i < WINDOW / chain; i++)
		post_send_chain(&pair->a, BYTES, chain);
	while (sent < WINDOW || received < WINDOW) {
		take_counting(pair->a.cqs.send, &sent, &received);
		take_counting(pair->b.cqs.recv, &sent, &received);
	}
}

static void one_by_one(struct pair *pair)
{
	stream(pair, 1);
}

static void chains(struct pair *pair)
{
	stream(pair, CHAIN);
}

static const struct {
	const char *suffix;
	void (*round)(struct pair *pair);
} rounds[] = { { "-ping-pong", ping_pong }, { "", one_by_one }, { "-chain", chains } };

static struct queues own_queues(struct ibv_context *verbs, void *unused)
{
	(void)unused;
	return (struct queues){ make_queue(verbs, 1024, NULL, 0), make_queue(verbs, 1024, NULL, 0) };
}

int main(int argc, char **argv)
{
	unsigned long count = argc == 3 ? strtoul(argv[2], NULL, 10) : 0;

	for (size_t k = 0; count && k < sizeof kinds / sizeof *kinds; k++)
		for (size_t r = 0; r < sizeof rounds / sizeof *rounds; r++) {
			struct setup setup = { WINDOW, 4096, kinds[k].is_inline ? BYTES : 0, kinds[k].srq };
			struct pair pair;
			char name[64];

			kind = &kinds[k];
			if (kind->writes && *rounds[r].suffix)
				continue;
			snprintf(name, sizeof name, "%s%s", kind->name, rounds[r].suffix);
			if (strcmp(name, argv[1]))
				continue;
			if (kind->acknowledged)
				setenv("UIW_ACK", "on", 1);
			pair_connect(&pair, &setup, own_queues, NULL);
			while (count--)
				rounds[r].round(&pair);
			return EXIT_SUCCESS;
		}
	fprintf(stderr, "usage: rounds CASE N, where CASE is one of:\n");
	for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
		for (size_t r = 0; r < sizeof rounds / sizeof *rounds; r++)
			fprintf(stderr, "  %s%s\n", kinds[k].name, rounds[r].suffix);
	return 2;
}
