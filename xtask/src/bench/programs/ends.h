/* Ends of connections over loopback, time and second processes. Every failure ends the program with a message. */
#ifndef UIW_BENCH_ENDS_H
#define UIW_BENCH_ENDS_H

#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Completion queues of an end; they may be the same. */
struct queues {
	struct ibv_cq *send, *recv;
};

/* A region of the peer, as a Write names it. */
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

/* Both ends of one connection in this process. */
struct pair {
	struct rdma_event_channel *events;
	struct end a, b;
	/* Where Writes of `a` go. */
	struct remote b_region;
};

void fail(const char *what);
int checked(int result, const char *what);

/* 127.0.0.1 and a port in host byte order. */
struct sockaddr_in loopback(uint16_t port);
struct rdma_event_channel *new_events(void);

/* Listens on 127.0.0.1, at a port that the system chooses, in host byte order. */
struct rdma_cm_id *listen_on_loopback(struct rdma_event_channel *events, uint16_t *port);
/* Returns an id whose route to 127.0.0.1 and `port` is resolved. */
struct rdma_cm_id *resolve(struct rdma_event_channel *events, uint16_t port);
/* Returns the id of the next event, which must be of this type. `peer`: NULL, or receives the private data. */
struct rdma_cm_id *expect(struct rdma_event_channel *events, enum rdma_cm_event_type type, struct remote *peer);

/* Makes a completion queue, armed on `channel` unless that is NULL. */
struct ibv_cq *make_queue(struct ibv_context *verbs, unsigned entries, struct ibv_comp_channel *channel, int vector);
/* Makes the queue pair and the region of an end. */
void end_create(struct end *end, struct rdma_cm_id *id, struct queues cqs, const struct setup *setup);
/* Connect and accept without waiting for ESTABLISHED; private data names the region of the end. */
void end_connect(struct end *end);
void end_accept(struct end *end);
/* Connects two ends in this process. `queues` makes the completion queues of each end. */
void pair_connect(struct pair *pair, const struct setup *setup,
		  struct queues (*queues)(struct ibv_context *verbs, void *argument), void *argument);

/* Posts `count` signaled Sends of the first bytes of the region as one chain, at most 64; inline if the queue pair allows it. */
void post_send_chain(struct end *end, unsigned bytes, unsigned count);
void post_send(struct end *end, unsigned bytes);
/* Posts a signaled Write to the beginning of the region of the peer. */
void post_write(struct end *end, unsigned bytes, struct remote to, uint64_t wr_id);
/* Posts a receive for the first bytes of the region. */
void post_recv(struct end *end, unsigned bytes);

/* Most completions that are taken at a time. */
#define BATCH 16
/* Takes completions, each of which must be a success, and returns how many. */
unsigned take(struct ibv_cq *cq, struct ibv_wc wcs[BATCH]);
/* Takes completions, and counts those of receives and all others. */
unsigned take_counting(struct ibv_cq *cq, uint64_t *sent, uint64_t *received);
/* Takes an event of the channel, acknowledges it and arms its queue. False if a nonblocking channel has none. */
bool take_event(struct ibv_comp_channel *channel);

/* Seconds of the monotonic clock. */
double now(void);
void sleep_for(double seconds);
/* Keeps a duration in seconds; prints `"p50_us": .., "p99_us": ..` of those kept, and returns how many. */
void add_sample(double seconds);
size_t print_percentiles(void);

/* Runs `what` in a process that ends with this one at the latest. */
void start_process(void (*what)(int fd), int fd);
/* Like `start_process`, but returns the port that the server passes to `tell_port`. */
uint16_t start_server(void (*server)(int fd));
void tell_port(int fd, uint16_t port);

#endif
