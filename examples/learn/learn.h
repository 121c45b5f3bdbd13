/* Common part of all exercises: main() connects a client and a server, and calls the functions that the exercise defines. */
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Rights of the peer on `memory`. */
#ifndef RIGHTS
#define RIGHTS IBV_ACCESS_LOCAL_WRITE
#endif

struct end {
	struct rdma_cm_id *id; /* with qp, send_cq, recv_cq, recv_cq_channel */
	struct ibv_mr *mr; /* the region of `memory` */
	uint64_t peer_address; /* at the client: address of the server's `memory` */
	uint32_t peer_key; /* its key */
	struct ibv_ah *group; /* the multicast group, in exercise 5 */
	uint32_t group_qpn, group_qkey;
	char memory[4096];
};

/* Called at both ends before they are connected. */
static void prepare(struct end *end);
/* Called after they are connected. The client disconnects when its function returns. */
static void client(struct end *end);
static void server(struct end *end);

static int polls;

static inline void need(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

/* Returns an element for a part of `memory`. */
static inline struct ibv_sge part(struct end *end, size_t offset, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)end->memory + offset, length, end->mr->lkey };
	return sge;
}

static inline int count_poll(struct ibv_cq *cq, int entries, struct ibv_wc *wc)
{
	polls++;
	return ibv_poll_cq(cq, entries, wc);
}
#define ibv_poll_cq count_poll

/* Polls until a request has completed. */
static inline enum ibv_wc_status completed(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int found;

	while (!(found = ibv_poll_cq(cq, 1, &wc)))
		;
	need(found > 0, "ibv_poll_cq");
	if (wc.status)
		fprintf(stderr, "request %d: %s\n", (int)wc.wr_id, ibv_wc_status_str(wc.status));
	return wc.status;
}

static struct end end;
static struct ibv_qp_init_attr attributes = {
	.qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
};

static inline void begin(struct rdma_cm_id *id)
{
	end.id = id;
	end.mr = ibv_reg_mr(id->pd, end.memory, sizeof end.memory, RIGHTS);
	need(!!end.mr, "ibv_reg_mr");
	prepare(&end);
}

static inline void join(const char *group, int is_server)
{
	struct sockaddr_in own = { .sin_family = AF_INET }, to = { .sin_family = AF_INET };
	struct rdma_ud_param *ud;
	struct rdma_cm_id *id;

	own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	inet_pton(AF_INET, group, &to.sin_addr);
	attributes.qp_type = IBV_QPT_UD;
	need(!rdma_create_id(NULL, &id, NULL, RDMA_PS_UDP), "rdma_create_id");
	need(!rdma_resolve_addr(id, (struct sockaddr *)&own, (struct sockaddr *)&to, 2000), "rdma_resolve_addr");
	need(!rdma_create_qp(id, NULL, &attributes), "rdma_create_qp");
	begin(id);
	need(!rdma_join_multicast(id, (struct sockaddr *)&to, NULL), "rdma_join_multicast");
	ud = &id->event->param.ud;
	end.group_qpn = ud->qp_num;
	end.group_qkey = ud->qkey;
	need(!!(end.group = ibv_create_ah(id->pd, &ud->ah_attr)), "ibv_create_ah");
	if (is_server)
		puts("port 0");
	(is_server ? server : client)(&end);
}

int main(int argc, char **argv)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *address;
	struct { uint64_t address; uint32_t key; } name = { 0 };
	struct rdma_conn_param param = { .responder_resources = 4, .initiator_depth = 4 };
	int is_server = argc == 2 && !strcmp(argv[1], "server");
	struct rdma_cm_id *id, *listener;
	struct rdma_cm_event *event;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!is_server && argc != 3) {
		fprintf(stderr, "usage: %s server, or %s client PORT\n", argv[0], argv[0]);
		return 2;
	}
#ifdef GROUP
	join(GROUP, is_server);
	return 0;
#endif
	hints.ai_flags = is_server ? RAI_PASSIVE : 0;
	need(!rdma_getaddrinfo("127.0.0.1", is_server ? "0" : argv[2], &hints, &address), "rdma_getaddrinfo");
	if (is_server) {
		need(!rdma_create_ep(&listener, address, NULL, &attributes), "rdma_create_ep");
		need(!rdma_listen(listener, 1), "rdma_listen");
		printf("port %d\n", ntohs(rdma_get_src_port(listener)));
		need(!rdma_get_request(listener, &id), "rdma_get_request");
		begin(id);
		name.address = (uintptr_t)end.memory;
		name.key = end.mr->rkey;
		param.private_data = &name;
		param.private_data_len = sizeof name;
		need(!rdma_accept(id, &param), "rdma_accept");
		server(&end);
		/* This loop runs until the client disconnects. */
		need(!rdma_get_cm_event(id->channel, &event), "rdma_get_cm_event");
	} else {
		need(!rdma_create_ep(&id, address, NULL, &attributes), "rdma_create_ep");
		begin(id);
		need(!rdma_connect(id, &param), "rdma_connect");
		memcpy(&name, id->event->param.conn.private_data, sizeof name);
		end.peer_address = name.address;
		end.peer_key = name.key;
		client(&end);
		rdma_disconnect(id);
	}
	printf("polls %d\n", polls);
	return 0;
}
