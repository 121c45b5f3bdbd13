/* Tests changes of the peers' access rights by ibv_modify_qp in RTS; they are in effect when the
 * call returns. */
#include "pairs.h"
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>

enum { LARGE = 1 << 20, DEPTH = 8 };

/* Terminate codes for missing rights. RFC 5041 defines none for Writes, so the code of an
 * invalid STag is used (section 7.1). */
enum { WRITE_REFUSED = 0x11100, READ_REFUSED = 0x10102 };

static const enum ibv_wr_opcode opcodes[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD };
static const int rights[] = { IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_ATOMIC };

static bool acknowledged;

static void change(struct end *end, int flags, int mask)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS, .cur_qp_state = IBV_QPS_RTS, .qp_access_flags = flags };
	struct ibv_qp_init_attr init_attr;

	CHECK(!ibv_modify_qp(end->qp, &attr, mask | IBV_QP_ACCESS_FLAGS));
	CHECK(!ibv_query_qp(end->qp, &attr, IBV_QP_ACCESS_FLAGS | IBV_QP_STATE, &init_attr));
	CHECK(attr.qp_access_flags == (unsigned)flags && attr.qp_state == IBV_QPS_RTS);
}

/* Posts a request that uses the first eight bytes of the peer's memory; the requests of `post`
 * use those at offset 64. */
static void request(struct end *from, struct end *into, enum ibv_wr_opcode opcode, uint64_t id)
{
	struct ibv_sge sge = { (uintptr_t)from->buffer + 64, 8, from->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED }, *bad;

	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = (uintptr_t)into->buffer;
		wr.wr.atomic.rkey = into->mr->rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)into->buffer;
		wr.wr.rdma.rkey = into->mr->rkey;
	}
	CHECK(!ibv_post_send(from->qp, &wr, &bad));
}

static void expect_refused(struct end *a, enum ibv_wr_opcode opcode, uint64_t id)
{
	uint32_t codes = opcode == IBV_WR_RDMA_WRITE ? WRITE_REFUSED : READ_REFUSED;
	struct ibv_wc wc = completion(a);

	if (opcode == IBV_WR_RDMA_WRITE && !acknowledged) {
		/* Without acknowledgements the Write completes when TCP has accepted it, so the flushed
		 * receive reports the cause. */
		CHECK(wc.wr_id == id && wc.status == IBV_WC_SUCCESS);
		wc = completion(a);
		CHECK(wc.wr_id == 99 && wc.status == IBV_WC_WR_FLUSH_ERR && wc.vendor_err == codes);
		return;
	}
	CHECK(wc.wr_id == id && wc.status == IBV_WC_REM_ACCESS_ERR);
	wc = completion(a);
	CHECK(wc.wr_id == 99 && wc.status == IBV_WC_WR_FLUSH_ERR && wc.vendor_err == codes);
}

static void taken(int kind, int mask)
{
	static struct end a, b;

	make_connected(&a, &b);
	receive(&a, 99);
	request(&a, &b, opcodes[kind], 1);
	expect(&a, 1, IBV_WC_SUCCESS);
	/* If a Write completes when TCP has accepted it, the following Read shows that the Write was
	 * executed. */
	request(&a, &b, IBV_WR_RDMA_READ, 2);
	expect(&a, 2, IBV_WC_SUCCESS);
	/* The other access rights do not change. */
	change(&b, ACCESS & ~rights[kind], mask);
	request(&a, &b, opcodes[(kind + 1) % 3], 2);
	expect(&a, 2, IBV_WC_SUCCESS);
	request(&a, &b, opcodes[kind == 1 ? 2 : 1], 2);
	expect(&a, 2, IBV_WC_SUCCESS);
	memset(a.buffer, 2, SIZE);
	memset(b.buffer, 1, SIZE);
	request(&a, &b, opcodes[kind], 3);
	expect_refused(&a, opcodes[kind], 3);
	CHECK(b.buffer[0] == 1 && b.buffer[7] == 1);
	CHECK(a.buffer[64] == 2 && a.buffer[71] == 2);
	unmake(&a);
	unmake(&b);
}

static void given(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	static struct end a, b;
	int kind;

	make(&a);
	make(&b);
	ready(&a, &b, 7);
	CHECK(!ibv_modify_qp(b.qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	CHECK(!rtr(&b, a.qp->qp_num, a.psn));
	rts(&b, 7, 7);
	exchange(&a, &b, 1);
	change(&b, ACCESS, 0);
	for (kind = 0; kind < 3; kind++) {
		request(&a, &b, opcodes[kind], kind);
		expect(&a, kind, IBV_WC_SUCCESS);
	}
	unmake(&a);
	unmake(&b);
}

/* Peer that sends large messages without pausing. */
struct storm {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr, *target;
	enum ibv_wr_opcode opcode;
	int done;
};

static void *blow(void *argument)
{
	struct storm *storm = argument;
	struct ibv_send_wr wr = { .num_sge = 1, .opcode = storm->opcode, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_sge sge = { (uintptr_t)storm->mr->addr, LARGE, storm->mr->lkey };
	struct ibv_wc wc;
	int posted = 0;

	wr.sg_list = &sge;
	if (storm->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		sge.length = 8;
		wr.wr.atomic.remote_addr = (uintptr_t)storm->target->addr;
		wr.wr.atomic.rkey = storm->target->rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)storm->target->addr;
		wr.wr.rdma.rkey = storm->target->rkey;
	}
	for (;;) {
		if (posted < DEPTH && !ibv_post_send(storm->qp, &wr, &bad))
			posted++;
		if (storm->opcode == IBV_WR_RDMA_WRITE)
			memset(storm->mr->addr, storm->done, LARGE);
		while (ibv_poll_cq(storm->cq, 1, &wc) == 1) {
			if (wc.status)
				return NULL;
			posted--;
			__atomic_add_fetch(&storm->done, 1, __ATOMIC_RELAXED);
		}
	}
}

/* The call returns in the middle of messages; nothing of them may be placed, read or executed
 * afterwards. */
static void taken_in_the_midst(enum ibv_wr_opcode opcode, int round)
{
	static char memory[LARGE], target[LARGE], before[LARGE];
	static struct end a, b;
	struct ibv_qp_attr none = { .qp_access_flags = IBV_ACCESS_LOCAL_WRITE };
	struct storm storm = { .opcode = opcode };
	pthread_t thread;
	int i;

	make_connected(&a, &b);
	CHECK(storm.mr = ibv_reg_mr(pd, memory, LARGE, ACCESS));
	CHECK(storm.target = ibv_reg_mr(pd, target, LARGE, ACCESS));
	storm.cq = a.cq;
	storm.qp = a.qp;
	memset(target, 0x11, LARGE);
	CHECK(!pthread_create(&thread, NULL, blow, &storm));
	while (__atomic_load_n(&storm.done, __ATOMIC_RELAXED) < 3)
		usleep(100);
	usleep(137 * round);
	CHECK(!ibv_modify_qp(b.qp, &none, IBV_QP_ACCESS_FLAGS));
	if (opcode == IBV_WR_RDMA_READ) {
		memset(target, 0x77, LARGE);
	} else {
		memcpy(before, target, LARGE);
		usleep(20000);
		CHECK(!memcmp(before, target, LARGE));
	}
	CHECK(!pthread_join(thread, NULL));
	if (opcode == IBV_WR_RDMA_READ) {
		for (i = 0; i < LARGE; i++)
			CHECK(memory[i] != 0x77);
	} else {
		CHECK(!memcmp(before, target, LARGE));
	}
	CHECK(!ibv_dereg_mr(storm.mr) && !ibv_dereg_mr(storm.target));
	unmake(&a);
	unmake(&b);
}

static struct rdma_cm_id *await(struct rdma_event_channel *channel, enum rdma_cm_event_type expected)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	CHECK(!rdma_get_cm_event(channel, &event));
	if (event->event != expected) {
		fprintf(stderr, "expected %s, got %s\n", rdma_event_str(expected), rdma_event_str(event->event));
		exit(EXIT_FAILURE);
	}
	id = event->id;
	CHECK(!rdma_ack_cm_event(event));
	return id;
}

static void follow(struct rdma_cm_id *id, struct end *end, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };
	int mask;

	CHECK(!rdma_init_qp_attr(id, &attr, &mask));
	CHECK(!(attr.qp_access_flags & IBV_ACCESS_REMOTE_ATOMIC));
	CHECK(!ibv_modify_qp(end->qp, &attr, mask));
}

/* A program changes the state of its queue pair according to rdma_init_qp_attr, which does not
 * grant atomics, and then changes the rights itself. */
static void left_out_by_rdma_cm(void)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct rdma_event_channel *passive = rdma_create_event_channel(), *active = rdma_create_event_channel();
	struct rdma_conn_param param = { .initiator_depth = 1, .responder_resources = 1 };
	struct rdma_cm_id *listener, *client, *server;
	static struct end a, b;
	int iwarp = context->device->transport_type == IBV_TRANSPORT_IWARP;

	CHECK(passive && active && !rdma_create_id(passive, &listener, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(listener, (void *)&to) && !rdma_listen(listener, 4));
	to.sin_port = rdma_get_src_port(listener);
	CHECK(!rdma_create_id(active, &client, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(client, NULL, (void *)&to, 1000));
	await(active, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_resolve_route(client, 1000));
	await(active, RDMA_CM_EVENT_ROUTE_RESOLVED);
	context = client->verbs;
	pd = client->pd;
	make(&a);
	make(&b);
	follow(client, &a, IBV_QPS_INIT);
	param.qp_num = a.qp->qp_num;
	CHECK(!rdma_connect(client, &param));
	server = await(passive, RDMA_CM_EVENT_CONNECT_REQUEST);
	follow(server, &b, IBV_QPS_INIT);
	follow(server, &b, IBV_QPS_RTR);
	param.qp_num = b.qp->qp_num;
	CHECK(!rdma_accept(server, &param));
	if (iwarp) {
		await(active, RDMA_CM_EVENT_ESTABLISHED);
	} else {
		await(active, RDMA_CM_EVENT_CONNECT_RESPONSE);
		follow(client, &a, IBV_QPS_RTR);
		CHECK(!rdma_establish(client));
	}
	follow(client, &a, IBV_QPS_RTS);
	await(passive, RDMA_CM_EVENT_ESTABLISHED);
	/* The connection has moved the queue pair to RTS. This transition does not count as a change of
	 * the rights by the program. */
	follow(server, &b, IBV_QPS_RTR);
	request(&a, &b, IBV_WR_ATOMIC_FETCH_AND_ADD, 1);
	expect(&a, 1, IBV_WC_SUCCESS);
	receive(&a, 99);
	change(&b, ACCESS & ~IBV_ACCESS_REMOTE_ATOMIC, 0);
	request(&a, &b, IBV_WR_ATOMIC_FETCH_AND_ADD, 2);
	expect_refused(&a, IBV_WR_ATOMIC_FETCH_AND_ADD, 2);
	unmake(&a);
	unmake(&b);
	CHECK(!rdma_destroy_id(client) && !rdma_destroy_id(server) && !rdma_destroy_id(listener));
	rdma_destroy_event_channel(passive);
	rdma_destroy_event_channel(active);
}

int main(int argc, char **argv)
{
	struct ibv_context *opened;
	struct ibv_pd *allocated;
	int kind, round;

	acknowledged = argc > 1 && !strcmp(argv[1], "acknowledged");
	open_loopback();
	for (kind = 0; kind < 3; kind++) {
		taken(kind, 0);
		taken(kind, IBV_QP_STATE);
		taken(kind, IBV_QP_STATE | IBV_QP_CUR_STATE);
	}
	given();
	for (round = 0; round < 20; round++)
		taken_in_the_midst(opcodes[round % 3], round);
	opened = context;
	allocated = pd;
	left_out_by_rdma_cm();
	context = opened;
	pd = allocated;
	close_loopback();
	puts("done");
	return 0;
}
