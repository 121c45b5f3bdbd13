/*
 * control CALL SECONDS flooders|arithmetic [pinned]
 *
 * Times a control call of an otherwise idle queue pair, up to the resulting event, while two threads flood a connection each with
 * 64 KiB Writes, or compute. CALL: modify (ibv_modify_qp to RESET), query (ibv_query_qp), resolve
 * (rdma_resolve_addr), connect (rdma_connect to another process). `pinned`: the flooders' completion queues are pinned to another shard
 * than the queue pair's. Prints the percentiles of the calls.
 */
#include "clock.h"
#include "peers.h"
#include "traffic.h"
#include <string.h>

/* Sleep between two calls: a thread that has just woken up is scheduled before those that compute. */
#define PAUSE 0.0002
#define WARM_UP 0.1

static struct samples samples;
static struct rdma_event_channel *events;
static uint16_t peer_port;
static int vector;

/* A queue pair of an id, on a completion queue of its own. */
static void give_queue_pair(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC };

	attr.send_cq = attr.recv_cq = make_queue(id->verbs, 8, NULL, vector);
	attr.cap.max_send_wr = attr.cap.max_recv_wr = 4;
	attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
	if (rdma_create_qp(id, id->pd, &attr))
		fail("rdma_create_qp");
}

static void destroy(struct rdma_cm_id *id)
{
	if (id->qp) {
		struct ibv_cq *cq = id->qp->send_cq;

		rdma_destroy_qp(id);
		if (ibv_destroy_cq(cq))
			fail("ibv_destroy_cq");
	}
	if (rdma_destroy_id(id))
		fail("rdma_destroy_id");
}

/* Accepts all connections, until the process is ended. */
static void serve(int fd)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };

	if (!(events = rdma_create_event_channel()))
		fail("rdma_create_event_channel");
	listen_on_loopback(events, &peer_port);
	tell_port(fd, peer_port);
	for (;;) {
		struct rdma_cm_event *event;
		enum rdma_cm_event_type type;
		struct rdma_cm_id *id;

		if (rdma_get_cm_event(events, &event))
			fail("rdma_get_cm_event");
		type = event->event;
		id = event->id;
		rdma_ack_cm_event(event);
		if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
			give_queue_pair(id);
			if (rdma_accept(id, &param))
				fail("rdma_accept");
		} else if (type == RDMA_CM_EVENT_DISCONNECTED || type == RDMA_CM_EVENT_CONNECT_ERROR) {
			destroy(id);
		}
	}
}

/* The unconnected queue pair of `modify` and `query`. */
static struct rdma_cm_id *idle;

static void modify(enum ibv_qp_state to, int mask)
{
	struct ibv_qp_attr attr = { .qp_state = to, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };

	if (ibv_modify_qp(idle->qp, &attr, IBV_QP_STATE | mask))
		fail("ibv_modify_qp");
}

static double time_modify(void)
{
	double begun;

	modify(IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	begun = now();
	modify(IBV_QPS_RESET, 0);
	return now() - begun;
}

static double time_query(void)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	const double begun = now();

	if (ibv_query_qp(idle->qp, &attr, IBV_QP_STATE, &init))
		fail("ibv_query_qp");
	return now() - begun;
}

static double time_resolve(void)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(peer_port) };
	struct rdma_cm_id *id;
	double begun, took;

	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (rdma_create_id(events, &id, NULL, RDMA_PS_TCP))
		fail("rdma_create_id");
	begun = now();
	if (rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000))
		fail("rdma_resolve_addr");
	expect(events, RDMA_CM_EVENT_ADDR_RESOLVED, NULL);
	took = now() - begun;
	destroy(id);
	return took;
}

static double time_connect(void)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7 };
	struct rdma_cm_id *id = resolve(events, peer_port);
	double begun, took;

	give_queue_pair(id);
	begun = now();
	if (rdma_connect(id, &param))
		fail("rdma_connect");
	expect(events, RDMA_CM_EVENT_ESTABLISHED, NULL);
	took = now() - begun;
	destroy(id);
	return took;
}

static const struct {
	const char *name;
	double (*time)(void);
} calls[] = {
	{ "modify", time_modify }, { "query", time_query }, { "resolve", time_resolve }, { "connect", time_connect },
};

int main(int argc, char **argv)
{
	double (*call)(void) = NULL;
	const double seconds = argc > 3 ? atof(argv[2]) : 0;
	const bool arithmetic = argc > 3 && !strcmp(argv[3], "arithmetic");
	static struct driver drivers[2];
	int vectors[2] = { 0, 0 };
	double begun;

	for (size_t i = 0; argc > 3 && i < sizeof calls / sizeof *calls; i++)
		if (!strcmp(calls[i].name, argv[1]))
			call = calls[i].time;
	if (!call || seconds <= 0 || (!arithmetic && strcmp(argv[3], "flooders"))) {
		fprintf(stderr, "usage: control modify|query|resolve|connect SECONDS flooders|arithmetic [pinned]\n");
		return 2;
	}
	peer_port = start_server(serve);
	if (argc > 4 && !strcmp(argv[4], "pinned"))
		pinned_vectors(vectors);
	vector = vectors[1];
	if (!(events = rdma_create_event_channel()))
		fail("rdma_create_event_channel");
	idle = resolve(events, peer_port);
	give_queue_pair(idle);
	modify(IBV_QPS_RESET, 0);
	for (int i = 0; i < 2; i++) {
		drivers[i].pattern = find_pattern("write-64K");
		drivers[i].vector = vectors[0];
		drivers[i].arithmetic = arithmetic;
		start_driver(&drivers[i]);
	}
	sleep_for(WARM_UP);
	for (begun = now(); now() < begun + seconds; sleep_for(PAUSE))
		add_sample(&samples, call());
	for (int i = 0; i < 2; i++)
		stop_driver(&drivers[i]);
	sort_samples(&samples);
	printf("{\"calls\": %zu, \"p50_us\": %f, \"p99_us\": %f, \"vectors\": [%d, %d]}\n", samples.count,
	       percentile(&samples, 0.5), percentile(&samples, 0.99), vectors[0], vectors[1]);
	return EXIT_SUCCESS;
}
