/* siwpeer: one end of `uiw siwtest` on libibverbs and librdmacm. It runs on any RDMA device that
 * connects by iw_cm.
 *
 * 	siwpeer serve ADDR PORT [KEY=VALUE...]		runs as server
 * 	siwpeer run ADDR PORT [KEY=VALUE...] ORDER...	connects and gives the orders
 *
 * An order is OP[:SIZE[xCOUNT[xSGES]]]. "me.OP" is carried out by the end that connected,
 * "you.OP" by the other one, and OP alone by both, one after the other. Keys: ird and ord (128
 * each), pd (bytes of private data, or a text after "pd=:"), seconds (how long the orders are
 * repeated), pause (milliseconds between connecting and the first order).
 *
 * Messages between the ends are 128 bytes long and big-endian, see struct talk. After ORDER, the
 * acting end gets READY from the accepting end, unless ORDER contains everything it needs. After
 * its last operation it sends DONE; the accepting end finishes with VERDICT if the other end
 * acted. The order ABOUT is answered by a VERDICT whose text describes this machine.
 * `cli/src/siwtest` is the other implementation. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/utsname.h>
#include <rdma/rdma_cma.h>

#define MAGIC 0x73697774u
#define MAX_BYTES (256u << 20)
#define MAX_COUNT 400
#define GAP 8
#define SLOTS 4
/* Milliseconds within which something must move, and for which a single wait may last even if
 * something moves. */
#define PATIENCE 30000
#define BOUND 600000
/* Bytes on the interfaces that are not progress of a transfer: acknowledgements and probes of an
 * idle connection, broadcasts. */
#define IDLE_BYTES 4096

enum kind { ORDER = 1, READY, DONE, VERDICT };
enum op {
	SEND = 1, SEND_SE, SEND_INV, SEND_SE_INV, SEND_INLINE, WRITE, READ, FENCE,
	/* Asks for a description of the machine, which is the text of the verdict. */
	ABOUT,
	/* These orders end the connection. */
	BAD_WRITE = 32, OUT_WRITE, BAD_READ, OUT_READ, RO_WRITE, WO_READ, LONG_SEND, NO_RECV, BAD_INV, USED_INV, HANG_UP,
};

static const struct { enum op op; const char *name; } OPS[] = {
	{ SEND, "send" }, { SEND_SE, "sendse" }, { SEND_INV, "sendinv" }, { SEND_SE_INV, "sendseinv" },
	{ SEND_INLINE, "sendinline" }, { WRITE, "write" }, { READ, "read" }, { FENCE, "fence" },
	{ BAD_WRITE, "badwrite" }, { OUT_WRITE, "outwrite" }, { BAD_READ, "badread" }, { OUT_READ, "outread" },
	{ RO_WRITE, "rowrite" }, { WO_READ, "woread" }, { LONG_SEND, "longsend" }, { NO_RECV, "norecv" },
	{ BAD_INV, "badinv" }, { USED_INV, "usedinv" }, { HANG_UP, "hangup" },
};

/* Message between the two ends. */
struct talk {
	uint32_t magic;
	uint8_t kind, op, actor, zero;	/* actor: 0 = the end that connected */
	uint32_t size, count, sges, seed;
	uint64_t addr;			/* the memory of the one that speaks */
	uint32_t rkey, inv_rkey, status;
	char text[84];
} __attribute__((packed));

/* Numbers of requests. */
enum { TALK_IN = 1, TALK_OUT, TEST_IN, TEST_OUT };
#define ID(what, n) ((uint64_t)(what) << 32 | (n))

struct conn {
	struct rdma_cm_id *id;
	struct rdma_event_channel *events;
	struct ibv_comp_channel *channel;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	int initiator, broken, gone;
	/* Slots for incoming messages, followed by one for an outgoing message. */
	struct talk talk[SLOTS + 1];
	struct ibv_mr *talk_mr;
	unsigned posted_slot, next_slot, arrived, taken;
	/* Memory of the order. */
	uint8_t *data, *revocable;
	size_t len;
	struct ibv_mr *mr, *inv_mr;
	/* Progress of the order. */
	unsigned in_posted, in_done, out_posted, out_done, all_posted, all_done;
	/* Requests that siw has refused and not completed. It may have queued them nevertheless
	 * (QUIRKS.md). */
	unsigned refused;
	int talk_out;
	char wrong[160];
};

static unsigned ird = 128, ord = 128, seconds, pause_ms;
static char private_data[256];
static unsigned private_len;

static long ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000L + t.tv_nsec / 1000000;
}

__attribute__((format(printf, 2, 3))) static int wrong(struct conn *c, const char *format, ...)
{
	va_list args;

	if (!c->wrong[0]) {
		va_start(args, format);
		vsnprintf(c->wrong, sizeof(c->wrong), format, args);
		va_end(args);
	}
	return -1;
}

static const char *op_name(unsigned op)
{
	for (size_t i = 0; i < sizeof(OPS) / sizeof(*OPS); i++)
		if (OPS[i].op == op)
			return OPS[i].name;
	return "?";
}

static int is_send(unsigned op)
{
	return op <= SEND_INLINE || op == FENCE;
}

static uint8_t byte(uint32_t seed, uint32_t message, uint32_t at)
{
	return (uint8_t)(seed + message * 7 + at * 31 + (at >> 8) * 17);
}

/* Returns the distance in bytes between messages that consist of pieces. */
static size_t stride(const struct talk *o)
{
	return (size_t)o->size + GAP * (o->sges - 1);
}

static unsigned elements(struct conn *c, const struct talk *o, size_t start, struct ibv_sge *sge)
{
	uint32_t piece = o->size / o->sges;

	for (uint32_t i = 0; i < o->sges; i++) {
		uint32_t at = i * piece, len = i + 1 < o->sges ? piece : o->size - at;
		sge[i] = (struct ibv_sge){ (uintptr_t)c->data + start + at + GAP * i, len, c->mr->lkey };
	}
	return o->sges;
}

/* Fills the memory with the bytes of the order, or compares them. `gap` bytes lie between the
 * pieces of a message. */
static int pattern(struct conn *c, uint8_t *at, const struct talk *o, unsigned gap, int compare)
{
	uint32_t pieces = gap ? o->sges : 1, piece = o->size / pieces;

	for (uint32_t m = 0; m < o->count; m++)
		for (uint32_t p = 0, i = 0; p < pieces; p++, at += p < pieces ? gap : 0) {
			uint32_t end = p + 1 < pieces ? i + piece : o->size;
			for (; i < end; i++, at++) {
				uint8_t want = byte(o->seed, m, i);
				if (!compare)
					*at = want;
				else if (*at != want)
					return wrong(c, "byte %u of message %u is %#x, not %#x", i, m, *at, want);
			}
		}
	return 0;
}

/* Length of the remote memory, in which messages follow each other; the local memory in pieces
 * comes after it. */
static size_t remote_len(const struct talk *o)
{
	return ((size_t)o->size * o->count + 63) & ~(size_t)63;
}

static int memory(struct conn *c, const struct talk *o)
{
	int access = IBV_ACCESS_LOCAL_WRITE;

	if (o->op != WO_READ)
		access |= IBV_ACCESS_REMOTE_READ;
	if (o->op != RO_WRITE)
		access |= IBV_ACCESS_REMOTE_WRITE;
	if (c->mr)
		ibv_dereg_mr(c->mr);
	if (c->inv_mr)
		ibv_dereg_mr(c->inv_mr);
	c->mr = c->inv_mr = NULL;
	free(c->data);
	free(c->revocable);
	c->len = remote_len(o) + stride(o) * o->count + 4096;
	c->data = calloc(1, c->len);
	c->revocable = calloc(1, 4096);
	if (!c->data || !c->revocable)
		return wrong(c, "no memory for %zu bytes", c->len);
	c->mr = ibv_reg_mr(c->pd, c->data, c->len, access);
	c->inv_mr = ibv_reg_mr(c->pd, c->revocable, 4096, access);
	if (!c->mr || !c->inv_mr)
		return wrong(c, "ibv_reg_mr: %s", strerror(errno));
	c->in_posted = c->in_done = c->out_posted = c->out_done = 0;
	return 0;
}

static int post_in(struct conn *c, uint64_t wr_id, struct ibv_sge *sge, unsigned n)
{
	struct ibv_recv_wr wr = { wr_id, NULL, sge, (int)n }, *bad;
	int rc = ibv_post_recv(c->id->qp, &wr, &bad);

	if (rc)
		return wrong(c, "ibv_post_recv: %s", strerror(rc < 0 ? -rc : rc));
	c->all_posted++;
	return 0;
}

static int expect_talk(struct conn *c)
{
	unsigned slot = c->posted_slot++ % SLOTS;
	struct ibv_sge sge = { (uintptr_t)&c->talk[slot], sizeof(struct talk), c->talk_mr->lkey };

	return post_in(c, ID(TALK_IN, slot), &sge, 1);
}

static int expect_test(struct conn *c, const struct talk *o, uint32_t count)
{
	struct ibv_sge sge[8];

	for (uint32_t m = 0; m < count; m++) {
		unsigned n = elements(c, o, remote_len(o) + m * stride(o), sge);
		if (post_in(c, ID(TEST_IN, m), sge, n))
			return -1;
		c->in_posted++;
	}
	return 0;
}

static int post_out(struct conn *c, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	wr->send_flags |= IBV_SEND_SIGNALED;
	int rc = ibv_post_send(c->id->qp, wr, &bad);
	if (rc) {
		c->refused++;
		return wrong(c, "ibv_post_send: %s", strerror(rc < 0 ? -rc : rc));
	}
	c->all_posted++;
	return 0;
}

static void on_completion(struct conn *c, const struct ibv_wc *wc, const struct talk *o)
{
	unsigned what = (unsigned)(wc->wr_id >> 32);

	c->all_done++;
	if (c->all_done > c->all_posted && c->refused) {
		c->refused--;
		c->all_posted++;
	}
	if (wc->status) {
		if (!c->broken || wc->status != IBV_WC_WR_FLUSH_ERR)
			wrong(c, "%s: %s", what == TEST_IN || what == TALK_IN ? "receive" : "request",
			      ibv_wc_status_str(wc->status));
		c->broken = 1;
		return;
	}
	switch (what) {
	case TALK_IN:
		if (wc->byte_len != sizeof(struct talk))
			wrong(c, "a message of %u bytes out of turn", wc->byte_len);
		c->arrived++;
		break;
	case TALK_OUT:
		c->talk_out--;
		break;
	case TEST_IN:
		if (o && wc->byte_len != o->size)
			wrong(c, "message %u has %u bytes, not %u", (unsigned)wc->wr_id, wc->byte_len, o->size);
		if (wc->opcode != IBV_WC_RECV)
			wrong(c, "a receive completed as %d", wc->opcode);
		c->in_done++;
		break;
	case TEST_OUT:
		c->out_done++;
	}
}

/* Takes completions, and sleeps until the next one if there are none. */
static void step(struct conn *c, const struct talk *o, int solicited)
{
	struct ibv_wc wc[16];
	struct pollfd p[2] = { { c->channel->fd, POLLIN, 0 }, { c->gone ? -1 : c->events->fd, POLLIN, 0 } };
	struct rdma_cm_event *event;
	struct ibv_cq *cq;
	void *context;

	for (int again = 0; again < 2; again++) {
		int n = ibv_poll_cq(c->cq, 16, wc);
		for (int i = 0; i < n; i++)
			on_completion(c, &wc[i], o);
		if (n)
			return;
		if (!again)
			ibv_req_notify_cq(c->cq, solicited);
	}
	poll(p, 2, 200);
	if ((p[0].revents & POLLIN) && !ibv_get_cq_event(c->channel, &cq, &context))
		ibv_ack_cq_events(cq, 1);
	if ((p[1].revents & POLLIN) && !rdma_get_cm_event(c->events, &event)) {
		c->gone = event->event == RDMA_CM_EVENT_DISCONNECTED;
		rdma_ack_cm_event(event);
		/* Requests that had completed before count. */
		for (int n = 1; c->gone && n > 0;) {
			n = ibv_poll_cq(c->cq, 16, wc);
			for (int i = 0; i < n; i++)
				on_completion(c, &wc[i], o);
		}
		if (c->gone && !c->broken) {
			wrong(c, "disconnected");
			c->broken = 1;
		}
	}
}

/* Returns the bytes that all interfaces except loopback have received and sent, or 0 if the
 * kernel does not report them. */
static unsigned long long wire_bytes(void)
{
	FILE *f = fopen("/proc/net/dev", "r");
	unsigned long long sum = 0, in, out;
	char line[512], name[64];

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, " %63[^:]: %llu %*u %*u %*u %*u %*u %*u %*u %llu", name, &in, &out) == 3 && strcmp(name, "lo"))
			sum += in + out;
	if (f)
		fclose(f);
	return sum;
}

/* A wait that lasts as long as something moves: requests and receives, or the bytes of a long
 * request. */
struct progress {
	long bound, deadline;
	unsigned done;
	unsigned long long bytes;
};

static struct progress begin(const struct conn *c)
{
	long now = ms();

	return (struct progress){ now + BOUND, now + PATIENCE, c->all_done, wire_bytes() };
}

static int stalled(struct progress *p, const struct conn *c)
{
	long now = ms();

	if (now < p->deadline)
		return 0;
	unsigned long long bytes = wire_bytes();
	int moved = c->all_done != p->done || bytes > p->bytes + IDLE_BYTES;
	p->done = c->all_done;
	p->bytes = bytes;
	p->deadline = now + PATIENCE < p->bound ? now + PATIENCE : p->bound;
	return now >= p->bound || !moved;
}

#define UNTIL(c, o, solicited, condition) ({ \
	struct progress progress_ = begin(c); \
	while (!(condition) && !(c)->broken && !stalled(&progress_, c)) \
		step(c, o, solicited); \
	(condition) ? 0 : (c)->broken ? -1 : wrong(c, "nothing moved for 30 s, waiting for " #condition); })

static int say(struct conn *c, const struct talk *o, enum kind kind)
{
	struct talk *t = &c->talk[SLOTS];

	if (UNTIL(c, o, 0, c->talk_out == 0))
		return -1;
	*t = (struct talk){ .magic = htobe32(MAGIC), .kind = kind, .op = o->op, .actor = o->actor,
		.size = htobe32(o->size), .count = htobe32(o->count), .sges = htobe32(o->sges), .seed = htobe32(o->seed) };
	if (c->mr) {
		t->addr = htobe64((uintptr_t)c->data);
		t->rkey = htobe32(c->mr->rkey);
		t->inv_rkey = htobe32(c->inv_mr->rkey);
	}
	t->status = htobe32(c->wrong[0] != 0);
	snprintf(t->text, sizeof(t->text), "%.80s", c->wrong);
	struct ibv_sge sge = { (uintptr_t)t, sizeof(*t), c->talk_mr->lkey };
	struct ibv_send_wr wr = { .wr_id = ID(TALK_OUT, 0), .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SOLICITED };
	c->talk_out++;
	return post_out(c, &wr);
}

static int hear(struct conn *c, const struct talk *o, enum kind kind, struct talk *to)
{
	if (UNTIL(c, o, 0, c->taken < c->arrived))
		return -1;
	c->taken++;
	*to = c->talk[c->next_slot++ % SLOTS];
	to->size = be32toh(to->size);
	to->count = be32toh(to->count);
	to->sges = be32toh(to->sges);
	to->seed = be32toh(to->seed);
	to->addr = be64toh(to->addr);
	to->rkey = be32toh(to->rkey);
	to->inv_rkey = be32toh(to->inv_rkey);
	to->status = be32toh(to->status);
	to->text[sizeof(to->text) - 1] = 0;
	if (be32toh(to->magic) != MAGIC || to->kind != kind)
		return wrong(c, "message %d where %d is due", to->kind, kind);
	if (to->sges < 1 || to->sges > 6 || to->count > MAX_COUNT || (uint64_t)to->size * to->count > MAX_BYTES)
		return wrong(c, "an order beyond the limits");
	return 0;
}

/* Builds the requests of an order that ends the connection. */
static void fault(struct talk *o, const struct talk *theirs, struct ibv_send_wr *wr, struct ibv_sge *sge)
{
	wr->opcode = IBV_WR_RDMA_WRITE;
	switch (o->op) {
	case BAD_READ: case OUT_READ: case WO_READ:
		wr->opcode = IBV_WR_RDMA_READ;
		break;
	case LONG_SEND:
		wr->opcode = IBV_WR_SEND;
		sge[0].length += 1;
		break;
	case NO_RECV:
		wr->opcode = IBV_WR_SEND;
		break;
	case BAD_INV:
		wr->opcode = IBV_WR_SEND_WITH_INV;
		break;
	}
	if (o->op == BAD_WRITE || o->op == BAD_READ || o->op == BAD_INV) {
		wr->wr.rdma.rkey = 0xdeadbe00;
		wr->invalidate_rkey = 0xdeadbe00;
	}
	if (o->op == OUT_WRITE || o->op == OUT_READ)
		wr->wr.rdma.remote_addr += (512u << 20);
	if (o->op == USED_INV) {
		wr->wr.rdma.remote_addr = theirs->addr;
		wr->wr.rdma.rkey = theirs->inv_rkey;
	}
}

/* Carries out an order. `theirs` describes the peer's memory. */
static int act(struct conn *c, struct talk *o, const struct talk *theirs)
{
	struct ibv_sge sge[8];

	if (o->op == HANG_UP)
		return rdma_disconnect(c->id);
	for (uint32_t m = 0; m < o->count; m++) {
		struct ibv_send_wr wr = { .wr_id = ID(TEST_OUT, m), .sg_list = sge, .opcode = IBV_WR_SEND };
		wr.num_sge = (int)elements(c, o, remote_len(o) + m * stride(o), sge);
		wr.wr.rdma.remote_addr = theirs->addr + (uint64_t)m * o->size;
		wr.wr.rdma.rkey = theirs->rkey;
		switch (o->op) {
		case SEND:
			break;
		case SEND_SE:
			wr.send_flags = IBV_SEND_SOLICITED;
			break;
		case SEND_INLINE:
			wr.send_flags = IBV_SEND_INLINE;
			break;
		case SEND_INV: case SEND_SE_INV:
			if (m + 1 == o->count) {
				wr.opcode = IBV_WR_SEND_WITH_INV;
				/* libsiw sends rdma.rkey, other providers send invalidate_rkey. The two fields do not share
				 * memory, so both are set. */
				wr.wr.rdma.rkey = theirs->inv_rkey;
				wr.invalidate_rkey = theirs->inv_rkey;
				wr.send_flags = o->op == SEND_SE_INV ? IBV_SEND_SOLICITED : 0;
			}
			break;
		case WRITE:
			wr.opcode = IBV_WR_RDMA_WRITE;
			break;
		case READ: case FENCE:
			wr.opcode = IBV_WR_RDMA_READ;
			break;
		case USED_INV:
			/* The first request invalidates the STag. */
			wr.opcode = IBV_WR_SEND_WITH_INV;
			wr.wr.rdma.rkey = wr.invalidate_rkey = theirs->inv_rkey;
			if (post_out(c, &wr))
				return -1;
			c->out_posted++;
			/* fall through */
		default:
			fault(o, theirs, &wr, sge);
		}
		if (post_out(c, &wr))
			return -1;
		c->out_posted++;
		if (o->op == FENCE) {
			struct ibv_send_wr next = { .wr_id = ID(TEST_OUT, m), .sg_list = sge, .num_sge = wr.num_sge,
				.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_FENCE };
			if (post_out(c, &next))
				return -1;
			c->out_posted++;
		}
	}
	return UNTIL(c, o, 0, c->out_done >= c->out_posted);
}

/* Prepares the memory for the acting end, or for the other one. */
static int prepare(struct conn *c, struct talk *o, int acts)
{
	if (memory(c, o))
		return -1;
	if (acts && o->op != READ && o->op != FENCE)
		pattern(c, c->data + remote_len(o), o, GAP, 0);
	if (!acts && (o->op == READ || o->op == FENCE))
		pattern(c, c->data, o, 0, 0);
	if (!acts && is_send(o->op))
		return expect_test(c, o, o->count);
	if (!acts && (o->op == LONG_SEND || o->op == USED_INV))
		return expect_test(c, o, 1);
	return 0;
}

static int verify(struct conn *c, struct talk *o, int acted)
{
	if (acted)
		return o->op == READ ? pattern(c, c->data + remote_len(o), o, GAP, 1) : 0;
	if (is_send(o->op)) {
		if (c->in_done != c->in_posted)
			return wrong(c, "%u of %u messages came", c->in_done, c->in_posted);
		return pattern(c, c->data + remote_len(o), o, GAP, 1);
	}
	return o->op == WRITE ? pattern(c, c->data, o, 0, 1) : 0;
}

static void answer(struct conn *c, const struct talk *from)
{
	if (from->status)
		wrong(c, "the other end: %s", from->text);
}

/* The passive end waits for the data before it takes the message that the order is done, using
 * solicited events if they were ordered. */
static int await_done(struct conn *c, struct talk *o, struct talk *reply)
{
	if (is_send(o->op) && UNTIL(c, o, o->op == SEND_SE, c->in_done >= c->in_posted || c->arrived > c->taken))
		return -1;
	return hear(c, o, DONE, reply);
}

/* Carries out one order at the end that gives it. */
static int give(struct conn *c, struct talk *o)
{
	struct talk reply;
	int acts = o->actor == 0;

	if (prepare(c, o, acts))
		return -1;
	if (o->op != NO_RECV || acts)
		if (expect_talk(c))
			return -1;
	if (acts && expect_talk(c))
		return -1;
	if (say(c, o, ORDER))
		return -1;
	if (acts) {
		if (hear(c, o, READY, &reply) || act(c, o, &reply))
			return -1;
		verify(c, o, 1);
		if (say(c, o, DONE) || hear(c, o, VERDICT, &reply))
			return -1;
	} else {
		if (await_done(c, o, &reply))
			return -1;
		verify(c, o, 0);
	}
	answer(c, &reply);
	return c->wrong[0] ? -1 : 0;
}

/* Describes the device, the driver, the firmware and the kernel. */
static int about(struct conn *c, struct talk *o)
{
	struct ibv_device_attr attr = { .fw_ver = "" };
	const char *device = ibv_get_device_name(c->id->verbs->device);
	char path[300], link[300] = "";
	struct utsname kernel = { .release = "" };

	snprintf(path, sizeof(path), "/sys/class/infiniband/%s/device/driver", device);
	ssize_t len = readlink(path, link, sizeof(link) - 1);
	const char *driver = len > 0 && strrchr(link, '/') ? strrchr(link, '/') + 1 : "";
	/* A software device has no driver link; its name begins with the name of the driver. */
	int name = *driver ? (int)strlen(driver) : (int)strcspn(device, "0123456789_");
	ibv_query_device(c->id->verbs, &attr);
	uname(&kernel);
	if (expect_talk(c))
		return -1;
	wrong(c, "%s; driver %.*s; firmware %s; %s %s", device, name, *driver ? driver : device, attr.fw_ver, kernel.sysname,
	      kernel.release);
	return say(c, o, VERDICT);
}

/* Carries out one order at the end that receives it. */
static int take(struct conn *c)
{
	struct talk o, reply;

	if (hear(c, NULL, ORDER, &o))
		return -1;
	if (o.op == ABOUT)
		return about(c, &o);
	int acts = o.actor == 1;
	struct talk theirs = o;
	if (prepare(c, &o, acts))
		return -1;
	if (acts) {
		if (act(c, &o, &theirs))
			return -1;
		verify(c, &o, 1);
		if (expect_talk(c))
			return -1;
		return say(c, &o, DONE);
	}
	if (o.op != NO_RECV && expect_talk(c))
		return -1;
	if (say(c, &o, READY) || await_done(c, &o, &reply))
		return -1;
	verify(c, &o, 0);
	answer(c, &reply);
	if (expect_talk(c))
		return -1;
	return say(c, &o, VERDICT);
}

static int setup(struct conn *c)
{
	struct ibv_qp_init_attr attr = { .cap = { 1024, 1024, 6, 6, 64 }, .qp_type = IBV_QPT_RC };

	c->pd = ibv_alloc_pd(c->id->verbs);
	c->channel = ibv_create_comp_channel(c->id->verbs);
	c->cq = c->channel ? ibv_create_cq(c->id->verbs, 4096, NULL, c->channel, 0) : NULL;
	attr.send_cq = attr.recv_cq = c->cq;
	if (!c->pd || !c->cq || rdma_create_qp(c->id, c->pd, &attr))
		return wrong(c, "no queue pair: %s", strerror(errno));
	c->talk_mr = ibv_reg_mr(c->pd, c->talk, sizeof(c->talk), IBV_ACCESS_LOCAL_WRITE);
	return c->talk_mr ? 0 : wrong(c, "ibv_reg_mr: %s", strerror(errno));
}

/* Waits until everything posted has completed or been flushed, whatever happened to the
 * connection. Five seconds without a completion end the wait. */
static int drain(struct conn *c)
{
	unsigned seen = c->all_done;
	long until = ms() + 5000;

	rdma_disconnect(c->id);
	c->broken = 1;
	while ((c->all_done < c->all_posted || !c->gone) && ms() < until) {
		step(c, NULL, 0);
		if (seen != c->all_done)
			until = ms() + 5000;
		seen = c->all_done;
	}
	return c->all_done == c->all_posted ? 0 : -1;
}

static void discard(struct conn *c)
{
	if (c->id->qp)
		rdma_destroy_qp(c->id);
	if (c->mr)
		ibv_dereg_mr(c->mr);
	if (c->inv_mr)
		ibv_dereg_mr(c->inv_mr);
	if (c->talk_mr)
		ibv_dereg_mr(c->talk_mr);
	if (c->cq)
		ibv_destroy_cq(c->cq);
	if (c->channel)
		ibv_destroy_comp_channel(c->channel);
	if (c->pd)
		ibv_dealloc_pd(c->pd);
	rdma_destroy_id(c->id);
	if (c->events)
		rdma_destroy_event_channel(c->events);
	free(c->data);
	free(c->revocable);
	free(c);
}

static struct rdma_conn_param parameters(const void *data, unsigned len)
{
	return (struct rdma_conn_param){ .private_data = data, .private_data_len = (uint8_t)len,
		.responder_resources = (uint8_t)ird, .initiator_depth = (uint8_t)ord };
}

static void *serve_one(void *argument)
{
	struct conn *c = argument;
	struct rdma_cm_event *event;

	/* The thread itself takes these events: an initiator that has reset its connection may cause
	 * none, and other connections are accepted in the meantime. */
	if (rdma_get_cm_event(c->events, &event)) {
		discard(c);
		return NULL;
	}
	printf("event: %s\n", rdma_event_str(event->event));
	rdma_ack_cm_event(event);
	while (!c->broken && !take(c))
		c->wrong[0] = 0;
	int rest = drain(c);
	printf("connection over: %s; %u of %u requests and receives done%s\n", c->wrong[0] ? c->wrong : "closed", c->all_done,
	       c->all_posted, rest ? ", the rest never" : "");
	discard(c);
	return NULL;
}

static void on_request(struct rdma_cm_event *event)
{
	static const char no[] = "rejected as asked: ";
	struct conn *c = calloc(1, sizeof(*c));
	uint8_t data[256];
	unsigned len = event->param.conn.private_data_len;
	pthread_t thread;

	memcpy(data, event->param.conn.private_data ? event->param.conn.private_data : "", len);
	c->id = event->id;
	printf("request: %u bytes of private data, responder resources %u, initiator depth %u\n", len,
	       event->param.conn.responder_resources, event->param.conn.initiator_depth);
	rdma_ack_cm_event(event);
	if (len >= 6 && !memcmp(data, "reject", 6)) {
		memmove(data + sizeof(no) - 1, data, len > 200 ? 200 : len);
		memcpy(data, no, sizeof(no) - 1);
		rdma_reject(c->id, data, (uint8_t)(sizeof(no) - 1 + (len > 200 ? 200 : len)));
		rdma_destroy_id(c->id);
		free(c);
		return;
	}
	/* Private data is returned unchanged. */
	struct rdma_conn_param p = parameters(data, len);
	c->events = rdma_create_event_channel();
	if (setup(c) || expect_talk(c) || rdma_migrate_id(c->id, c->events) || rdma_accept(c->id, &p)) {
		printf("not accepted: %s\n", c->wrong[0] ? c->wrong : strerror(errno));
		discard(c);
		return;
	}
	pthread_create(&thread, NULL, serve_one, c);
	pthread_detach(thread);
}

static int serve(struct sockaddr *address)
{
	struct rdma_event_channel *events = rdma_create_event_channel();
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	if (!events || rdma_create_id(events, &id, NULL, RDMA_PS_TCP) || rdma_bind_addr(id, address) || rdma_listen(id, 64)) {
		printf("siwpeer: cannot listen: %s\n", strerror(errno));
		return 1;
	}
	printf("listening\n");
	while (!rdma_get_cm_event(events, &event)) {
		if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST)
			on_request(event);
		else
			rdma_ack_cm_event(event);
	}
	return 1;
}

static int wait_event(struct conn *c, enum rdma_cm_event_type type, struct rdma_cm_event **event)
{
	struct rdma_cm_event *e;

	if (rdma_get_cm_event(c->events, &e))
		return wrong(c, "no event: %s", strerror(errno));
	if (e->event != type) {
		char data[201] = "";
		unsigned len = e->param.conn.private_data_len;
		if (e->event == RDMA_CM_EVENT_REJECTED && len && e->param.conn.private_data)
			memcpy(data, e->param.conn.private_data, len > 200 ? 200 : len);
		wrong(c, "%s, status %d %s", rdma_event_str(e->event), e->status, data);
		rdma_ack_cm_event(e);
		return -1;
	}
	if (event)
		*event = e;
	else
		rdma_ack_cm_event(e);
	return 0;
}

static int connect_to(struct conn *c, struct sockaddr *address)
{
	struct rdma_conn_param p = parameters(private_data, private_len);
	struct rdma_cm_event *event;

	c->events = rdma_create_event_channel();
	if (!c->events || rdma_create_id(c->events, &c->id, NULL, RDMA_PS_TCP) ||
	    rdma_resolve_addr(c->id, NULL, address, 3000) || wait_event(c, RDMA_CM_EVENT_ADDR_RESOLVED, NULL) ||
	    rdma_resolve_route(c->id, 3000) || wait_event(c, RDMA_CM_EVENT_ROUTE_RESOLVED, NULL))
		return wrong(c, "resolving: %s", strerror(errno));
	if (setup(c))
		return -1;
	if (rdma_connect(c->id, &p))
		return wrong(c, "rdma_connect: %s", strerror(errno));
	if (wait_event(c, RDMA_CM_EVENT_ESTABLISHED, &event))
		return -1;
	printf("established: %u bytes of private data, responder resources %u, initiator depth %u\n",
	       event->param.conn.private_data_len, event->param.conn.responder_resources, event->param.conn.initiator_depth);
	if (event->param.conn.private_data_len < private_len ||
	    (private_len && memcmp(event->param.conn.private_data, private_data, private_len)))
		wrong(c, "private data did not come back");
	rdma_ack_cm_event(event);
	return c->wrong[0] ? -1 : 0;
}

/* Parses OP[:SIZE[xCOUNT[xSGES]]] with an optional "me." or "you."; -1 means both, one after the
 * other. */
static int parse(const char *text, struct talk *o)
{
	int both = 1;
	char name[32] = "";
	unsigned size = 64, count = 1, sges = 1;

	*o = (struct talk){ .actor = 0 };
	if (!strncmp(text, "me.", 3)) {
		both = 0;
		text += 3;
	} else if (!strncmp(text, "you.", 4)) {
		both = 0;
		o->actor = 1;
		text += 4;
	}
	if (sscanf(text, "%31[a-z]:%ux%ux%u", name, &size, &count, &sges) < 1)
		return -1;
	for (size_t i = 0; i < sizeof(OPS) / sizeof(*OPS); i++)
		if (!strcmp(OPS[i].name, name))
			o->op = (uint8_t)OPS[i].op;
	o->size = size;
	o->count = count;
	o->sges = sges;
	if (!o->op || count > MAX_COUNT || (uint64_t)size * count > MAX_BYTES || sges < 1 || sges > 6) {
		printf("siwpeer: no order: %s\n", text);
		exit(2);
	}
	return both;
}

static int order(struct conn *c, struct talk *o)
{
	static uint32_t seed = 1;

	o->seed = seed++ * 41;
	long begun = ms();
	int rc = give(c, o);
	int ends = o->op >= BAD_WRITE;
	printf("%s %s.%s:%ux%ux%u %ld ms%s%s\n", ends ? "ended" : rc ? "FAIL" : "ok", o->actor ? "you" : "me", op_name(o->op), o->size,
	       o->count, o->sges, ms() - begun, c->wrong[0] ? ": " : "", c->wrong);
	return ends ? 1 : rc;
}

static int run(struct sockaddr *address, char **orders, int n)
{
	struct conn *c = calloc(1, sizeof(*c));
	long until;
	int rc = 0;

	c->initiator = 1;
	if (connect_to(c, address)) {
		printf("FAIL connect: %s\n", c->wrong);
		return 3;
	}
	usleep(pause_ms * 1000);
	until = ms() + seconds * 1000L;
	do {
		for (int i = 0; i < n && !rc; i++) {
			struct talk o;
			int both = parse(orders[i], &o);
			rc = order(c, &o);
			if (both && !rc) {
				o.actor = 1;
				rc = order(c, &o);
			}
		}
	} while (!rc && ms() < until);
	int rest = drain(c);
	printf("%s: %u of %u requests and receives done\n", rest || rc < 0 ? "FAIL" : "over", c->all_done, c->all_posted);
	return rest || rc < 0;
}

static void key(const char *text)
{
	if (sscanf(text, "ird=%u", &ird) == 1 || sscanf(text, "ord=%u", &ord) == 1 ||
	    sscanf(text, "seconds=%u", &seconds) == 1 || sscanf(text, "pause=%u", &pause_ms) == 1)
		return;
	if (!strncmp(text, "pd=:", 4)) {
		private_len = (unsigned)strnlen(text + 4, 255);
		memcpy(private_data, text + 4, private_len);
	} else if (sscanf(text, "pd=%u", &private_len) == 1 && private_len < 256) {
		for (unsigned i = 0; i < private_len; i++)
			private_data[i] = (char)(i * 5 + 1);
	} else {
		printf("siwpeer: no key: %s\n", text);
		exit(2);
	}
}

int main(int argc, char **argv)
{
	struct sockaddr_storage address = { 0 };
	struct sockaddr_in *v4 = (void *)&address;
	struct sockaddr_in6 *v6 = (void *)&address;
	int at = 4;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc < 4) {
		printf("usage: siwpeer serve|run ADDR PORT [KEY=VALUE...] [ORDER...]\n");
		return 2;
	}
	if (inet_pton(AF_INET, argv[2], &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons((uint16_t)atoi(argv[3]));
	} else if (inet_pton(AF_INET6, argv[2], &v6->sin6_addr) == 1) {
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons((uint16_t)atoi(argv[3]));
	} else {
		printf("siwpeer: no address: %s\n", argv[2]);
		return 2;
	}
	while (at < argc && strchr(argv[at], '='))
		key(argv[at++]);
	if (!strcmp(argv[1], "serve"))
		return serve((struct sockaddr *)&address);
	return run((struct sockaddr *)&address, argv + at, argc - at);
}
