/* Functions for ends of connections over loopback, for time and for second processes. A failure ends the program with a message. */
#ifndef UIW_BENCH_ENDS_H
#define UIW_BENCH_ENDS_H

#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Properties of a queue pair. */
struct setup {
	/* Number of requests in progress. The send queue and the receive queue have room for twice as many. */
	unsigned window;
	/* Length of the registered region in bytes. */
	size_t memory;
	/* Maximum length in bytes of requests that are posted inline. */
	unsigned inline_bytes;
	/* True if receives are posted to a shared receive queue. */
	bool srq;
};

/* Completion queues of an end, which may be the same one. */
struct queues {
	struct ibv_cq *send, *recv;
};

/* Region of the peer, to which Writes and Reads refer. */
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
	/* Destination of the Writes of `a`. */
	struct remote b_region;
};

void fail(const char *what);
int checked(int result, const char *what);

/* Returns the address 127.0.0.1 with a port in host byte order. */
struct sockaddr_in loopback(uint16_t port);
struct rdma_event_channel *new_events(void);

/* Listens on 127.0.0.1. The system chooses the port, which is in host byte order. */
struct rdma_cm_id *listen_on_loopback(struct rdma_event_channel *events, uint16_t *port);
/* Returns an id whose route to 127.0.0.1 and `port` is resolved. */
struct rdma_cm_id *resolve(struct rdma_event_channel *events, uint16_t port);
/* Returns the id of the next event, which must be of this type. `peer`: NULL, or receives the private data. */
struct rdma_cm_id *expect(struct rdma_event_channel *events, enum rdma_cm_event_type type, struct remote *peer);

/* Creates a completion queue, which is armed on `channel` unless that is NULL. */
struct ibv_cq *make_queue(struct ibv_context *verbs, unsigned entries, struct ibv_comp_channel *channel, int vector);
/* Creates the queue pair and the region of an end. */
void end_create(struct end *end, struct rdma_cm_id *id, struct queues cqs, const struct setup *setup);
/* Connect and accept without waiting for ESTABLISHED. The private data contains the region of the end. */
void end_connect(struct end *end);
void end_accept(struct end *end);
/* Connects two ends in this process. `queues` creates the completion queues of each end. */
void pair_connect(struct pair *pair, const struct setup *setup,
		  struct queues (*queues)(struct ibv_context *verbs, void *argument), void *argument);

/* Posts `count` signaled Sends of the first bytes of the region as one chain, at most 64; inline if the queue pair allows it. */
void post_send_chain(struct end *end, unsigned bytes, unsigned count);
void post_send(struct end *end, unsigned bytes);
/* Posts a signaled Write to the beginning of the region of the peer. */
void post_write(struct end *end, unsigned bytes, struct remote to, uint64_t wr_id);
/* Posts a signaled Read of the beginning of the region of the peer. */
void post_read(struct end *end, unsigned bytes, struct remote from);
/* Posts a receive for the first bytes of the region. */
void post_recv(struct end *end, unsigned bytes);

/* Maximum number of completions that are taken at once. */
#define BATCH 16
/* Takes completions, all of which must be successful, and returns their number. */
unsigned take(struct ibv_cq *cq, struct ibv_wc wcs[BATCH]);
/* Takes completions, and counts those of receives and all others separately. */
unsigned take_counting(struct ibv_cq *cq, uint64_t *sent, uint64_t *received);
/* Takes an event of the channel, acknowledges it and arms its queue. Returns false if a nonblocking channel has no event. */
bool take_event(struct ibv_comp_channel *channel);

/* Returns the seconds of the monotonic clock. */
double now(void);
void sleep_for(double seconds);
/* Record a duration in seconds; print `"p50_us": .., "p99_us": ..` of the recorded durations and return their number. */
void add_sample(double seconds);
size_t print_percentiles(void);

/* Runs `what` in a process that does not outlive this one. */
void start_process(void (*what)(int fd), int fd);
/* Like `start_process`, but returns the port that the server passes to `tell_port`. */
uint16_t start_server(void (*server)(int fd));
void tell_port(int fd, uint16_t port);

#endif
