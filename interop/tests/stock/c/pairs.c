/* Tests queue pairs that are connected out of band, one function per guarantee. Both ends are in
 * this process, on the loopback device. */
#include "pairs.h"

/* Either side may send first. */
static void both_directions(void)
{
	static struct end a, b;

	make_connected(&a, &b);
	exchange(&a, &b, 1);
	exchange(&b, &a, 2);
	unmake(&a);
	unmake(&b);
	make_connected(&a, &b);
	exchange(&b, &a, 3);
	unmake(&b);
	unmake(&a);
}

/* A request may be posted before the other end exists, whichever end that is. */
static void one_end_is_early(void)
{
	static struct end a, b;
	int turn;

	for (turn = 0; turn < 2; turn++) {
		struct end *early = turn ? &a : &b, *late = turn ? &b : &a;

		make(&a);
		make(&b);
		ready(early, late, 7);
		receive(early, 9);
		CHECK(state_of(early) == IBV_QPS_RTS);
		post(early, IBV_WR_SEND, 1, 0, 0);
		usleep(300000);
		init(late);
		receive(late, 2);
		CHECK(!rtr(late, early->qp->qp_num, early->psn));
		/* A queue pair in RTR receives. */
		expect(late, 2, IBV_WC_SUCCESS);
		expect(early, 1, IBV_WC_SUCCESS);
		CHECK(state_of(late) == IBV_QPS_RTR);
		rts(late, 7, 7);
		post(late, IBV_WR_SEND, 3, 0, 0);
		expect(late, 3, IBV_WC_SUCCESS);
		expect(early, 9, IBV_WC_SUCCESS);
		unmake(&a);
		unmake(&b);
	}
}

/* The transitions ERR, RESET, INIT, RTR and RTS connect the same pair again, one side first. */
static void connected_again(void)
{
	static struct end a, b;
	int round;

	make(&a);
	make(&b);
	for (round = 0; round < 5; round++) {
		struct end *first = round % 2 ? &a : &b, *second = round % 2 ? &b : &a;

		ready(first, second, 7);
		ready(second, first, 7);
		exchange(&a, &b, 10);
		exchange(&b, &a, 11);
		receive(first, 12);
		to(first, IBV_QPS_ERR);
		expect(first, 12, IBV_WC_WR_FLUSH_ERR);
		to(first, IBV_QPS_RESET);
		first->psn += 5;
		to(second, IBV_QPS_ERR);
		to(second, IBV_QPS_RESET);
		CHECK(state_of(second) == IBV_QPS_RESET);
	}
	unmake(&a);
	unmake(&b);
}

/* A Send waits for a receive as long as min_rnr_timer and rnr_retry specify. */
static void receiver_not_ready(int acknowledged)
{
	static struct end a, b;

	make_connected(&a, &b);
	post(&a, IBV_WR_SEND, 1, 0, 0);
	usleep(1500000);
	receive(&b, 2);
	expect(&b, 2, IBV_WC_SUCCESS);
	expect(&a, 1, IBV_WC_SUCCESS);
	unmake(&a);
	unmake(&b);
	if (!acknowledged)
		return;
	make(&a);
	make(&b);
	ready(&a, &b, 1);
	ready(&b, &a, 1);
	exchange(&b, &a, 3);
	post(&a, IBV_WR_SEND, 4, 0, 0);
	expect(&a, 4, IBV_WC_RNR_RETRY_EXC_ERR);
	CHECK(state_of(&a) == IBV_QPS_ERR);
	unmake(&a);
	unmake(&b);
}

/* Without a peer, a retry error occurs after a request has been posted, but not before. */
static void no_peer_answers(void)
{
	static struct end a, b;
	double began;

	make(&a);
	make(&b);
	ready(&a, &b, 7);
	sleep(1);
	CHECK(state_of(&a) == IBV_QPS_RTS);
	began = now();
	receive(&a, 9);
	post(&a, IBV_WR_SEND, 1, 0, 0);
	post(&a, IBV_WR_SEND, 2, 0, 0);
	expect(&a, 1, IBV_WC_RETRY_EXC_ERR);
	CHECK(now() - began < 20);
	expect(&a, 2, IBV_WC_WR_FLUSH_ERR);
	expect(&a, 9, IBV_WC_WR_FLUSH_ERR);
	CHECK(state_of(&a) == IBV_QPS_ERR);
	unmake(&a);
	unmake(&b);
}

/* A queue pair does not notice that its peer has gone until it posts a request. Another peer
 * with the same number may appear. */
static void the_peer_goes(void)
{
	static struct end a, b;
	struct ibv_wc wc;

	make_connected(&a, &b);
	exchange(&a, &b, 1);
	receive(&a, 2);
	unmake(&b);
	usleep(200000);
	CHECK(ibv_poll_cq(a.cq, 1, &wc) == 0);
	CHECK(state_of(&a) == IBV_QPS_RTS);
	post(&a, IBV_WR_SEND, 3, 0, 0);
	expect(&a, 3, IBV_WC_RETRY_EXC_ERR);
	expect(&a, 2, IBV_WC_WR_FLUSH_ERR);
	CHECK(state_of(&a) == IBV_QPS_ERR);
	unmake(&a);
}

/* A queue pair does not notice either that its peer has entered the error state; UCX moves its
 * queue pairs there before it destroys them. */
static void the_peer_fails(void)
{
	struct pollfd events = { context->async_fd, POLLIN, 0 };
	static struct end a, b;
	struct ibv_wc wc;

	make_connected(&a, &b);
	exchange(&a, &b, 1);
	exchange(&b, &a, 2);
	receive(&a, 3);
	to(&b, IBV_QPS_ERR);
	CHECK(poll(&events, 1, 300) == 0);
	CHECK(ibv_poll_cq(a.cq, 1, &wc) == 0);
	CHECK(state_of(&a) == IBV_QPS_RTS);
	post(&a, IBV_WR_SEND, 4, 0, 0);
	expect(&a, 4, IBV_WC_RETRY_EXC_ERR);
	expect(&a, 3, IBV_WC_WR_FLUSH_ERR);
	CHECK(state_of(&a) == IBV_QPS_ERR);
	unmake(&a);
	unmake(&b);
}

/* Another peer does not get the connection. A different PSN identifies a different run of a
 * program. */
static void strangers_wait_outside(void)
{
	static struct end a, b, c;

	make(&a);
	make(&b);
	make(&c);
	/* `c` connects to `a`, which expects `b`. */
	init(&a);
	CHECK(!rtr(&a, b.qp->qp_num, b.psn));
	rts(&a, 7, 7);
	ready(&c, &a, 7);
	receive(&a, 1);
	post(&c, IBV_WR_SEND, 2, 0, 0);
	usleep(300000);
	ready(&b, &a, 7);
	post(&b, IBV_WR_SEND, 3, 0, 0);
	expect(&b, 3, IBV_WC_SUCCESS);
	expect(&a, 1, IBV_WC_SUCCESS);
	expect(&c, 2, IBV_WC_RETRY_EXC_ERR);
	unmake(&a);
	unmake(&b);
	unmake(&c);
}

/* A remote access error is reported for the request that caused it. */
static void errors_land_where_they_belong(void)
{
	static struct end a, b;

	make_connected(&a, &b);
	post(&a, IBV_WR_RDMA_WRITE, 1, (uintptr_t)b.buffer, b.mr->rkey);
	post(&a, IBV_WR_RDMA_WRITE, 2, (uintptr_t)b.buffer, b.mr->rkey ^ 0x5500);
	post(&a, IBV_WR_RDMA_WRITE, 3, (uintptr_t)b.buffer, b.mr->rkey);
	expect(&a, 1, IBV_WC_SUCCESS);
	expect(&a, 2, IBV_WC_REM_ACCESS_ERR);
	expect(&a, 3, IBV_WC_WR_FLUSH_ERR);
	unmake(&a);
	unmake(&b);
}

/* A queue pair that is connected to itself serves its own requests and detects its own errors. */
static void itself(int acknowledged)
{
	static struct end a;
	struct ibv_sge sge = { (uintptr_t)a.buffer + 64, 8, 0 };
	struct ibv_send_wr atomic = { .wr_id = 5, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED }, *bad;
	uint64_t *counter = (uint64_t *)(a.buffer + 1024);
	int life;

	make(&a);
	for (life = 0; life < 3; life++) {
		ready(&a, &a, 7);
		receive(&a, 1);
		memset(a.buffer, 0, SIZE);
		strcpy(a.buffer + 64, "to me");
		post(&a, IBV_WR_SEND, 1, 0, 0);
		expect(&a, 1, IBV_WC_SUCCESS);
		expect(&a, 1, IBV_WC_SUCCESS);
		CHECK(!strcmp(a.buffer, "to me"));
		post(&a, IBV_WR_RDMA_WRITE, 2, (uintptr_t)a.buffer + 512, a.mr->rkey);
		expect(&a, 2, IBV_WC_SUCCESS);
		/* A Read of the written data is executed after the Write. */
		post(&a, IBV_WR_RDMA_READ, 3, (uintptr_t)a.buffer + 512, a.mr->rkey);
		expect(&a, 3, IBV_WC_SUCCESS);
		CHECK(!strcmp(a.buffer + 512, "to me") && !strcmp(a.buffer + 64, "to me"));

		*counter = 40;
		sge.lkey = a.mr->lkey;
		atomic.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
		atomic.wr.atomic.remote_addr = (uintptr_t)counter;
		atomic.wr.atomic.rkey = a.mr->rkey;
		atomic.wr.atomic.compare_add = 2;
		CHECK(!ibv_post_send(a.qp, &atomic, &bad));
		expect(&a, 5, IBV_WC_SUCCESS);
		CHECK(*counter == 42 && *(uint64_t *)(a.buffer + 64) == 40);
		atomic.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
		atomic.wr.atomic.compare_add = 42;
		atomic.wr.atomic.swap = 7;
		CHECK(!ibv_post_send(a.qp, &atomic, &bad));
		expect(&a, 5, IBV_WC_SUCCESS);
		CHECK(*counter == 7 && *(uint64_t *)(a.buffer + 64) == 42);

		post(&a, IBV_WR_RDMA_READ, 6, (uintptr_t)a.buffer, a.mr->rkey ^ 0x5500);
		receive(&a, 7);
		expect(&a, 6, IBV_WC_REM_ACCESS_ERR);
		expect(&a, 7, IBV_WC_WR_FLUSH_ERR);
		CHECK(state_of(&a) == IBV_QPS_ERR);
		to(&a, IBV_QPS_RESET);
		if (!acknowledged)
			continue;
		ready(&a, &a, 7);
		post(&a, IBV_WR_RDMA_WRITE, 8, (uintptr_t)a.buffer + 512, a.mr->rkey);
		post(&a, IBV_WR_RDMA_WRITE, 9, (uintptr_t)a.buffer + 512, a.mr->rkey ^ 0x5500);
		post(&a, IBV_WR_RDMA_WRITE, 10, (uintptr_t)a.buffer + 512, a.mr->rkey);
		expect(&a, 8, IBV_WC_SUCCESS);
		expect(&a, 9, IBV_WC_REM_ACCESS_ERR);
		expect(&a, 10, IBV_WC_WR_FLUSH_ERR);
		to(&a, IBV_QPS_RESET);
	}
	/* The queue pair may be destroyed with requests outstanding. */
	ready(&a, &a, 7);
	post(&a, IBV_WR_SEND, 11, 0, 0);
	unmake(&a);
}

/* Creates more queue pairs than one TCP port has slots; all must have different numbers. */
static void many(void)
{
	enum { COUNT = 300 };
	static struct end ends[COUNT];
	int i, j;

	for (i = 0; i < COUNT; i++) {
		make(&ends[i]);
		for (j = 0; j < i; j++)
			CHECK(ends[i].qp->qp_num != ends[j].qp->qp_num);
	}
	for (i = 0; i < COUNT; i++)
		ready(&ends[i], &ends[i ^ 1], 7);
	for (i = 0; i < COUNT; i++)
		exchange(&ends[i], &ends[i ^ 1], i);
	for (i = 0; i < COUNT; i++)
		unmake(&ends[i]);
}

/* Attributes that do not name a peer are refused immediately. */
static void nonsense(void)
{
	static struct end a;

	make(&a);
	init(&a);
	CHECK(rtr(&a, 0, 0) == EINVAL);
	CHECK(rtr(&a, 0x1000000, 0) == EINVAL);
	memset(&gid, 0, sizeof gid);
	CHECK(rtr(&a, a.qp->qp_num + 1, 0) == EINVAL);
	CHECK(!ibv_query_gid(context, 1, 0, &gid));
	CHECK(state_of(&a) == IBV_QPS_INIT);
	unmake(&a);
}

/* The state in struct ibv_qp is the one that the program has requested, however fast the
 * connection is established. */
static void states_are_those_asked_for(void)
{
	static struct end a;
	int life;

	make(&a);
	for (life = 0; life < 300; life++) {
		init(&a);
		CHECK(a.qp->state == IBV_QPS_INIT);
		CHECK(!rtr(&a, a.qp->qp_num, a.psn));
		CHECK(a.qp->state == IBV_QPS_RTR);
		CHECK(state_of(&a) == IBV_QPS_RTR && a.qp->state == IBV_QPS_RTR);
		rts(&a, 7, 7);
		CHECK(a.qp->state == IBV_QPS_RTS);
		to(&a, IBV_QPS_ERR);
		CHECK(a.qp->state == IBV_QPS_ERR);
		to(&a, IBV_QPS_RESET);
		CHECK(a.qp->state == IBV_QPS_RESET);
	}
	unmake(&a);
}

int main(int argc, char **argv)
{
	int acknowledged = argc > 1 && !strcmp(argv[1], "acknowledged");

	open_loopback();
	nonsense();
	both_directions();
	one_end_is_early();
	connected_again();
	receiver_not_ready(acknowledged);
	no_peer_answers();
	the_peer_goes();
	the_peer_fails();
	strangers_wait_outside();
	if (acknowledged)
		errors_land_where_they_belong();
	itself(acknowledged);
	states_are_those_asked_for();
	many();
	close_loopback();
	puts("done");
	return 0;
}
