/* Tests events about the link, the addresses and the removal of a device. The program runs in a
 * network namespace of its own, where ip(8) changes the interface veth0 with the address
 * 10.77.0.1 and finally deletes it. */
#include "cm.h"
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/rdma_verbs.h>
#include <sys/wait.h>

#define UNREAD_AT_MOST 64

static const struct sockaddr_in here = { .sin_family = AF_INET, .sin_addr.s_addr = 0x01004d0a };

static struct rdma_event_channel *channel;

static void shell(const char *command)
{
	if (system(command)) {
		fprintf(stderr, "failed: %s\n", command);
		_exit(EXIT_FAILURE);
	}
}

static int readable(int fd, int milliseconds)
{
	struct pollfd polled = { .fd = fd, .events = POLLIN };

	return poll(&polled, 1, milliseconds) == 1;
}

static struct ibv_context *open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = NULL;

	CHECK(list);
	for (int i = 0; list[i] && !context; i++)
		if (!strcmp(ibv_get_device_name(list[i]), "uiw_veth0"))
			context = ibv_open_device(list[i]);
	ibv_free_device_list(list);
	CHECK(context && !fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) | O_NONBLOCK));
	return context;
}

static void await_async(struct ibv_context *context, enum ibv_event_type expected)
{
	struct ibv_async_event event;

	CHECK(readable(context->async_fd, 20000) && !ibv_get_async_event(context, &event));
	if (event.event_type != expected || event.element.port_num != 1) {
		fprintf(stderr, "expected %s, got %s\n", ibv_event_type_str(expected), ibv_event_type_str(event.event_type));
		_exit(EXIT_FAILURE);
	}
	ibv_ack_async_event(&event);
}

/* Checks that no further event has arrived or arrives soon. */
static void is_quiet(struct ibv_context *context)
{
	CHECK(!readable(channel->fd, 100) && !readable(context->async_fd, 0));
}

static enum ibv_port_state state(struct ibv_context *context)
{
	struct ibv_port_attr attr;

	CHECK(!ibv_query_port(context, 1, &attr));
	return attr.state;
}

static int gids(struct ibv_context *context)
{
	struct ibv_port_attr attr;

	CHECK(!ibv_query_port(context, 1, &attr));
	return attr.gid_tbl_len;
}

/* Checks that each id gets the event once and that the event has no content. */
static void await_each(struct rdma_cm_id **ids, int count, enum rdma_cm_event_type expected)
{
	int seen = 0;

	for (int i = 0; i < count; i++) {
		struct rdma_cm_event *event;

		CHECK(readable(channel->fd, 20000) && !rdma_get_cm_event(channel, &event));
		CHECK(event->event == expected && event->status == 0);
		CHECK(!event->param.conn.private_data && event->param.conn.private_data_len == 0);
		for (int j = 0; j < count; j++)
			if (event->id == ids[j]) {
				CHECK(!(seen & 1 << j));
				seen |= 1 << j;
			}
		CHECK(!rdma_ack_cm_event(event));
	}
	CHECK(seen == (1 << count) - 1);
}

static struct rdma_cm_id *bound(const struct sockaddr_in *address)
{
	struct rdma_cm_id *id;

	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) && !rdma_bind_addr(id, (void *)address));
	return id;
}

static struct rdma_cm_id *connecting(struct rdma_cm_id *listener)
{
	struct sockaddr_in to = here;
	struct rdma_cm_id *id;

	to.sin_port = rdma_get_src_port(listener);
	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, (void *)&to, 1000));
	await(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_resolve_route(id, 1000));
	await(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	create_queue_pair(id);
	CHECK(!rdma_connect(id, NULL));
	return id;
}

/* Transfers a message on the connection, which survives all changes. */
static void exchange(struct rdma_cm_id *from, struct rdma_cm_id *to)
{
	static char bytes[2][8];
	struct ibv_mr *out = rdma_reg_msgs(from, bytes[0], 8), *in = rdma_reg_msgs(to, bytes[1], 8);
	struct ibv_wc wc;

	CHECK(out && in && !rdma_post_recv(to, NULL, bytes[1], 8, in) && !rdma_post_send(from, NULL, bytes[0], 8, out, 0));
	CHECK(rdma_get_recv_comp(to, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(rdma_get_send_comp(from, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(!rdma_dereg_mr(out) && !rdma_dereg_mr(in));
}

/* Returns how often the thread that watches the links has slept. */
static long sleeps(void)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *task;
	long count = -1;

	CHECK(tasks);
	while ((task = readdir(tasks))) {
		char path[300], line[200];
		int is_watcher = 0;
		FILE *file;

		snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
		if (task->d_name[0] == '.' || !(file = fopen(path, "r")))
			continue;
		while (fgets(line, sizeof line, file)) {
			if (!strncmp(line, "Name:", 5))
				is_watcher = strstr(line, "uiw-links") != NULL;
			if (is_watcher)
				sscanf(line, "voluntary_ctxt_switches: %ld", &count);
		}
		fclose(file);
	}
	closedir(tasks);
	return count;
}

/* A child watches the links on its own, and its parent continues to do so. */
static void fork_and_watch(struct ibv_context *parents)
{
	int ready[2], status;
	pid_t child;
	char byte;

	CHECK(!pipe(ready) && (child = fork()) >= 0);
	if (!child) {
		struct ibv_async_event event;
		struct ibv_context *context;

		CHECK(ibv_get_async_event(parents, &event) == -1);
		context = open_device();
		CHECK(write(ready[1], "", 1) == 1);
		await_async(context, IBV_EVENT_GID_CHANGE);
		_exit(EXIT_SUCCESS);
	}
	CHECK(read(ready[0], &byte, 1) == 1);
	shell("ip address add 10.9.9.9/24 dev veth0");
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	shell("ip address delete 10.9.9.9/24 dev veth0");
	close(ready[0]);
	close(ready[1]);
}

int main(void)
{
	static const struct sockaddr_in any = { .sin_family = AF_INET };
	struct rdma_cm_id *ids[4], *wildcard;
	struct ibv_context *context, *shared;
	struct ibv_async_event event;
	long before;
	int count;

	/* IPv6 addresses of the interface would come and go by themselves. */
	shell("echo 1 > /proc/sys/net/ipv6/conf/veth0/disable_ipv6");
	CHECK((channel = rdma_create_event_channel()));
	context = open_device();
	wildcard = bound(&any);
	ids[0] = bound(&here);
	ids[1] = bound(&here);
	CHECK(!rdma_listen(ids[0], 4) && !rdma_listen(wildcard, 4));
	ids[2] = connecting(ids[0]);
	ids[3] = await(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	create_queue_pair(ids[3]);
	CHECK(!rdma_accept(ids[3], NULL));
	await(channel, RDMA_CM_EVENT_ESTABLISHED);
	await(channel, RDMA_CM_EVENT_ESTABLISHED);
	shared = ids[0]->verbs;
	CHECK(shared != context && shared == ids[3]->verbs);
	CHECK(!fcntl(shared->async_fd, F_SETFL, fcntl(shared->async_fd, F_GETFL) | O_NONBLOCK));

	/* The thread must sleep while nothing changes. */
	is_quiet(context);
	before = sleeps();
	CHECK(before > 0);
	usleep(1500000);
	CHECK(sleeps() == before);
	is_quiet(context);

	shell("ip link set veth0 down");
	await_async(context, IBV_EVENT_PORT_ERR);
	await_async(shared, IBV_EVENT_PORT_ERR);
	CHECK(state(context) == IBV_PORT_DOWN);
	exchange(ids[2], ids[3]);
	shell("ip link set veth0 up");
	await_async(context, IBV_EVENT_PORT_ACTIVE);
	await_async(shared, IBV_EVENT_PORT_ACTIVE);
	CHECK(state(context) == IBV_PORT_ACTIVE);
	is_quiet(context);

	count = gids(context);
	shell("ip address add 10.8.8.8/24 dev veth0");
	await_async(context, IBV_EVENT_GID_CHANGE);
	CHECK(gids(context) == count + 1);
	shell("ip address delete 10.8.8.8/24 dev veth0");
	await_async(context, IBV_EVENT_GID_CHANGE);
	CHECK(gids(context) == count);
	/* The change of another interface causes no event. */
	shell("ip address add 127.0.0.7/8 dev lo");
	is_quiet(context);

	shell("ip link set veth0 address 02:00:00:00:00:07");
	await_each(ids, 4, RDMA_CM_EVENT_ADDR_CHANGE);
	exchange(ids[3], ids[2]);
	is_quiet(context);

	fork_and_watch(context);
	await_async(context, IBV_EVENT_GID_CHANGE);
	await_async(context, IBV_EVENT_GID_CHANGE);
	is_quiet(context);

	/* Unread events must not accumulate without limit. */
	shell("for i in $(seq 50); do echo address add 10.7.7.7/24 dev veth0; echo address delete 10.7.7.7/24 dev veth0; done | ip -batch -");
	exchange(ids[2], ids[3]);

	shell("ip link delete veth0");
	await_each(ids, 4, RDMA_CM_EVENT_DEVICE_REMOVAL);
	CHECK(!readable(channel->fd, 300));
	for (count = 0; !ibv_get_async_event(context, &event); count++)
		ibv_ack_async_event(&event);
	CHECK(count > 0 && count <= UNREAD_AT_MOST && event.event_type == IBV_EVENT_DEVICE_FATAL);

	for (int i = 0; i < 4; i++) {
		if (ids[i]->qp)
			rdma_destroy_qp(ids[i]);
		CHECK(!rdma_destroy_id(ids[i]));
	}
	CHECK(!rdma_destroy_id(wildcard) && !ibv_close_device(context));
	rdma_destroy_event_channel(channel);
	printf("events as expected\n");
	return EXIT_SUCCESS;
}
