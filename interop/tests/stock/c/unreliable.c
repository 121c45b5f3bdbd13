/* Tests unreliable connected queue pairs: which messages are delivered, and which are lost
 * silently. */
#include "pairs.h"
#include <rdma/rdma_cma.h>

enum { LARGE = 200000 };

/* Waits longer than a message without a receive is kept; it is kept for a moment because a slow
 * network would delay it as well. */
static void pass(void)
{
	usleep(250000);
}

static void make_uc(struct end *end)
{
	make_of_type(end, IBV_QPT_UC);
}

static void ready_uc(struct end *end, struct end *to)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = to->qp->qp_num,
		.rq_psn = to->psn, .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 1 } } };
	int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;

	init(end);
	CHECK(ibv_modify_qp(end->qp, &attr, mask | IBV_QP_MIN_RNR_TIMER | IBV_QP_MAX_DEST_RD_ATOMIC) == EINVAL);
	CHECK(ibv_modify_qp(end->qp, &attr, mask & ~IBV_QP_AV) == EINVAL);
	CHECK(!ibv_modify_qp(end->qp, &attr, mask));
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = end->psn;
	CHECK(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT) == EINVAL);
	CHECK(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE) == EINVAL);
	CHECK(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
}

static void make_uc_connected(struct end *a, struct end *b)
{
	make_uc(a);
	make_uc(b);
	ready_uc(a, b);
	ready_uc(b, a);
}

static int try_request(struct end *from, enum ibv_wr_opcode opcode, uint64_t id, struct ibv_sge sge, void *to, uint32_t rkey)
{
	struct ibv_send_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .imm_data = htonl(id),
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { (uintptr_t)to, rkey } }, *bad;

	return ibv_post_send(from->qp, &wr, &bad);
}

/* Posts a request of eight bytes at offset 64. */
static void request(struct end *from, enum ibv_wr_opcode opcode, uint64_t id, void *to, uint32_t rkey)
{
	CHECK(!try_request(from, opcode, id, (struct ibv_sge){ (uintptr_t)from->buffer + 64, 8, from->mr->lkey }, to, rkey));
	expect(from, id, IBV_WC_SUCCESS);
}

/* Checks that the next message arrives and that no earlier one did. */
static void only_next_arrives(struct end *a, struct end *b)
{
	struct ibv_wc wc;

	CHECK(state_of(a) == IBV_QPS_RTS && state_of(b) == IBV_QPS_RTS);
	receive(b, 77);
	strcpy(a->buffer + 64, "next");
	request(a, IBV_WR_SEND_WITH_IMM, 77, NULL, 0);
	wc = completion(b);
	CHECK(wc.wr_id == 77 && !wc.status && wc.opcode == IBV_WC_RECV && wc.byte_len == 8);
	CHECK(wc.wc_flags & IBV_WC_WITH_IMM && ntohl(wc.imm_data) == 77);
	CHECK(!strcmp(b->buffer, "next"));
	CHECK(ibv_poll_cq(a->cq, 1, &wc) == 0 && ibv_poll_cq(b->cq, 1, &wc) == 0);
	memset(b->buffer, 0, SIZE);
}

static void delivered(void)
{
	static struct end a, b;
	struct ibv_wc wc;
	int direction;

	make_uc_connected(&a, &b);
	for (direction = 0; direction < 2; direction++) {
		struct end *from = direction ? &b : &a, *into = direction ? &a : &b;

		exchange(from, into, 1);
		receive(into, 2);
		strcpy(from->buffer + 64, "imm");
		request(from, IBV_WR_SEND_WITH_IMM, 2, NULL, 0);
		wc = completion(into);
		CHECK(wc.wr_id == 2 && wc.opcode == IBV_WC_RECV && ntohl(wc.imm_data) == 2 && !strcmp(into->buffer, "imm"));
		strcpy(from->buffer + 64, "write");
		request(from, IBV_WR_RDMA_WRITE, 3, into->buffer + 512, into->mr->rkey);
		receive(into, 4);
		request(from, IBV_WR_RDMA_WRITE_WITH_IMM, 4, into->buffer + 1024, into->mr->rkey);
		wc = completion(into);
		CHECK(wc.wr_id == 4 && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && ntohl(wc.imm_data) == 4 && wc.byte_len == 8);
		CHECK(!strcmp(into->buffer + 512, "write") && !strcmp(into->buffer + 1024, "write"));
	}
	unmake(&a);
	unmake(&b);
}

static void nothing_to_read(void)
{
	static struct end a, b;
	struct ibv_sge sge = { (uintptr_t)a.buffer, 8, 0 };

	make_uc_connected(&a, &b);
	sge.lkey = a.mr->lkey;
	CHECK(try_request(&a, IBV_WR_RDMA_READ, 1, sge, b.buffer, b.mr->rkey));
	CHECK(try_request(&a, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, sge, b.buffer, b.mr->rkey));
	CHECK(try_request(&a, IBV_WR_SEND_WITH_INV, 1, sge, b.buffer, b.mr->rkey));
	only_next_arrives(&a, &b);
	unmake(&a);
	unmake(&b);
}

static void lost_without_a_receive(void)
{
	static struct end a, b;
	struct ibv_sge large;
	static char source[LARGE], target[LARGE];
	struct ibv_mr *mr, *mr_target;
	int i;

	make_uc_connected(&a, &b);
	CHECK(mr = ibv_reg_mr(pd, source, LARGE, ACCESS));
	CHECK(mr_target = ibv_reg_mr(pd, target, LARGE, ACCESS));
	memset(source, 5, LARGE);
	large = (struct ibv_sge){ (uintptr_t)source, LARGE, mr->lkey };
	for (i = 0; i < 50; i++)
		request(&a, IBV_WR_SEND, i, NULL, 0);
	pass();
	only_next_arrives(&a, &b);
	CHECK(!try_request(&a, IBV_WR_SEND_WITH_IMM, 1, large, NULL, 0));
	expect(&a, 1, IBV_WC_SUCCESS);
	pass();
	only_next_arrives(&a, &b);
	/* Without a receive, the memory is not changed either. */
	request(&a, IBV_WR_RDMA_WRITE_WITH_IMM, 2, target, mr_target->rkey);
	pass();
	CHECK(!try_request(&a, IBV_WR_RDMA_WRITE_WITH_IMM, 3, large, target, mr_target->rkey));
	expect(&a, 3, IBV_WC_SUCCESS);
	pass();
	for (i = 0; i < LARGE; i++)
		CHECK(!target[i]);
	only_next_arrives(&a, &b);
	/* The message is too long for its receive, so the next message uses the receive. */
	receive(&b, 9);
	CHECK(!try_request(&a, IBV_WR_SEND, 4, large, NULL, 0));
	expect(&a, 4, IBV_WC_SUCCESS);
	strcpy(a.buffer + 64, "fits");
	request(&a, IBV_WR_SEND, 5, NULL, 0);
	expect(&b, 9, IBV_WC_SUCCESS);
	CHECK(!strcmp(b.buffer, "fits"));
	only_next_arrives(&a, &b);
	/* With a receive, the large message arrives. */
	receive(&b, 10);
	CHECK(!try_request(&a, IBV_WR_RDMA_WRITE_WITH_IMM, 6, large, target, mr_target->rkey));
	expect(&a, 6, IBV_WC_SUCCESS);
	expect(&b, 10, IBV_WC_SUCCESS);
	CHECK(!memcmp(source, target, LARGE));
	CHECK(!ibv_dereg_mr(mr) && !ibv_dereg_mr(mr_target));
	unmake(&a);
	unmake(&b);
}

static void lost_without_the_right(void)
{
	struct ibv_qp_attr attr = { .qp_access_flags = IBV_ACCESS_LOCAL_WRITE };
	static char source[LARGE], target[LARGE];
	static struct end a, b;
	struct ibv_mr *mr, *half;
	struct ibv_sge large;
	int i, opcode;

	make_uc_connected(&a, &b);
	CHECK(mr = ibv_reg_mr(pd, source, LARGE, ACCESS));
	CHECK(half = ibv_reg_mr(pd, target, LARGE / 2, ACCESS));
	memset(source, 5, LARGE);
	large = (struct ibv_sge){ (uintptr_t)source, LARGE, mr->lkey };
	for (opcode = IBV_WR_RDMA_WRITE; opcode <= IBV_WR_RDMA_WRITE_WITH_IMM; opcode++) {
		request(&a, opcode, 1, b.buffer + 512, b.mr->rkey ^ 0x5500);
		request(&a, opcode, 2, b.buffer + SIZE - 4, b.mr->rkey);
		/* The range begins inside the region and ends beyond it. */
		CHECK(!try_request(&a, opcode, 3, large, target, half->rkey));
		expect(&a, 3, IBV_WC_SUCCESS);
		pass();
		for (i = 0; i < LARGE; i++)
			CHECK(!target[i]);
		CHECK(!b.buffer[512] && !b.buffer[SIZE - 1]);
		only_next_arrives(&a, &b);
	}
	CHECK(!ibv_modify_qp(b.qp, &attr, IBV_QP_ACCESS_FLAGS));
	request(&a, IBV_WR_RDMA_WRITE, 4, b.buffer + 512, b.mr->rkey);
	pass();
	CHECK(!b.buffer[512]);
	only_next_arrives(&a, &b);
	CHECK(!ibv_dereg_mr(mr) && !ibv_dereg_mr(half));
	unmake(&a);
	unmake(&b);
}

/* An end does not notice what happens to the other one. */
static void peer_goes(void)
{
	static struct end a, b;
	int life, i;

	make_uc(&a);
	make_uc(&b);
	for (life = 0; life < 3; life++) {
		ready_uc(&a, &b);
		ready_uc(&b, &a);
		exchange(&a, &b, 1);
		exchange(&b, &a, 2);
		to(&b, IBV_QPS_ERR);
		pass();
		for (i = 0; i < 3; i++)
			request(&a, IBV_WR_SEND, 3, NULL, 0);
		CHECK(state_of(&a) == IBV_QPS_RTS);
		to(&b, IBV_QPS_RESET);
		if (life == 1)
			/* The other end has already been connected before. */
			ready_uc(&b, &a), exchange(&b, &a, 4), to(&b, IBV_QPS_RESET);
		to(&a, IBV_QPS_RESET);
		b.psn += 5;
	}
	ready_uc(&a, &b);
	ready_uc(&b, &a);
	exchange(&a, &b, 1);
	unmake(&b);
	pass();
	request(&a, IBV_WR_SEND, 3, NULL, 0);
	CHECK(state_of(&a) == IBV_QPS_RTS);
	unmake(&a);
}

/* An end does not notice either that there has never been a peer. */
static void nobody_there(void)
{
	static struct end a, b;
	double began;

	make_uc(&a);
	make_uc(&b);
	ready_uc(&a, &b);
	began = now();
	request(&a, IBV_WR_SEND, 1, NULL, 0);
	CHECK(now() - began < 15 && state_of(&a) == IBV_QPS_RTS);
	ready_uc(&b, &a);
	receive(&b, 2);
	request(&a, IBV_WR_SEND, 2, NULL, 0);
	expect(&b, 2, IBV_WC_SUCCESS);
	unmake(&a);
	unmake(&b);
}

/* A reliable queue pair cannot be the peer of an unreliable one. */
static void types_differ(void)
{
	static struct end a, b;
	struct ibv_wc wc;

	make_uc(&a);
	make(&b);
	ready_uc(&a, &b);
	ready(&b, &a, 7);
	receive(&b, 1);
	receive(&a, 2);
	request(&a, IBV_WR_SEND, 3, NULL, 0);
	CHECK(ibv_poll_cq(b.cq, 1, &wc) == 0 && ibv_poll_cq(a.cq, 1, &wc) == 0);
	unmake(&a);
	unmake(&b);
}

/* An end notices its own errors. */
static void own_mistakes(void)
{
	static struct end a, b;
	struct ibv_sge sge = { (uintptr_t)a.buffer, 8, 0 };

	make_uc_connected(&a, &b);
	exchange(&a, &b, 1);
	sge.lkey = a.mr->lkey ^ 0x5500;
	CHECK(!try_request(&a, IBV_WR_SEND, 1, sge, NULL, 0));
	expect(&a, 1, IBV_WC_LOC_PROT_ERR);
	pass();
	CHECK(state_of(&a) == IBV_QPS_ERR && state_of(&b) == IBV_QPS_RTS);
	unmake(&a);
	unmake(&b);
}

static void with_itself(void)
{
	static struct end a;

	make_uc(&a);
	ready_uc(&a, &a);
	request(&a, IBV_WR_RDMA_WRITE, 1, a.buffer + 512, a.mr->rkey ^ 0x5500);
	request(&a, IBV_WR_SEND, 2, NULL, 0);
	pass();
	receive(&a, 3);
	CHECK(!try_request(&a, IBV_WR_SEND, 3, (struct ibv_sge){ (uintptr_t)a.buffer + 64, 8, a.mr->lkey }, NULL, 0));
	expect(&a, 3, IBV_WC_SUCCESS);
	expect(&a, 3, IBV_WC_SUCCESS);
	unmake(&a);
}

/* An id of RDMA_PS_TCP supports only reliable queue pairs, as in librdmacm. */
static void not_by_rdma_cm(void)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_UC, .cap = { 4, 4, 1, 1, 0 } };
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = 1, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct rdma_cm_id *id;

	CHECK(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, (void *)&to, 1000));
	CHECK(rdma_create_qp(id, NULL, &attr) == -1 && errno == EINVAL);
	attr.qp_type = IBV_QPT_RC;
	CHECK(!rdma_create_qp(id, NULL, &attr));
	rdma_destroy_qp(id);
	CHECK(!rdma_destroy_id(id));
}

int main(int argc, char **argv)
{
	open_loopback();
	if (argc > 1 && !strcmp(argv[1], "refused")) {
		struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, NULL, 0);
		struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_UC, .cap = { 4, 4, 1, 1, 0 }, .send_cq = cq, .recv_cq = cq };

		CHECK(cq && !ibv_create_qp(pd, &attr) && errno == EOPNOTSUPP);
		CHECK(!ibv_destroy_cq(cq));
	} else {
		delivered();
		nothing_to_read();
		lost_without_a_receive();
		lost_without_the_right();
		peer_goes();
		nobody_there();
		types_differ();
		own_mistakes();
		with_itself();
		not_by_rdma_cm();
	}
	close_loopback();
	puts("done");
	return 0;
}
