/*
 * rounds CASE N: both ends of one connection in one thread, N rounds of one kind through the C libraries.
 *
 * CASE is one of `kinds` below, optionally followed by `-ping-pong` or `-chain`. The rounds are those of the example `rounds` of uiw-verbs: the
 * difference of two runs with different N is the cost of a round (`cargo xtask bench instructions`).
 */
#include "ends.h"

/* Number of requests in a round, and in a chain. */
#define WINDOW 128
#define CHAIN 16
#define BYTES 64

static const struct kind {
	const char *name;
	bool is_inline, srq;
	/* True if completions wait for the peer's acknowledgement, as with the personas roce and ib. */
	bool acknowledged;
	/* True for Writes instead of Sends, which are neither ping-pongs nor chains. */
	bool writes;
} kinds[] = {
	{ .name = "c-send-64" },
	{ .name = "c-send-64-inline", .is_inline = true },
	{ .name = "c-send-64-srq", .srq = true },
	{ .name = "c-ack-send-64", .acknowledged = true },
	{ .name = "c-ack-write-64", .acknowledged = true, .writes = true },
};

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

static void stream(struct pair *pair, const struct kind *kind, unsigned chain)
{
	const unsigned expected = kind->writes ? 0 : WINDOW;

	sent = received = 0;
	for (unsigned i = 0; i < expected; i++)
		post_recv(&pair->b, BYTES);
	for (unsigned i = 0; i < WINDOW / chain; i++)
		if (kind->writes)
			post_write(&pair->a, BYTES, pair->b_region, i);
		else
			post_send_chain(&pair->a, BYTES, chain);
	while (sent < WINDOW || received < expected) {
		take_counting(pair->a.cqs.send, &sent, &received);
		/* The other end has to do its part of Writes, which is in another process if a program has only one end. */
		take_counting(pair->b.cqs.recv, &sent, &received);
	}
}

static struct queues own_queues(struct ibv_context *verbs, void *unused)
{
	(void)unused;
	return (struct queues){ make_queue(verbs, 1024, NULL, 0), make_queue(verbs, 1024, NULL, 0) };
}

int main(int argc, char **argv)
{
	unsigned long count = argc == 3 ? strtoul(argv[2], NULL, 10) : 0;

	for (size_t k = 0; count && k < sizeof kinds / sizeof *kinds; k++) {
		const struct kind *kind = &kinds[k];
		const size_t length = strlen(kind->name);
		const char *suffix = strncmp(argv[1], kind->name, length) ? "-" : argv[1] + length;
		const bool is_ping_pong = !strcmp(suffix, "-ping-pong"), is_chain = !strcmp(suffix, "-chain");
		struct setup setup = { WINDOW, 4096, kind->is_inline ? BYTES : 0, kind->srq };
		struct pair pair;

		if ((*suffix && !is_ping_pong && !is_chain) || (*suffix && kind->writes))
			continue;
		if (kind->acknowledged)
			setenv("UIW_ACK", "on", 1);
		pair_connect(&pair, &setup, own_queues, NULL);
		while (count--)
			if (is_ping_pong)
				ping_pong(&pair);
			else
				stream(&pair, kind, is_chain ? CHAIN : 1);
		return EXIT_SUCCESS;
	}
	fprintf(stderr, "usage: rounds CASE N\n");
	return 2;
}
