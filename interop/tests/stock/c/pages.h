/* Two connected queue pairs of one process; one sends requests on pages that the other has
 * registered. */
#ifndef PAGES_H
#define PAGES_H

#include "check.h"
#include "ends.h"
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#define PAGE 4096UL
#define PAGES 16
#define LENGTH (PAGES * PAGE)

static struct queues one_queue(struct ibv_context *verbs, void *unused)
{
	struct ibv_cq *cq = make_queue(verbs, 64, NULL, 0);

	(void)unused;
	return (struct queues){ cq, cq };
}

static struct pair connected(void)
{
	const struct setup setup = { .window = 8, .memory = LENGTH };
	struct pair pair;

	pair_connect(&pair, &setup, one_queue, NULL);
	return pair;
}

static void *map(int protection)
{
	void *at = mmap(NULL, LENGTH, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(at != MAP_FAILED);
	return at;
}

static enum ibv_wc_status completion(struct end *end)
{
	struct ibv_wc wc;
	int got;

	while (!(got = ibv_poll_cq(end->cqs.send, 1, &wc)))
		;
	CHECK(got == 1);
	return wc.status;
}

/* Posts a request of `a` between its own region and the peer's region, and returns the status of
 * its completion. */
static enum ibv_wc_status request(struct pair *pair, enum ibv_wr_opcode opcode, struct ibv_mr *mr, size_t offset, unsigned bytes)
{
	struct ibv_sge sge = { .addr = (uintptr_t)pair->a.mr->addr, .length = bytes, .lkey = pair->a.mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED }, *bad;

	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = (uintptr_t)mr->addr + offset;
		wr.wr.atomic.rkey = mr->rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)mr->addr + offset;
		wr.wr.rdma.rkey = mr->rkey;
	}
	CHECK(!ibv_post_send(pair->a.id->qp, &wr, &bad));
	return completion(&pair->a);
}

#endif
