#include "ends.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void fail(const char *what)
{
	perror(what);
	exit(EXIT_FAILURE);
}

static struct sockaddr_in loopback(uint16_t port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return address;
}

static struct rdma_cm_id *new_id(struct rdma_event_channel *events)
{
	struct rdma_cm_id *id;

	if (rdma_create_id(events, &id, NULL, RDMA_PS_TCP))
		fail("rdma_create_id");
	return id;
}

struct rdma_cm_id *listen_on_loopback(struct rdma_event_channel *events, uint16_t *port)
{
	struct rdma_cm_id *id = new_id(events);
	struct sockaddr_in any = loopback(0);

	if (rdma_bind_addr(id, (struct sockaddr *)&any))
		fail("rdma_bind_addr");
	if (rdma_listen(id, 64))
		fail("rdma_listen");
	*port = ntohs(rdma_get_src_port(id));
	return id;
}

struct rdma_cm_id *expect(struct rdma_event_channel *events, enum rdma_cm_event_type type, struct remote *peer)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	if (rdma_get_cm_event(events, &event))
		fail("rdma_get_cm_event");
	if (event->event != type) {
		fprintf(stderr, "expected %s, got %s, status %d\n", rdma_event_str(type), rdma_event_str(event->event),
			event->status);
		exit(EXIT_FAILURE);
	}
	if (peer) {
		if (event->param.conn.private_data_len < sizeof *peer) {
			fprintf(stderr, "%s without private data\n", rdma_event_str(type));
			exit(EXIT_FAILURE);
		}
		memcpy(peer, event->param.conn.private_data, sizeof *peer);
	}
	id = event->id;
	rdma_ack_cm_event(event);
	return id;
}

struct rdma_cm_id *resolve(struct rdma_event_channel *events, uint16_t port)
{
	struct rdma_cm_id *id = new_id(events);
	struct sockaddr_in to = loopback(port);

	if (rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000))
		fail("rdma_resolve_addr");
	expect(events, RDMA_CM_EVENT_ADDR_RESOLVED, NULL);
	if (rdma_resolve_route(id, 2000))
		fail("rdma_resolve_route");
	expect(events, RDMA_CM_EVENT_ROUTE_RESOLVED, NULL);
	return id;
}

struct ibv_cq *make_queue(struct ibv_context *verbs, unsigned entries, struct ibv_comp_channel *channel, int vector)
{
	struct ibv_cq *cq = ibv_create_cq(verbs, (int)entries, NULL, channel, vector);

	if (!cq)
		fail("ibv_create_cq");
	if (channel && ibv_req_notify_cq(cq, 0))
		fail("ibv_req_notify_cq");
	return cq;
}

void end_create(struct end *end, struct rdma_cm_id *id, struct queues cqs, const struct setup *setup)
{
	const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	struct ibv_qp_init_attr attr = { .send_cq = cqs.send, .recv_cq = cqs.recv, .qp_type = IBV_QPT_RC };
	void *memory = aligned_alloc(4096, (setup->memory + 4095) / 4096 * 4096);

	if (!memory)
		fail("aligned_alloc");
	memset(memory, 0x5A, setup->memory);
	*end = (struct end){ .id = id, .cqs = cqs, .inline_bytes = setup->inline_bytes };
	attr.cap.max_send_wr = attr.cap.max_recv_wr = 2 * setup->window;
	attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
	attr.cap.max_inline_data = setup->inline_bytes;
	if (setup->srq) {
		struct ibv_srq_init_attr srq = { .attr = { .max_wr = 2 * setup->window, .max_sge = 1 } };

		/* NULL: the id's own protection domain, as for the queue pair. */
		if (!(end->srq = ibv_create_srq(id->pd, &srq)))
			fail("ibv_create_srq");
		attr.srq = end->srq;
	}
	if (rdma_create_qp(id, id->pd, &attr))
		fail("rdma_create_qp");
	if (!(end->mr = ibv_reg_mr(id->pd, memory, setup->memory, access)))
		fail("ibv_reg_mr");
}

static struct rdma_conn_param parameters(const struct remote *own)
{
	return (struct rdma_conn_param){
		.private_data = own, .private_data_len = sizeof *own,
		.responder_resources = 1, .initiator_depth = 1, .retry_count = 7,
	};
}

static struct remote region(const struct end *end)
{
	return (struct remote){ .addr = (uintptr_t)end->mr->addr, .rkey = end->mr->rkey };
}

void end_connect(struct end *end)
{
	struct remote own = region(end);
	struct rdma_conn_param param = parameters(&own);

	if (rdma_connect(end->id, &param))
		fail("rdma_connect");
}

void end_accept(struct end *end)
{
	struct remote own = region(end);
	struct rdma_conn_param param = parameters(&own);

	if (rdma_accept(end->id, &param))
		fail("rdma_accept");
}

void pair_connect(struct pair *pair, const struct setup *setup,
		  struct queues (*queues)(struct ibv_context *verbs, void *argument), void *argument)
{
	struct rdma_cm_id *listener, *a, *b;
	uint16_t port;

	if (!(pair->events = rdma_create_event_channel()))
		fail("rdma_create_event_channel");
	listener = listen_on_loopback(pair->events, &port);
	a = resolve(pair->events, port);
	end_create(&pair->a, a, queues(a->verbs, argument), setup);
	end_connect(&pair->a);
	b = expect(pair->events, RDMA_CM_EVENT_CONNECT_REQUEST, NULL);
	end_create(&pair->b, b, queues(b->verbs, argument), setup);
	pair->b_region = region(&pair->b);
	end_accept(&pair->b);
	expect(pair->events, RDMA_CM_EVENT_ESTABLISHED, NULL);
	expect(pair->events, RDMA_CM_EVENT_ESTABLISHED, NULL);
	if (rdma_destroy_id(listener))
		fail("rdma_destroy_id");
}

static struct ibv_sge front(const struct end *end, unsigned bytes)
{
	return (struct ibv_sge){ .addr = (uintptr_t)end->mr->addr, .length = bytes, .lkey = end->mr->lkey };
}

void post_send_chain(struct end *end, unsigned bytes, unsigned count)
{
	const unsigned flags = IBV_SEND_SIGNALED | (bytes <= end->inline_bytes ? IBV_SEND_INLINE : 0);
	struct ibv_sge sge = front(end, bytes);
	struct ibv_send_wr wrs[64], *bad;

	for (unsigned i = 0; i < count; i++)
		wrs[i] = (struct ibv_send_wr){
			.wr_id = i, .next = i + 1 < count ? &wrs[i + 1] : NULL, .sg_list = &sge, .num_sge = 1,
			.opcode = IBV_WR_SEND, .send_flags = flags,
		};
	if (ibv_post_send(end->id->qp, wrs, &bad))
		fail("ibv_post_send");
}

void post_send(struct end *end, unsigned bytes)
{
	post_send_chain(end, bytes, 1);
}

void post_write(struct end *end, unsigned bytes, struct remote to, uint64_t wr_id)
{
	struct ibv_sge sge = front(end, bytes);
	struct ibv_send_wr wr = {
		.wr_id = wr_id, .sg_list = &sge, .num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = to.addr, .rkey = to.rkey },
	}, *bad;

	if (ibv_post_send(end->id->qp, &wr, &bad))
		fail("ibv_post_send");
}

void post_recv(struct end *end, unsigned bytes)
{
	struct ibv_sge sge = front(end, bytes);
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	if (end->srq ? ibv_post_srq_recv(end->srq, &wr, &bad) : ibv_post_recv(end->id->qp, &wr, &bad))
		fail("ibv_post_recv");
}

unsigned take(struct ibv_cq *cq, struct ibv_wc wcs[BATCH])
{
	int got = ibv_poll_cq(cq, BATCH, wcs);

	if (got < 0)
		fail("ibv_poll_cq");
	for (int i = 0; i < got; i++)
		if (wcs[i].status != IBV_WC_SUCCESS) {
			fprintf(stderr, "a request ended with %s\n", ibv_wc_status_str(wcs[i].status));
			exit(EXIT_FAILURE);
		}
	return (unsigned)got;
}

unsigned take_counting(struct ibv_cq *cq, uint64_t *sent, uint64_t *received)
{
	struct ibv_wc wcs[BATCH];
	unsigned got = take(cq, wcs);

	for (unsigned i = 0; i < got; i++)
		++*(wcs[i].opcode & IBV_WC_RECV ? received : sent);
	return got;
}

void wait_event(struct ibv_comp_channel *channel)
{
	struct ibv_cq *cq;
	void *context;

	if (ibv_get_cq_event(channel, &cq, &context))
		fail("ibv_get_cq_event");
	ibv_ack_cq_events(cq, 1);
	if (ibv_req_notify_cq(cq, 0))
		fail("ibv_req_notify_cq");
}
