/* A Send that finds no receive for longer than the libraries wait by themselves. Arguments: a port, and the rnr_retry_count of both ends. With 7
 * the receive is posted two seconds later and gets it; with 0 the connection has ended by then. */
#include "check.h"
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

enum { LEN = 32 };

static struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
static struct rdma_cm_id *listener;
static int receives;

static struct rdma_addrinfo *address(const char *port, int flags)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP, .ai_flags = flags }, *found;

	CHECK(!rdma_getaddrinfo("127.0.0.1", port, &hints, &found));
	return found;
}

static struct rdma_cm_id *endpoint(const char *port, int flags)
{
	struct ibv_qp_init_attr attr = { .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
					 .sq_sig_all = 1 };
	struct rdma_addrinfo *to = address(port, flags);
	struct rdma_cm_id *id;

	CHECK(!rdma_create_ep(&id, to, NULL, &attr));
	rdma_freeaddrinfo(to);
	return id;
}

static void *serve(void *nothing)
{
	static char buffer[LEN];
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	struct ibv_wc wc;

	CHECK(!rdma_get_request(listener, &id));
	CHECK(mr = rdma_reg_msgs(id, buffer, LEN));
	CHECK(!rdma_accept(id, &param));
	sleep(2);
	if (!rdma_post_recv(id, NULL, buffer, LEN, mr) && rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS)
		receives = wc.byte_len == LEN && !strcmp(buffer, "late");
	return nothing;
}

int main(int argc, char **argv)
{
	static char buffer[LEN] = "late";
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	struct ibv_wc wc;
	pthread_t thread;

	CHECK(argc == 3);
	param.rnr_retry_count = (unsigned char)atoi(argv[2]);
	listener = endpoint(argv[1], RAI_PASSIVE);
	CHECK(!rdma_listen(listener, 1));
	CHECK(!pthread_create(&thread, NULL, serve, NULL));
	id = endpoint(argv[1], 0);
	CHECK(mr = rdma_reg_msgs(id, buffer, LEN));
	CHECK(!rdma_connect(id, &param));
	CHECK(!rdma_post_send(id, NULL, buffer, LEN, mr, 0));
	/* In persona roce it completes when it is received. */
	CHECK(rdma_get_send_comp(id, &wc) == 1);
	CHECK(!pthread_join(thread, NULL));
	puts(receives ? "received" : "not received");
	return 0;
}
