/*
 * load ping-pong|send-64|send-64K SECONDS COUNT [pinned] [asleep]
 *
 * Runs COUNT threads, each with both ends of a connection and its own completion queue. `asleep`: each waits on a completion channel.
 * Prints the rounds (round trips or messages) per second of all threads together.
 *
 * load modify|query|resolve|connect SECONDS flooders|arithmetic [pinned]
 *
 * Times a control call of an otherwise idle queue pair, up to the resulting event, while two threads flood a connection each with 64 KiB
 * Writes, or compute: ibv_modify_qp to RESET, ibv_query_qp, rdma_resolve_addr, rdma_connect to another process. Prints percentiles.
 *
 * load idle SECONDS
 *
 * Polls the completion queue of an idle queue pair while another thread floods a connection with 64 KiB Writes. To be run under strace:
 * what this thread sends or receives between its two calls of getppid(2) belongs to another queue pair. Prints the number of the thread.
 *
 * `pinned` (always for `idle`): completion vectors of two queues pin different shards where the device has them. Otherwise vector 0 lets
 * the library choose.
 */
#include "ends.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOST 16
/* Seconds of warm-up, in which the buffers of TCP grow and the library detects that it is polled. */
#define WARM_UP 0.15
/* Sleep between two control calls. A thread that has just woken up is scheduled before threads that compute. */
#define PAUSE 0.0002

/* Traffic of a thread. A window of 1 is a ping-pong. */
struct pattern {
	const char *name;
	unsigned bytes, window;
	bool write;
};

static const struct pattern patterns[] = {
	{ .name = "ping-pong", .bytes = 64, .window = 1 },
	{ .name = "send-64", .bytes = 64, .window = 32 },
	{ .name = "send-64K", .bytes = 1 << 16, .window = 32 },
}, flood = { .bytes = 1 << 16, .window = 32, .write = true };

/* Thread that drives both ends of a connection. */
struct driver {
	const struct pattern *pattern;
	int vector;
	bool asleep, arithmetic;

	pthread_t thread;
	struct pair pair;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	atomic_bool ready, stop;
	/* This field has its own cache line. */
	_Alignas(128) atomic_ulong rounds;
	char end_of_line[128 - sizeof(atomic_ulong)];
};

static struct driver drivers[MOST];
/* Completion vectors of the queues with traffic, and of the other ones. */
static int vectors[2];

static unsigned wait_some(struct driver *driver, uint64_t *sent, uint64_t *received)
{
	unsigned got = take_counting(driver->cq, sent, received);

	if (!got && driver->asleep) {
		take_event(driver->channel);
		got = take_counting(driver->cq, sent, received);
	}
	return got;
}

static void count_rounds(struct driver *driver, unsigned long rounds)
{
	const unsigned long before = atomic_load_explicit(&driver->rounds, memory_order_relaxed);

	atomic_store_explicit(&driver->rounds, before + rounds, memory_order_relaxed);
}

static void ping_pong(struct driver *driver)
{
	struct end *ends[] = { &driver->pair.a, &driver->pair.b };

	for (int i = 0; i < 2; i++) {
		uint64_t sent = 0, received = 0;

		post_recv(ends[!i], driver->pattern->bytes);
		post_send(ends[i], driver->pattern->bytes);
		while (!sent || !received)
			wait_some(driver, &sent, &received);
	}
	count_rounds(driver, 1);
}

static void post_one(struct driver *driver)
{
	if (driver->pattern->write)
		post_write(&driver->pair.a, driver->pattern->bytes, driver->pair.b_region, 0);
	else
		post_send(&driver->pair.a, driver->pattern->bytes);
}

/* Keeps the window full until it is stopped. */
static void stream(struct driver *driver)
{
	const struct pattern *pattern = driver->pattern;

	for (unsigned i = 0; !pattern->write && i < 2 * pattern->window; i++)
		post_recv(&driver->pair.b, pattern->bytes);
	for (unsigned i = 0; i < pattern->window; i++)
		post_one(driver);
	while (!atomic_load_explicit(&driver->stop, memory_order_relaxed)) {
		uint64_t sent = 0, received = 0;

		wait_some(driver, &sent, &received);
		for (uint64_t i = 0; i < received; i++)
			post_recv(&driver->pair.b, pattern->bytes);
		for (uint64_t i = 0; i < sent; i++)
			post_one(driver);
		count_rounds(driver, pattern->write ? sent : received);
	}
}

static void compute(struct driver *driver)
{
	volatile uint64_t state = 1;

	while (!atomic_load_explicit(&driver->stop, memory_order_relaxed))
		for (int i = 0; i < 1000; i++)
			state = state * 6364136223846793005u + 1442695040888963407u;
}

static struct queues own_queue(struct ibv_context *verbs, void *argument)
{
	struct driver *driver = argument;

	if (driver->asleep && !driver->channel && !(driver->channel = ibv_create_comp_channel(verbs)))
		fail("ibv_create_comp_channel");
	if (!driver->cq)
		driver->cq = make_queue(verbs, 1024, driver->channel, driver->vector);
	return (struct queues){ driver->cq, driver->cq };
}

static void connect_driver(struct driver *driver)
{
	struct setup setup = { .window = 4 * driver->pattern->window, .memory = driver->pattern->bytes };

	pair_connect(&driver->pair, &setup, own_queue, driver);
}

static void *drive(void *argument)
{
	struct driver *driver = argument;

	connect_driver(driver);
	atomic_store(&driver->ready, true);
	if (driver->arithmetic)
		compute(driver);
	else if (driver->pattern->window > 1)
		stream(driver);
	else
		while (!atomic_load_explicit(&driver->stop, memory_order_relaxed))
			ping_pong(driver);
	return NULL;
}

/* Starts a thread and waits until its ends are connected. */
static void start_driver(struct driver *driver)
{
	if (pthread_create(&driver->thread, NULL, drive, driver))
		fail("pthread_create");
	while (!atomic_load(&driver->ready))
		sleep_for(0.001);
}

static void stop_drivers(int count)
{
	for (int i = 0; i < count; i++) {
		atomic_store(&drivers[i].stop, true);
		pthread_join(drivers[i].thread, NULL);
	}
}

static void pin_vectors(void)
{
	struct ibv_context **contexts = rdma_get_devices(NULL);
	int count;

	if (!contexts || !contexts[0])
		fail("rdma_get_devices");
	count = contexts[0]->num_comp_vectors;
	rdma_free_devices(contexts);
	vectors[0] = count > 1 ? 1 : 0;
	vectors[1] = count > 2 ? 2 : 0;
}

static unsigned long sum(int count)
{
	unsigned long rounds = 0;

	for (int i = 0; i < count; i++)
		rounds += atomic_load_explicit(&drivers[i].rounds, memory_order_relaxed);
	return rounds;
}

/* Measures the rounds per second of running drivers, and stops them. */
static double measure(int count, double seconds)
{
	unsigned long before;
	double begun, rate;

	sleep_for(WARM_UP);
	begun = now();
	before = sum(count);
	sleep_for(seconds);
	rate = (double)(sum(count) - before) / (now() - begun);
	stop_drivers(count);
	return rate;
}

static void threads(const struct pattern *pattern, double seconds, int count, bool asleep)
{
	for (int i = 0; i < count; i++) {
		drivers[i] = (struct driver){ .pattern = pattern, .vector = vectors[i % 2], .asleep = asleep };
		start_driver(&drivers[i]);
	}
	printf("{\"rate\": %f", measure(count, seconds));
}

static struct rdma_event_channel *events;
static uint16_t peer_port;
/* Queue pair of `modify` and `query`. */
static struct rdma_cm_id *unconnected;

/* Creates a queue pair of an id, with its own completion queue. */
static void give_queue_pair(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC };

	attr.send_cq = attr.recv_cq = make_queue(id->verbs, 8, NULL, vectors[1]);
	attr.cap.max_send_wr = attr.cap.max_recv_wr = 4;
	attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
	checked(rdma_create_qp(id, id->pd, &attr), "rdma_create_qp");
}

static void destroy(struct rdma_cm_id *id)
{
	if (id->qp) {
		struct ibv_cq *cq = id->qp->send_cq;

		rdma_destroy_qp(id);
		if (ibv_destroy_cq(cq))
			fail("ibv_destroy_cq");
	}
	checked(rdma_destroy_id(id), "rdma_destroy_id");
}

/* Accepts all connections until the process is killed. */
static void serve(int fd)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };

	events = new_events();
	listen_on_loopback(events, &peer_port);
	tell_port(fd, peer_port);
	for (;;) {
		struct rdma_cm_event *event;
		enum rdma_cm_event_type type;
		struct rdma_cm_id *id;

		checked(rdma_get_cm_event(events, &event), "rdma_get_cm_event");
		type = event->event;
		id = event->id;
		rdma_ack_cm_event(event);
		if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
			give_queue_pair(id);
			checked(rdma_accept(id, &param), "rdma_accept");
		} else if (type == RDMA_CM_EVENT_DISCONNECTED || type == RDMA_CM_EVENT_CONNECT_ERROR) {
			destroy(id);
		}
	}
}

static void modify(enum ibv_qp_state to, int mask)
{
	struct ibv_qp_attr attr = { .qp_state = to, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };

	if (ibv_modify_qp(unconnected->qp, &attr, IBV_QP_STATE | mask))
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

	if (ibv_query_qp(unconnected->qp, &attr, IBV_QP_STATE, &init))
		fail("ibv_query_qp");
	return now() - begun;
}

static double time_resolve(void)
{
	struct sockaddr_in to = loopback(peer_port);
	struct rdma_cm_id *id;
	double begun, took;

	checked(rdma_create_id(events, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
	begun = now();
	checked(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000), "rdma_resolve_addr");
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
	checked(rdma_connect(id, &param), "rdma_connect");
	expect(events, RDMA_CM_EVENT_ESTABLISHED, NULL);
	took = now() - begun;
	destroy(id);
	return took;
}

static void control(double (*call)(void), double seconds, bool arithmetic)
{
	events = new_events();
	unconnected = resolve(events, peer_port);
	give_queue_pair(unconnected);
	modify(IBV_QPS_RESET, 0);
	for (int i = 0; i < 2; i++) {
		drivers[i] = (struct driver){ .pattern = &flood, .vector = vectors[0], .arithmetic = arithmetic };
		start_driver(&drivers[i]);
	}
	sleep_for(WARM_UP);
	for (double begun = now(); now() < begun + seconds; sleep_for(PAUSE))
		add_sample(call());
	stop_drivers(2);
	printf("{");
	printf("\"calls\": %zu", print_percentiles());
}

static void idle(double seconds)
{
	struct driver *poller = &drivers[1];
	unsigned long before;
	uint64_t completions = 0;
	double begun, rate;

	*poller = (struct driver){ .pattern = &patterns[0], .vector = vectors[1] };
	connect_driver(poller);
	drivers[0] = (struct driver){ .pattern = &flood, .vector = vectors[0] };
	start_driver(&drivers[0]);
	/* The connections of both threads are established. */
	for (begun = now(); now() < begun + 2 * WARM_UP;)
		take_counting(poller->cq, &completions, &completions);
	getppid();
	begun = now();
	before = sum(1);
	while (now() < begun + seconds)
		take_counting(poller->cq, &completions, &completions);
	rate = (double)(sum(1) - before) / (now() - begun);
	getppid();
	stop_drivers(1);
	if (completions)
		fail("an idle queue pair had completions");
	printf("{\"thread\": %ld, \"rate\": %f", syscall(SYS_gettid), rate);
}

static const struct {
	const char *name;
	double (*time)(void);
} calls[] = {
	{ "modify", time_modify }, { "query", time_query }, { "resolve", time_resolve }, { "connect", time_connect },
};

static bool has(char **argv, const char *word)
{
	while (*argv && strcmp(*argv, word))
		argv++;
	return *argv;
}

int main(int argc, char **argv)
{
	const double seconds = argc > 2 ? atof(argv[2]) : 0;
	const int count = argc > 3 ? atoi(argv[3]) : 1;
	const bool is_idle = has(argv, "idle");

	if (seconds <= 0 || count > MOST) {
		fprintf(stderr, "usage: see the comment at the beginning of load.c\n");
		return 2;
	}
	/* The process of the peer must be started before this one uses the library. */
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
		if (!strcmp(calls[i].name, argv[1]))
			peer_port = start_server(serve);
	if (is_idle || has(argv, "pinned"))
		pin_vectors();
	if (is_idle)
		idle(seconds);
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
		if (!strcmp(calls[i].name, argv[1]))
			control(calls[i].time, seconds, has(argv, "arithmetic"));
	for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
		if (!strcmp(patterns[i].name, argv[1]))
			threads(&patterns[i], seconds, count, has(argv, "asleep"));
	printf(", \"vectors\": [%d, %d]}\n", vectors[0], vectors[1]);
	return EXIT_SUCCESS;
}
