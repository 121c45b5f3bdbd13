/* Ends of connections over loopback, as the benchmarks' C programs use them. Every failure ends the program with a message. */
#ifndef UIW_BENCH_ENDS_H
#define UIW_BENCH_ENDS_H

#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a queue pair is made with. */
struct setup {
	/* Requests under way; the send queue and the receive queue hold twice as many. */
	unsigned window;
	/* Bytes of the registered region. */
	size_t memory;
	/* Requests of up to so many bytes are posted inline. */
	unsigned inline_bytes;
	/* Receives are posted to a shared receive queue. */
	bool srq;
};

/* Where completions of an end go. They may be the same queue. */
struct queues {
	struct ibv_cq *send, *recv;
};

/* A peer's region, as a Write names it. */
struct remote {
	uint64_t addr;
	uint32_t rkey;
};

struct end {
	struct rdma_cm_id *id;
	struct queues cqs;
	struct ibv_srq *srq;
	struct ibv_mr *mr;
	unsigned inline_bytes;
};

/* Two ends of one connection in this process. */
struct pair {
	struct rdma_event_channel *events;
	struct end a, b;
	/* Where Writes of `a` go. */
	struct remote b_region;
};

void fail(const char *what);

/* An id that listens on 127.0.0.1. `port`: which the system chose, in host byte order. */
struct rdma_cm_id *listen_on_loopback(struct rdma_event_channel *events, uint16_t *port);

/* An id whose route to 127.0.0.1 and `port` is resolved. */
struct rdma_cm_id *resolve(struct rdma_event_channel *events, uint16_t port);

/* The id of the next event, which is of this type. `peer`: NULL, or receives the peer's private data. */
struct rdma_cm_id *expect(struct rdma_event_channel *events, enum rdma_cm_event_type type, struct remote *peer);

/* A completion queue for `entries`, announced on `channel` unless that is NULL. */
struct ibv_cq *make_queue(struct ibv_context *verbs, unsigned entries, struct ibv_comp_channel *channel, int vector);

/* Makes the queue pair and the region of an end. */
void end_create(struct end *end, struct rdma_cm_id *id, struct queues cqs, const struct setup *setup);

/* Connects and accepts; private data names the end's region. Neither waits for ESTABLISHED. */
void end_connect(struct end *end);
void end_accept(struct end *end);

/* Connects two ends in this process. `queues` makes the completion queues of each end. */
void pair_connect(struct pair *pair, const struct setup *setup,
		  struct queues (*queues)(struct ibv_context *verbs, void *argument), void *argument);

/* Posts a signaled Send of the region's first bytes. */
void post_send(struct end *end, unsigned bytes);

/* Posts a chain of `count` signaled Sends, at most 64; inline if the queue pair was made for so many inline bytes. */
void post_send_chain(struct end *end, unsigned bytes, unsigned count);

/* Posts a signaled Write to the beginning of the peer's region. */
void post_write(struct end *end, unsigned bytes, struct remote to, uint64_t wr_id);

/* Posts a receive for the region's first bytes. */
void post_recv(struct end *end, unsigned bytes);

/* Most completions that are taken at a time. */
#define BATCH 16

/* Takes completions, each of which is a success, and returns how many. */
unsigned take(struct ibv_cq *cq, struct ibv_wc wcs[BATCH]);

/* Takes completions, and counts those of receives and all others. */
unsigned take_counting(struct ibv_cq *cq, uint64_t *sent, uint64_t *received);

/* Waits for an event of the channel, acknowledges it and arms its queue. What completed before the arming has to be taken before
   the next wait. */
void wait_event(struct ibv_comp_channel *channel);

#endif
