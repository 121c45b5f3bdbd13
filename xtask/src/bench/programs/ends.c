#include "ends.h"
#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

void fail(const char *what)
{
	perror(what);
	exit(EXIT_FAILURE);
}

int checked(int result, const char *what)
{
	if (result < 0)
		fail(what);
	return result;
}

struct sockaddr_in loopback(uint16_t port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return address;
}

struct rdma_event_channel *new_events(void)
{
	struct rdma_event_channel *events = rdma_create_event_channel();

	if (!events)
		fail("rdma_create_event_channel");
	return events;
}

static struct rdma_cm_id *new_id(struct rdma_event_channel *events)
{
	struct rdma_cm_id *id;

	checked(rdma_create_id(events, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
	return id;
}

struct rdma_cm_id *listen_on_loopback(struct rdma_event_channel *events, uint16_t *port)
{
	struct rdma_cm_id *id = new_id(events);
	struct sockaddr_in any = loopback(0);

	checked(rdma_bind_addr(id, (struct sockaddr *)&any), "rdma_bind_addr");
	checked(rdma_listen(id, 64), "rdma_listen");
	*port = ntohs(rdma_get_src_port(id));
	return id;
}

struct rdma_cm_id *expect(struct rdma_event_channel *events, enum rdma_cm_event_type type, struct remote *peer)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	checked(rdma_get_cm_event(events, &event), "rdma_get_cm_event");
	if (event->event != type || (peer && event->param.conn.private_data_len < sizeof *peer)) {
		fprintf(stderr, "expected %s, got %s, status %d, %d bytes of private data\n", rdma_event_str(type),
			rdma_event_str(event->event), event->status, event->param.conn.private_data_len);
		exit(EXIT_FAILURE);
	}
	if (peer)
		memcpy(peer, event->param.conn.private_data, sizeof *peer);
	id = event->id;
	rdma_ack_cm_event(event);
	return id;
}

struct rdma_cm_id *resolve(struct rdma_event_channel *events, uint16_t port)
{
	struct rdma_cm_id *id = new_id(events);
	struct sockaddr_in to = loopback(port);

	checked(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000), "rdma_resolve_addr");
	expect(events, RDMA_CM_EVENT_ADDR_RESOLVED, NULL);
	checked(rdma_resolve_route(id, 2000), "rdma_resolve_route");
	expect(events, RDMA_CM_EVENT_ROUTE_RESOLVED, NULL);
	return id;
}

struct ibv_cq *make_queue(struct ibv_context *verbs, unsigned entries, struct ibv_comp_channel *channel, int vector)
{
	struct ibv_cq *cq = ibv_create_cq(verbs, (int)entries, NULL, channel, vector);

	if (!cq || (channel && ibv_req_notify_cq(cq, 0)))
		fail("a completion queue");
	return cq;
}

void end_create(struct end *end, struct rdma_cm_id *id, struct queues cqs, const struct setup *setup)
{
	const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
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

		if (!(end->srq = ibv_create_srq(id->pd, &srq)))
			fail("ibv_create_srq");
		attr.srq = end->srq;
	}
	checked(rdma_create_qp(id, id->pd, &attr), "rdma_create_qp");
	if (!(end->mr = ibv_reg_mr(id->pd, memory, setup->memory, access)))
		fail("ibv_reg_mr");
}

static struct remote region(const struct end *end)
{
	return (struct remote){ .addr = (uintptr_t)end->mr->addr, .rkey = end->mr->rkey };
}

static void establish(struct end *end, int (*call)(struct rdma_cm_id *id, struct rdma_conn_param *param), const char *name)
{
	struct remote own = region(end);
	struct rdma_conn_param param = {
		.private_data = &own, .private_data_len = sizeof own,
		.responder_resources = 1, .initiator_depth = 1, .retry_count = 7,
	};

	checked(call(end->id, &param), name);
}

void end_connect(struct end *end)
{
	establish(end, rdma_connect, "rdma_connect");
}

void end_accept(struct end *end)
{
	establish(end, rdma_accept, "rdma_accept");
}

void pair_connect(struct pair *pair, const struct setup *setup,
		  struct queues (*queues)(struct ibv_context *verbs, void *argument), void *argument)
{
	struct rdma_cm_id *listener, *a, *b;
	uint16_t port;

	pair->events = new_events();
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
	checked(rdma_destroy_id(listener), "rdma_destroy_id");
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

static void post_rdma(struct end *end, enum ibv_wr_opcode opcode, unsigned bytes, struct remote remote, uint64_t wr_id)
{
	struct ibv_sge sge = front(end, bytes);
	struct ibv_send_wr wr = {
		.wr_id = wr_id, .sg_list = &sge, .num_sge = 1,
		.opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = remote.addr, .rkey = remote.rkey },
	}, *bad;

	if (ibv_post_send(end->id->qp, &wr, &bad))
		fail("ibv_post_send");
}

void post_write(struct end *end, unsigned bytes, struct remote to, uint64_t wr_id)
{
	post_rdma(end, IBV_WR_RDMA_WRITE, bytes, to, wr_id);
}

void post_read(struct end *end, unsigned bytes, struct remote from)
{
	post_rdma(end, IBV_WR_RDMA_READ, bytes, from, 0);
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

bool take_event(struct ibv_comp_channel *channel)
{
	struct ibv_cq *cq;
	void *context;

	if (ibv_get_cq_event(channel, &cq, &context)) {
		if (errno != EAGAIN)
			fail("ibv_get_cq_event");
		return false;
	}
	ibv_ack_cq_events(cq, 1);
	if (ibv_req_notify_cq(cq, 0))
		fail("ibv_req_notify_cq");
	return true;
}

double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

void sleep_for(double seconds)
{
	struct timespec time = { .tv_sec = (time_t)seconds };

	time.tv_nsec = (long)((seconds - (double)time.tv_sec) * 1e9);
	nanosleep(&time, NULL);
}

/* Maximum number of durations. Further ones are ignored. */
static double samples[1 << 20];
static size_t count;

void add_sample(double seconds)
{
	if (count < sizeof samples / sizeof *samples)
		samples[count++] = seconds;
}

static int by_value(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

size_t print_percentiles(void)
{
	qsort(samples, count, sizeof *samples, by_value);
	for (int part = 50; part <= 99; part += 49)
		printf("\"p%d_us\": %f, ", part, count ? samples[(size_t)((double)(count - 1) * part / 100)] * 1e6 : 0);
	return count;
}

void start_process(void (*what)(int fd), int fd)
{
	if (checked(fork(), "fork"))
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	what(fd);
	exit(EXIT_FAILURE);
}

uint16_t start_server(void (*server)(int fd))
{
	uint16_t port;
	int ends[2];

	checked(pipe(ends), "pipe");
	start_process(server, ends[1]);
	close(ends[1]);
	if (read(ends[0], &port, sizeof port) != sizeof port)
		fail("the port of the server");
	close(ends[0]);
	return port;
}

void tell_port(int fd, uint16_t port)
{
	if (write(fd, &port, sizeof port) != sizeof port)
		fail("writing the port");
	close(fd);
}
