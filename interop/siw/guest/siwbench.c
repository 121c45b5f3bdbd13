/* siwbench: measures throughput and latency on libibverbs and librdmacm with one connection;
 * both ends poll. It runs on any device of iw_cm.
 *
 * 	siwbench serve ADDR PORT
 * 	siwbench run ADDR PORT write|read|send SIZE DEPTH bw|lat SECONDS
 *
 * It measures in the same way as `uiw perf`: requests are posted one by one with DEPTH
 * outstanding, and one request in a quarter of DEPTH (at most 16) asks for a completion. Writes
 * and Sends use a single place in memory, Reads use adjacent places. The time ends when the peer
 * has every byte, which the response to a Read after the last request shows. A round trip is
 * measured from the post to the answer. Up to 64 bytes are sent inline.
 *
 * The number of Sends never exceeds the number of receives posted: the server writes the number
 * of receives it has posted so far into the client's memory. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <rdma/rdma_cma.h>

#define MAX_SIZE (8u << 20)
#define MAX_DEPTH 512
#define INLINE 64
#define MAX_ROUNDS (1 << 20)
/* Seconds after which a peer counts as lost. */
#define PATIENCE 20

enum op { WRITE, READ, SEND };
static const char *OPS[] = { "write", "read", "send" };

/* Private data of both ends: the requested measurement and the memory of the sender. */
struct greeting {
	uint32_t op, size, depth, latency;
	uint64_t addr;
	uint32_t rkey, zero;
} __attribute__((packed));

struct end {
	struct rdma_event_channel *events;
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	/* data: memory that the peer writes to, reads from and sends to; then a line in which the peer
	 * counts its receives, a line from which this end writes its own count, and the memory that
	 * this end writes, sends or reads into. */
	uint8_t *data;
	size_t slots;
	struct greeting want, peer;
	unsigned signal_every;
	uint64_t posted, done, received, reposted, told;
	unsigned words, words_done;
	/* Used by the server: a flushed request means that the client has disconnected. */
	int serves, over;
};

static void fail(const char *what, const char *why)
{
	fprintf(stderr, "siwbench: %s: %s\n", what, why);
	printf("error: %s: %s\n", what, why);
	exit(1);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static size_t area(const struct end *e)
{
	return ((size_t)e->want.size * e->slots + 63) & ~(size_t)63;
}

static uint8_t *own(struct end *e)
{
	return e->data + area(e) + 128;
}

static unsigned receives(const struct end *e)
{
	return 4 * e->want.depth;
}

/* Returns the number of Sends for which the peer has posted receives. */
static uint64_t credit(struct end *e)
{
	uint64_t told = be64toh(*(volatile uint64_t *)(void *)(e->data + area(e)));

	return told ? told : receives(e);
}

static void setup(struct end *e)
{
	unsigned depth = e->want.depth;
	struct ibv_qp_init_attr attr = { .cap = { depth + 32, 4 * depth + 32, 1, 1, INLINE }, .qp_type = IBV_QPT_RC };

	/* Reads use separate places; the receives of a peer may overlap. */
	e->slots = e->want.op == READ ? depth : 1;
	e->signal_every = depth / 4 < 1 ? 1 : depth / 4 > 16 ? 16 : depth / 4;
	e->pd = ibv_alloc_pd(e->id->verbs);
	e->cq = ibv_create_cq(e->id->verbs, (int)(6 * depth + 128), NULL, NULL, 0);
	attr.send_cq = attr.recv_cq = e->cq;
	if (!e->pd || !e->cq || rdma_create_qp(e->id, e->pd, &attr))
		fail("queue pair", strerror(errno));
	if (posix_memalign((void **)&e->data, 4096, 2 * area(e) + 128))
		fail("memory", "none");
	memset(e->data, 0, 2 * area(e) + 128);
	e->mr = ibv_reg_mr(e->pd, e->data, 2 * area(e) + 128,
			   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
	if (!e->mr)
		fail("ibv_reg_mr", strerror(errno));
}

static struct greeting greeting(const struct end *e)
{
	struct greeting h = { htobe32(e->want.op), htobe32(e->want.size), htobe32(e->want.depth), htobe32(e->want.latency),
		htobe64((uintptr_t)e->data), htobe32(e->mr->rkey), 0 };

	return h;
}

static struct greeting heard(const void *data, unsigned len)
{
	struct greeting h;

	if (len < sizeof(h) || !data)
		fail("private data", "too short");
	memcpy(&h, data, sizeof(h));
	h = (struct greeting){ be32toh(h.op), be32toh(h.size), be32toh(h.depth), be32toh(h.latency), be64toh(h.addr),
		be32toh(h.rkey), 0 };
	if (h.op > SEND || !h.size || h.size > MAX_SIZE || !h.depth || h.depth > MAX_DEPTH)
		fail("private data", "beyond the limits");
	return h;
}

static void receive(struct end *e)
{
	struct ibv_sge sge = { (uintptr_t)e->data, e->want.size, e->mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	if (ibv_post_recv(e->id->qp, &wr, &bad))
		fail("ibv_post_recv", strerror(errno));
	e->reposted++;
}

/* Posts a request. The number of a message is the count of messages that its completion
 * confirms; the number of a word is 0. */
static void request(struct end *e, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	int rc = ibv_post_send(e->id->qp, wr, &bad);

	if (rc)
		fail("ibv_post_send", strerror(rc < 0 ? -rc : rc));
}

static void message(struct end *e, int signaled)
{
	static const enum ibv_wr_opcode codes[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND };
	size_t at = (e->posted % e->slots) * (size_t)e->want.size;
	struct ibv_sge sge = { (uintptr_t)own(e) + at, e->want.size, e->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = ++e->posted, .sg_list = &sge, .num_sge = 1, .opcode = codes[e->want.op] };

	wr.wr.rdma.remote_addr = e->peer.addr + at;
	wr.wr.rdma.rkey = e->peer.rkey;
	if (signaled)
		wr.send_flags |= IBV_SEND_SIGNALED;
	if (e->want.op != READ && e->want.size <= INLINE)
		wr.send_flags |= IBV_SEND_INLINE;
	request(e, &wr);
}

/* Transfers a word after the peer's messages: writes the count of posted receives, or reads to
 * find out whether all data has arrived. */
static void word(struct end *e, enum ibv_wr_opcode opcode)
{
	uint64_t *line = (void *)(e->data + area(e) + 64);
	struct ibv_sge sge = { (uintptr_t)line, 8, e->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED };

	if (opcode == IBV_WR_RDMA_WRITE) {
		*line = htobe64(e->told = e->reposted);
		wr.send_flags |= IBV_SEND_INLINE;
	}
	wr.wr.rdma.remote_addr = e->peer.addr + area(e);
	wr.wr.rdma.rkey = e->peer.rkey;
	e->words++;
	request(e, &wr);
}

/* Takes completions and returns their number. */
static int take(struct end *e)
{
	struct ibv_wc wc[16];
	int n = ibv_poll_cq(e->cq, 16, wc);

	for (int i = 0; i < n; i++) {
		e->over |= e->serves && wc[i].status == IBV_WC_WR_FLUSH_ERR;
		if (e->over)
			return n;
		if (wc[i].status)
			fail("completion", ibv_wc_status_str(wc[i].status));
		if (wc[i].opcode & IBV_WC_RECV)
			e->received++;
		else if (wc[i].wr_id)
			e->done = wc[i].wr_id;
		else
			e->words_done++;
	}
	return n;
}

#define UNTIL(e, condition) do { \
	double until_ = now() + PATIENCE; \
	for (unsigned n_ = 0; !(condition); n_++) { \
		take(e); \
		if (!(n_ & 1023) && now() > until_) \
			fail("nothing for 20 s, waiting for", #condition); \
	} } while (0)

static int by_size(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

/* Performs round trips for the given time. */
static void ping_pong(struct end *e, double seconds)
{
	float *took = malloc(sizeof(*took) * MAX_ROUNDS);
	volatile uint8_t *in = e->data + e->want.size - 1;
	double begun = now(), from = begun, sum = 0;
	size_t rounds = 0;

	while (took && rounds < MAX_ROUNDS && from - begun < seconds) {
		uint8_t mark = (uint8_t)(rounds + 1);
		if (e->want.op == SEND)
			receive(e);
		else if (e->want.op == WRITE)
			own(e)[e->want.size - 1] = mark;
		message(e, 1);
		if (e->want.op == SEND)
			UNTIL(e, e->received == rounds + 1);
		else if (e->want.op == WRITE)
			UNTIL(e, *in == mark);
		UNTIL(e, e->done == e->posted);
		double then = now();
		took[rounds++] = (float)((then - from) * 1e6);
		sum += then - from;
		from = then;
	}
	if (!took || !rounds)
		fail("ping-pong", "no round");
	qsort(took, rounds, sizeof(*took), by_size);
	printf("{\"rounds\": %zu, \"p50_us\": %.2f, \"avg_us\": %.2f, \"p99_us\": %.2f}\n", rounds, took[rounds / 2],
	       sum * 1e6 / (double)rounds, took[rounds * 99 / 100]);
	free(took);
}

/* Transfers messages for the given time. */
static void stream(struct end *e, double seconds)
{
	double begun = now();

	while (now() - begun < seconds) {
		while (e->posted - e->done < e->want.depth) {
			if (e->want.op == SEND && e->posted >= credit(e))
				break;
			message(e, (e->posted + 1) % e->signal_every == 0);
		}
		take(e);
	}
	word(e, IBV_WR_RDMA_READ);
	UNTIL(e, e->words_done == e->words);
	seconds = now() - begun;
	printf("{\"messages\": %llu, \"seconds\": %.6f}\n", (unsigned long long)e->posted, seconds);
}

static void await(struct end *e, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;

	if (rdma_get_cm_event(e->events, &event))
		fail("event", strerror(errno));
	if (event->event != type)
		fail("event", rdma_event_str(event->event));
	if (type == RDMA_CM_EVENT_ESTABLISHED && event->param.conn.private_data_len)
		e->peer = heard(event->param.conn.private_data, event->param.conn.private_data_len);
	rdma_ack_cm_event(event);
}

static void run(struct sockaddr *address, const struct greeting *want, double seconds)
{
	struct end e = { .want = *want };

	e.events = rdma_create_event_channel();
	if (!e.events || rdma_create_id(e.events, &e.id, NULL, RDMA_PS_TCP) || rdma_resolve_addr(e.id, NULL, address, 3000))
		fail("address", strerror(errno));
	await(&e, RDMA_CM_EVENT_ADDR_RESOLVED);
	if (rdma_resolve_route(e.id, 3000))
		fail("route", strerror(errno));
	await(&e, RDMA_CM_EVENT_ROUTE_RESOLVED);
	setup(&e);
	struct greeting h = greeting(&e);
	struct rdma_conn_param p = { .private_data = &h, .private_data_len = sizeof(h), .responder_resources = 128,
		.initiator_depth = 128 };
	if (rdma_connect(e.id, &p))
		fail("connect", strerror(errno));
	await(&e, RDMA_CM_EVENT_ESTABLISHED);
	/* siw's responder can miss an FPDU that arrives directly after its reply. */
	usleep(100000);
	if (e.want.latency)
		ping_pong(&e, seconds);
	else
		stream(&e, seconds);
	rdma_disconnect(e.id);
}

static int is_over(struct end *e)
{
	struct pollfd p = { e->events->fd, POLLIN, 0 };

	return poll(&p, 1, 0) > 0;
}

/* Serves the client until it disconnects. For Reads and streams of Writes nothing is done, so
 * that the driver gets the processor time. */
static void answer(struct end *e)
{
	volatile uint8_t *in = e->data + e->want.size - 1;
	uint8_t seen = 0;
	unsigned empty = 0;

	while (e->want.op == SEND || (e->want.op == WRITE && e->want.latency)) {
		int n = take(e);
		if (e->over)
			return;
		if (e->want.op == WRITE && *in != seen && e->done == e->posted) {
			seen = own(e)[e->want.size - 1] = *in;
			message(e, 1);
			n = 1;
		}
		while (e->want.op == SEND && e->reposted - e->received < receives(e)) {
			receive(e);
			if (e->want.latency)
				message(e, 1);
		}
		if (!e->want.latency && e->reposted - e->told >= receives(e) / 4 && e->words - e->words_done < 16)
			word(e, IBV_WR_RDMA_WRITE);
		if (n)
			empty = 0;
		else if (++empty % 4096 == 0 && is_over(e))
			return;
	}
}

static void serve(struct sockaddr *address)
{
	struct rdma_event_channel *events = rdma_create_event_channel();
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	if (!events || rdma_create_id(events, &id, NULL, RDMA_PS_TCP) || rdma_bind_addr(id, address) || rdma_listen(id, 1))
		fail("listen", strerror(errno));
	if (rdma_get_cm_event(events, &event) || event->event != RDMA_CM_EVENT_CONNECT_REQUEST)
		fail("event", "not a connection");
	struct end e = { .events = events, .id = event->id, .serves = 1 };
	e.want = e.peer = heard(event->param.conn.private_data, event->param.conn.private_data_len);
	rdma_ack_cm_event(event);
	setup(&e);
	if (e.want.op == SEND)
		while (e.reposted < receives(&e))
			receive(&e);
	e.told = e.reposted;
	struct greeting h = greeting(&e);
	struct rdma_conn_param p = { .private_data = &h, .private_data_len = sizeof(h), .responder_resources = 128,
		.initiator_depth = 128 };
	if (rdma_accept(e.id, &p))
		fail("accept", strerror(errno));
	await(&e, RDMA_CM_EVENT_ESTABLISHED);
	answer(&e);
	await(&e, RDMA_CM_EVENT_DISCONNECTED);
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	struct greeting want = { 0 };

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc != 4 && argc != 9) {
		printf("usage: siwbench serve ADDR PORT | run ADDR PORT write|read|send SIZE DEPTH bw|lat SECONDS\n");
		return 2;
	}
	if (inet_pton(AF_INET, argv[2], &address.sin_addr) != 1)
		fail("no address", argv[2]);
	address.sin_port = htons((uint16_t)atoi(argv[3]));
	if (argc == 4) {
		serve((struct sockaddr *)&address);
		return 0;
	}
	want.op = SEND + 1;
	for (unsigned op = 0; op <= SEND; op++)
		if (!strcmp(OPS[op], argv[4]))
			want.op = op;
	want.size = (uint32_t)atoi(argv[5]);
	want.depth = (uint32_t)atoi(argv[6]);
	want.latency = !strcmp(argv[7], "lat");
	if (want.op > SEND || !want.size || want.size > MAX_SIZE || !want.depth || want.depth > MAX_DEPTH)
		fail("beyond the limits", argv[4]);
	run((struct sockaddr *)&address, &want, atof(argv[8]));
	return 0;
}
