/* Makes mistakes of different kinds, and violations for which the peer ends the connection, one
 * after the other; the test reads the log. Each line of the output names the queue pairs
 * concerned. */
#include "pairs.h"

static int acknowledged;

static int sent(struct end *from, enum ibv_wr_opcode opcode, uint64_t id, struct ibv_sge sge, void *to, uint32_t rkey)
{
	struct ibv_send_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { (uintptr_t)to, rkey } }, *bad;

	return ibv_post_send(from->qp, &wr, &bad);
}

static void said(const char *what, struct end *a, struct end *b)
{
	printf("%s %#08x %#08x\n", what, a->qp->qp_num, b ? b->qp->qp_num : 0);
	fflush(stdout);
}

static void of_requests(void)
{
	static struct end a, b;
	struct ibv_sge wrong = { 0, 8, 0 };

	make_connected(&a, &b);
	exchange(&b, &a, 1);
	wrong = (struct ibv_sge){ (uintptr_t)a.buffer, 8, a.mr->lkey ^ 0x5500 };
	CHECK(!sent(&a, IBV_WR_SEND, 41, wrong, NULL, 0));
	expect(&a, 41, IBV_WC_LOC_PROT_ERR);
	said("wrong lkey", &a, &b);
	unmake(&a);
	unmake(&b);
	make_connected(&a, &b);
	exchange(&b, &a, 1);
	wrong = (struct ibv_sge){ (uintptr_t)a.buffer + 16, SIZE, a.mr->lkey };
	CHECK(!sent(&a, IBV_WR_RDMA_WRITE, 42, wrong, b.buffer, b.mr->rkey));
	expect(&a, 42, IBV_WC_LOC_PROT_ERR);
	said("too long for its region", &a, &b);
	unmake(&a);
	unmake(&b);
	make_connected(&a, &b);
	exchange(&b, &a, 1);
	wrong.lkey = a.mr->lkey;
	CHECK(!sent(&a, IBV_WR_RDMA_READ, 43, wrong, b.buffer, b.mr->rkey));
	expect(&a, 43, IBV_WC_LOC_PROT_ERR);
	said("nowhere to read to", &a, &b);
	unmake(&a);
	unmake(&b);
}

static void of_receives(void)
{
	static struct end a, b;
	struct ibv_sge sge = { (uintptr_t)b.buffer, 4, 0 };
	struct ibv_recv_wr wr = { .wr_id = 51, .sg_list = &sge, .num_sge = 1 }, *bad;
	struct ibv_wc wc;

	make_connected(&a, &b);
	sge.lkey = b.mr->lkey;
	CHECK(!ibv_post_recv(b.qp, &wr, &bad));
	post(&a, IBV_WR_SEND, 1, 0, 0);
	expect(&b, 51, IBV_WC_LOC_LEN_ERR);
	wc = completion(&a);
	CHECK(acknowledged ? wc.status == IBV_WC_REM_INV_REQ_ERR : wc.status == IBV_WC_SUCCESS);
	said("too short", &b, &a);
	unmake(&a);
	unmake(&b);
	make_connected(&a, &b);
	sge.length = 8;
	sge.lkey = b.mr->lkey ^ 0x5500;
	wr.wr_id = 52;
	CHECK(!ibv_post_recv(b.qp, &wr, &bad));
	post(&a, IBV_WR_SEND, 1, 0, 0);
	expect(&b, 52, IBV_WC_LOC_PROT_ERR);
	said("receive with a wrong lkey", &b, &a);
	unmake(&a);
	unmake(&b);
}

/* Tests datagrams if the device supports them: only the send queue stops. */
static void of_datagrams(void)
{
	static char large[8192];
	static struct end a;
	struct ibv_ah_attr to_self = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 1 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x11111111 };
	struct ibv_mr *mr;
	struct ibv_ah *ah;
	int wrong;

	CHECK((mr = ibv_reg_mr(pd, large, sizeof large, IBV_ACCESS_LOCAL_WRITE)) && (ah = ibv_create_ah(pd, &to_self)));
	for (wrong = 0; wrong < 2; wrong++) {
		struct ibv_sge sge = { (uintptr_t)large, wrong ? 8 : sizeof large, mr->lkey ^ (wrong ? 0x5500 : 0) };
		struct ibv_send_wr wr = { .wr_id = 91 + wrong, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
			.send_flags = IBV_SEND_SIGNALED }, *bad;

		make_of_type(&a, IBV_QPT_UD);
		attr.qp_state = IBV_QPS_INIT;
		CHECK(!ibv_modify_qp(a.qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
		to(&a, IBV_QPS_RTR);
		attr.qp_state = IBV_QPS_RTS;
		CHECK(!ibv_modify_qp(a.qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = a.qp->qp_num;
		wr.wr.ud.remote_qkey = attr.qkey;
		CHECK(!ibv_post_send(a.qp, &wr, &bad));
		expect(&a, 91 + wrong, wrong ? IBV_WC_LOC_PROT_ERR : IBV_WC_LOC_LEN_ERR);
		said(wrong ? "datagram with a wrong lkey" : "too long a datagram", &a, NULL);
		unmake(&a);
	}
	CHECK(!ibv_destroy_ah(ah) && !ibv_dereg_mr(mr));
}

/* Repeats an error on the same queue pair; at most one line per second is logged. */
static void at_most_one_a_second(void)
{
	static struct end a;
	struct ibv_sge wrong = { (uintptr_t)a.buffer, 8, 0 };
	double began = now();
	int times = 0;

	make(&a);
	while (now() - began < 0.5 || times < 2) {
		ready(&a, &a, 7);
		wrong.lkey = a.mr->lkey ^ 0x5500;
		CHECK(!sent(&a, IBV_WR_SEND, 61, wrong, NULL, 0));
		expect(&a, 61, IBV_WC_LOC_PROT_ERR);
		to(&a, IBV_QPS_RESET);
		times++;
	}
	printf("%.0f ", (now() - began) * 1000);
	said("again and again", &a, NULL);
	unmake(&a);
}

/* In an iWARP program the first error is a flush. */
static void of_peers(void)
{
	static struct end a, b;
	struct ibv_wc wc;

	make_connected(&a, &b);
	receive(&a, 71);
	post(&a, IBV_WR_RDMA_WRITE, 72, (uintptr_t)b.buffer, b.mr->rkey ^ 0x5500);
	wc = completion(&a);
	CHECK(wc.wr_id == 72 && wc.status == (acknowledged ? IBV_WC_REM_ACCESS_ERR : IBV_WC_SUCCESS));
	wc = completion(&a);
	CHECK(wc.wr_id == 71 && wc.status == IBV_WC_WR_FLUSH_ERR && wc.vendor_err == 0x11100);
	said("wrong rkey", &a, &b);
	unmake(&a);
	unmake(&b);
}

static void nobody_comes(void)
{
	static struct end a, b;

	make(&a);
	make(&b);
	ready(&a, &b, 7);
	post(&a, IBV_WR_SEND, 81, 0, 0);
	expect(&a, 81, IBV_WC_RETRY_EXC_ERR);
	said("nobody", &a, &b);
	unmake(&a);
	unmake(&b);
}

int main(int argc, char **argv)
{
	acknowledged = argc > 1 && !strcmp(argv[1], "acknowledged");
	open_loopback();
	of_requests();
	of_receives();
	if (acknowledged)
		of_datagrams();
	at_most_one_a_second();
	of_peers();
	nobody_comes();
	close_loopback();
	return 0;
}
