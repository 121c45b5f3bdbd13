/* Tests guarantees of the rdma_cm manual pages, one function per guarantee. Both ends are in
 * this process. */
#define _GNU_SOURCE
#include "check.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct sockaddr_in loopback = { .sin_family = AF_INET, .sin_addr.s_addr = 0x0100007f };

static struct rdma_event_channel *passive, *active;

static struct rdma_cm_event *next(struct rdma_event_channel *channel, enum rdma_cm_event_type expected)
{
	struct rdma_cm_event *event;

	CHECK(!rdma_get_cm_event(channel, &event));
	if (event->event != expected) {
		fprintf(stderr, "expected %s, got %s, status %d\n", rdma_event_str(expected),
			rdma_event_str(event->event), event->status);
		exit(EXIT_FAILURE);
	}
	return event;
}

static void await(struct rdma_event_channel *channel, enum rdma_cm_event_type expected)
{
	struct rdma_cm_event *event = next(channel, expected);

	CHECK(event->status == 0);
	CHECK(!rdma_ack_cm_event(event));
}

static int readable(struct rdma_event_channel *channel)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };

	return poll(&fd, 1, 0) == 1;
}

static void make_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 16 } };

	CHECK(!rdma_create_qp(id, NULL, &attr));
	CHECK(id->qp && id->qp->qp_num && attr.cap.max_inline_data >= 16);
	CHECK(attr.send_cq == id->send_cq && attr.recv_cq == id->recv_cq);
}

static struct rdma_cm_id *listening(void)
{
	struct rdma_cm_id *id;

	CHECK(!rdma_create_id(passive, &id, (void *)0x1234, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(id, (void *)&loopback));
	CHECK(id->verbs && id->pd && id->port_num == 1);
	CHECK(!rdma_listen(id, 4));
	return id;
}

static struct rdma_cm_id *ready_to_connect(struct rdma_cm_id *listener)
{
	struct sockaddr_in to = loopback;
	struct rdma_cm_id *id;

	to.sin_port = rdma_get_src_port(listener);
	CHECK(!rdma_create_id(active, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, (void *)&to, 1000));
	await(active, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(id->verbs && rdma_get_dst_port(id) == to.sin_port);
	CHECK(!rdma_resolve_route(id, 1000));
	await(active, RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(id->route.num_paths == 0);
	make_qp(id);
	return id;
}

static struct rdma_cm_id *requested(struct rdma_cm_id *listener)
{
	struct rdma_cm_event *event = next(passive, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *id = event->id;

	CHECK(event->listen_id == listener && id != listener);
	CHECK(id->context == listener->context && id->verbs && id->channel == passive);
	CHECK(!rdma_ack_cm_event(event));
	make_qp(id);
	return id;
}

static void connected(struct rdma_cm_id *listener, struct rdma_cm_id **client, struct rdma_cm_id **server)
{
	*client = ready_to_connect(listener);
	CHECK(!rdma_connect(*client, NULL));
	*server = requested(listener);
	CHECK(!rdma_accept(*server, NULL));
	await(passive, RDMA_CM_EVENT_ESTABLISHED);
	await(active, RDMA_CM_EVENT_ESTABLISHED);
}

static void let_go(struct rdma_cm_id *id)
{
	rdma_destroy_qp(id);
	CHECK(!id->qp && !id->send_cq && !id->recv_cq_channel);
	CHECK(!rdma_destroy_id(id));
}

static void private_data_and_resources(void)
{
	static const int lengths[] = { 0, 1, 56, 196, 255 };
	struct rdma_cm_id *listener = listening();

	for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
		unsigned char data[255];
		struct rdma_conn_param param = { .private_data = data, .private_data_len = lengths[i] };
		struct rdma_cm_id *client = ready_to_connect(listener), *server;
		struct rdma_cm_event *event;

		memset(data, 0x40 + i, sizeof data);
		param.responder_resources = 3;
		param.initiator_depth = 5;
		CHECK(!rdma_connect(client, &param));
		event = next(passive, RDMA_CM_EVENT_CONNECT_REQUEST);
		server = event->id;
		CHECK(event->param.conn.private_data_len == lengths[i]);
		CHECK(!lengths[i] == !event->param.conn.private_data);
		CHECK(!lengths[i] || !memcmp(event->param.conn.private_data, data, lengths[i]));
		/* The peer's initiator depth becomes our responder resources, and the other way round. MPA
		 * revision 1 does not transmit them. */
		CHECK(getenv("UIW_MPA_REVISION") ||
		      (event->param.conn.responder_resources == 5 && event->param.conn.initiator_depth == 3));
		CHECK(!rdma_ack_cm_event(event));
		make_qp(server);
		memset(data, 0x60 + i, sizeof data);
		param.responder_resources = 5;
		param.initiator_depth = 2;
		CHECK(!rdma_accept(server, &param));
		await(passive, RDMA_CM_EVENT_ESTABLISHED);
		event = next(active, RDMA_CM_EVENT_ESTABLISHED);
		CHECK(event->id == client && !event->listen_id);
		CHECK(event->param.conn.private_data_len == lengths[i]);
		CHECK(!lengths[i] || !memcmp(event->param.conn.private_data, data, lengths[i]));
		CHECK(!rdma_ack_cm_event(event));
		CHECK(rdma_get_src_port(client) && rdma_get_src_port(client) == rdma_get_dst_port(server));
		CHECK(rdma_get_dst_port(client) == rdma_get_src_port(server));
		CHECK(rdma_get_src_port(server) == rdma_get_src_port(listener));
		let_go(client);
		await(passive, RDMA_CM_EVENT_DISCONNECTED);
		let_go(server);
	}
	CHECK(!rdma_destroy_id(listener));
}

static void rejecting(void)
{
	struct rdma_cm_id *listener = listening();
	static const char why[] = "not today";

	for (int implicit = 0; implicit < 2; implicit++) {
		struct rdma_cm_id *client = ready_to_connect(listener), *server;
		struct ibv_recv_wr wr = { .wr_id = 7 }, *bad;
		struct rdma_cm_event *event;
		struct ibv_wc wc;

		CHECK(!ibv_post_recv(client->qp, &wr, &bad));
		CHECK(!rdma_connect(client, NULL));
		server = requested(listener);
		if (!implicit) {
			CHECK(!rdma_reject(server, why, sizeof why));
			CHECK(rdma_reject(server, NULL, 0) == -1 && errno == EINVAL);
			CHECK(rdma_accept(server, NULL) == -1 && errno == EINVAL);
		}
		/* Destroying the id of a request rejects the request. */
		let_go(server);
		event = next(active, RDMA_CM_EVENT_REJECTED);
		CHECK(event->id == client && event->status == -ECONNREFUSED);
		CHECK(event->param.conn.private_data_len == (implicit ? 0 : sizeof why));
		CHECK(implicit || !memcmp(event->param.conn.private_data, why, sizeof why));
		CHECK(!rdma_ack_cm_event(event));
		/* The posted receive is flushed. */
		CHECK(ibv_poll_cq(client->recv_cq, 1, &wc) == 1);
		CHECK(wc.wr_id == 7 && wc.status == IBV_WC_WR_FLUSH_ERR);
		let_go(client);
	}
	CHECK(!rdma_destroy_id(listener));
}

static void disconnecting(void)
{
	struct rdma_cm_id *listener = listening(), *client, *server;
	char bytes[32] = "last bytes", room[32];
	struct ibv_mr *mr, *target;
	struct ibv_wc wc;

	connected(listener, &client, &server);
	CHECK((target = rdma_reg_msgs(server, room, sizeof room)) && (mr = rdma_reg_msgs(client, bytes, sizeof bytes)));
	CHECK(!rdma_post_recv(server, NULL, room, sizeof room, target));
	CHECK(!rdma_post_send(client, NULL, bytes, sizeof bytes, mr, IBV_SEND_SIGNALED));
	CHECK(!rdma_disconnect(client));
	CHECK(!rdma_disconnect(client));
	/* Data posted before arrives; then each side gets the event of the end exactly once. */
	CHECK(rdma_get_recv_comp(server, &wc) == 1 && wc.status == IBV_WC_SUCCESS && !strcmp(room, bytes));
	await(active, RDMA_CM_EVENT_DISCONNECTED);
	await(passive, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(!rdma_disconnect(server) && !rdma_disconnect(client));
	CHECK(!readable(active) && !readable(passive));
	/* The queue pair is in the error state now, so receives are flushed. */
	CHECK(!rdma_post_recv(server, (void *)9, room, sizeof room, target));
	CHECK(rdma_get_recv_comp(server, &wc) == 1 && wc.wr_id == 9 && wc.status == IBV_WC_WR_FLUSH_ERR);
	CHECK(!rdma_dereg_mr(mr) && !rdma_dereg_mr(target));
	let_go(client);
	let_go(server);
	CHECK(!rdma_destroy_id(listener));
}

/* An id can be destroyed in any state, and none of its events remains in the channel. */
static void destroyed_in_every_state(void)
{
	struct rdma_cm_id *listener = listening(), *id, *client, *server;
	struct sockaddr_in to = loopback;

	to.sin_port = rdma_get_src_port(listener);
	CHECK(!rdma_create_id(active, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_destroy_id(id));
	CHECK(!rdma_create_id(active, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(id, (void *)&loopback));
	CHECK(!rdma_destroy_id(id));
	CHECK(!rdma_create_id(active, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, (void *)&to, 1000));
	CHECK(readable(active));
	CHECK(!rdma_destroy_id(id));
	CHECK(!readable(active));

	/* The states are: route resolved; connecting to a peer that does not answer; established, with
	 * the event not taken. */
	let_go(ready_to_connect(listener));
	client = ready_to_connect(listener);
	CHECK(!rdma_connect(client, NULL));
	server = requested(listener);
	let_go(client);
	let_go(server);
	client = ready_to_connect(listener);
	CHECK(!rdma_connect(client, NULL));
	server = requested(listener);
	CHECK(!rdma_accept(server, NULL));
	await(passive, RDMA_CM_EVENT_ESTABLISHED);
	let_go(client);
	CHECK(!readable(active));
	await(passive, RDMA_CM_EVENT_DISCONNECTED);
	let_go(server);

	/* The id is connected, and its queue pair is not destroyed by rdma_destroy_qp. */
	connected(listener, &client, &server);
	id = client;
	CHECK(!ibv_destroy_qp(client->qp));
	CHECK(!rdma_destroy_id(id));
	await(passive, RDMA_CM_EVENT_DISCONNECTED);
	let_go(server);

	/* The listener has a pending request. */
	client = ready_to_connect(listener);
	CHECK(!rdma_connect(client, NULL));
	while (!readable(passive))
		usleep(100);
	CHECK(!rdma_destroy_id(listener));
	CHECK(!readable(passive));
	{
		struct rdma_cm_event *event = next(active, RDMA_CM_EVENT_REJECTED);

		CHECK(!rdma_ack_cm_event(event));
	}
	let_go(client);
}

static void *destroy(void *id)
{
	CHECK(!rdma_destroy_id(id));
	return NULL;
}

static void destruction_waits_for_acknowledgements(void)
{
	struct rdma_cm_id *listener = listening(), *id;
	struct sockaddr_in to = loopback;
	struct rdma_cm_event *event;
	pthread_t thread;

	to.sin_port = rdma_get_src_port(listener);
	CHECK(!rdma_create_id(active, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, (void *)&to, 1000));
	event = next(active, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!pthread_create(&thread, NULL, destroy, id));
	usleep(20000);
	CHECK(pthread_tryjoin_np(thread, NULL) == EBUSY);
	CHECK(event->id == id && event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_ack_cm_event(event));
	CHECK(!pthread_join(thread, NULL));
	CHECK(!rdma_destroy_id(listener));
}

static void descriptors(void)
{
	struct rdma_cm_id *listener = listening(), *client, *server;
	struct rdma_cm_event *event;
	int flags = fcntl(active->fd, F_GETFL);

	CHECK(flags >= 0 && !fcntl(active->fd, F_SETFL, flags | O_NONBLOCK));
	CHECK(rdma_get_cm_event(active, &event) == -1 && errno == EAGAIN);
	CHECK(!fcntl(active->fd, F_SETFL, flags));
	connected(listener, &client, &server);
	CHECK(!rdma_disconnect(server));
	while (!readable(active))
		usleep(100);
	CHECK(readable(active));
	await(active, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(!readable(active));
	await(passive, RDMA_CM_EVENT_DISCONNECTED);
	let_go(client);
	let_go(server);
	CHECK(!rdma_destroy_id(listener));
}

static void migrating(void)
{
	struct rdma_event_channel *other = rdma_create_event_channel();
	struct rdma_cm_id *listener = listening(), *client, *server;
	struct sockaddr_in to = loopback;

	CHECK(other);
	to.sin_port = rdma_get_src_port(listener);
	/* An event of the library itself is pending. */
	CHECK(!rdma_create_id(active, &client, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(client, NULL, (void *)&to, 1000));
	CHECK(!rdma_migrate_id(client, other));
	CHECK(client->channel == other && !readable(active) && readable(other));
	await(other, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_destroy_id(client));
	/* A request is pending, and further events follow it. */
	client = ready_to_connect(listener);
	CHECK(!rdma_connect(client, NULL));
	while (!readable(passive))
		usleep(100);
	CHECK(!rdma_migrate_id(listener, other));
	CHECK(!readable(passive));
	/* A thread that is driving at this moment makes the channel readable only after the call. */
	while (!readable(other))
		usleep(100);
	{
		struct rdma_cm_event *event = next(other, RDMA_CM_EVENT_CONNECT_REQUEST);

		server = event->id;
		CHECK(server->channel == other);
		CHECK(!rdma_ack_cm_event(event));
	}
	make_qp(server);
	CHECK(!rdma_migrate_id(server, passive));
	CHECK(!rdma_accept(server, NULL));
	await(passive, RDMA_CM_EVENT_ESTABLISHED);
	/* An event of the engine is pending. */
	while (!readable(active))
		usleep(100);
	CHECK(!rdma_migrate_id(client, other));
	await(other, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(!rdma_disconnect(server));
	await(passive, RDMA_CM_EVENT_DISCONNECTED);
	await(other, RDMA_CM_EVENT_DISCONNECTED);
	let_go(client);
	let_go(server);
	CHECK(!rdma_destroy_id(listener));
	rdma_destroy_event_channel(other);
}

static void *serve_synchronously(void *listener)
{
	char room[16], answer[16] = "and you";
	struct rdma_cm_id *id;
	struct ibv_mr *mr, *out;
	struct ibv_wc wc;

	CHECK(!rdma_get_request(listener, &id));
	CHECK(id->qp && id->event && id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK((mr = rdma_reg_msgs(id, room, sizeof room)) && (out = rdma_reg_msgs(id, answer, sizeof answer)));
	CHECK(!rdma_post_recv(id, NULL, room, sizeof room, mr));
	CHECK(!rdma_accept(id, NULL));
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	CHECK(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS && !strcmp(room, "good day"));
	CHECK(!rdma_post_send(id, NULL, answer, sizeof answer, out, 0));
	CHECK(!rdma_disconnect(id));
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_DISCONNECTED);
	CHECK(!rdma_dereg_mr(mr) && !rdma_dereg_mr(out));
	rdma_destroy_ep(id);
	return NULL;
}

static void synchronous(void)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP }, *res;
	struct ibv_qp_init_attr attr = { .cap = { 4, 4, 1, 1, 16 }, .sq_sig_all = 1 };
	struct rdma_cm_id *listener, *id;
	char bytes[16] = "good day", room[16], port[8];
	struct ibv_mr *mr, *in;
	struct ibv_wc wc;
	pthread_t thread;

	CHECK(!rdma_getaddrinfo("127.0.0.1", "0", &hints, &res));
	CHECK(res->ai_qp_type == IBV_QPT_RC && res->ai_src_len && !res->ai_dst_len && !res->ai_next);
	CHECK(!rdma_create_ep(&listener, res, NULL, &attr));
	rdma_freeaddrinfo(res);
	CHECK(!listener->qp && listener->channel);
	CHECK(!rdma_listen(listener, 0));
	snprintf(port, sizeof port, "%d", ntohs(rdma_get_src_port(listener)));
	CHECK(!pthread_create(&thread, NULL, serve_synchronously, listener));

	hints.ai_flags = RAI_NUMERICHOST;
	CHECK(!rdma_getaddrinfo("127.0.0.1", port, &hints, &res));
	CHECK(res->ai_dst_len && res->ai_family == AF_INET);
	CHECK(!rdma_create_ep(&id, res, NULL, &attr));
	rdma_freeaddrinfo(res);
	CHECK(id->qp && id->verbs && attr.qp_type == IBV_QPT_RC);
	CHECK((mr = rdma_reg_msgs(id, bytes, sizeof bytes)) && (in = rdma_reg_msgs(id, room, sizeof room)));
	CHECK(!rdma_post_recv(id, NULL, room, sizeof room, in));
	CHECK(!rdma_connect(id, NULL));
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	CHECK(!rdma_post_send(id, NULL, bytes, sizeof bytes, mr, 0));
	CHECK(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS && !strcmp(room, "and you"));
	CHECK(!rdma_disconnect(id));
	CHECK(!pthread_join(thread, NULL));
	CHECK(!rdma_dereg_mr(mr) && !rdma_dereg_mr(in));
	rdma_destroy_ep(id);
	rdma_destroy_ep(listener);

	/* No listener exists any more. The attributes still name the queues of the previous id. */
	attr.send_cq = attr.recv_cq = NULL;
	CHECK(!rdma_getaddrinfo("127.0.0.1", port, &hints, &res));
	CHECK(!rdma_create_ep(&id, res, NULL, &attr));
	rdma_freeaddrinfo(res);
	CHECK(rdma_connect(id, NULL) == -1 && errno == ECONNREFUSED);
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_REJECTED);
	rdma_destroy_ep(id);
}

static void wildcards_and_ports(void)
{
	struct sockaddr_in any = { .sin_family = AF_INET };
	struct sockaddr_in6 six = { .sin6_family = AF_INET6 };
	struct rdma_cm_id *a, *b, *server, *client;
	int on = 1;

	CHECK(!rdma_create_id(passive, &a, NULL, RDMA_PS_TCP));
	CHECK(!rdma_create_id(passive, &b, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(a, (void *)&any));
	CHECK(!a->verbs && rdma_get_src_port(a));
	any.sin_port = rdma_get_src_port(a);
	/* The kernel returns the same error if one of the two addresses is a wildcard. */
	CHECK(rdma_bind_addr(b, (void *)&any) == -1 && errno == EADDRNOTAVAIL);
	CHECK(!rdma_listen(a, 2));
	client = ready_to_connect(a);
	CHECK(!rdma_connect(client, NULL));
	server = requested(a);
	CHECK(!strcmp(ibv_get_device_name(server->verbs->device), "uiw_lo"));
	let_go(server);
	{
		struct rdma_cm_event *event = next(active, RDMA_CM_EVENT_REJECTED);

		CHECK(!rdma_ack_cm_event(event));
	}
	let_go(client);
	CHECK(!rdma_destroy_id(a) && !rdma_destroy_id(b));

	/* Two ids that both set REUSEADDR share a port as long as neither listens. */
	any.sin_port = 0;
	CHECK(!rdma_create_id(passive, &a, NULL, RDMA_PS_TCP) && !rdma_create_id(passive, &b, NULL, RDMA_PS_TCP));
	CHECK(!rdma_set_option(a, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof on));
	CHECK(!rdma_set_option(b, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof on));
	CHECK(!rdma_bind_addr(a, (void *)&any));
	any.sin_port = rdma_get_src_port(a);
	CHECK(!rdma_bind_addr(b, (void *)&any));
	CHECK(!rdma_listen(a, 1));
	CHECK(rdma_listen(b, 1) == -1 && errno == EADDRINUSE);
	CHECK(!rdma_destroy_id(a) && !rdma_destroy_id(b));

	/* A listener for IPv6 only leaves the port to IPv4, unless another process uses it there. */
	for (int tries = 20; tries > 0; tries--) {
		int shared;

		CHECK(!rdma_create_id(passive, &a, NULL, RDMA_PS_TCP) && !rdma_create_id(passive, &b, NULL, RDMA_PS_TCP));
		CHECK(!rdma_set_option(a, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, sizeof on));
		shared = rdma_bind_addr(a, (void *)&six) != 0;
		if (!shared) {
			CHECK(!rdma_listen(a, 1));
			any.sin_port = rdma_get_src_port(a);
			shared = !rdma_bind_addr(b, (void *)&any) && !rdma_listen(b, 1);
			CHECK(shared || errno == EADDRINUSE || errno == EADDRNOTAVAIL);
		}
		CHECK(!rdma_destroy_id(a) && !rdma_destroy_id(b));
		if (shared)
			return;
	}
	CHECK(!"IPv6 alone leaves the port to IPv4");
}

static void devices(void)
{
	struct ibv_context **list;
	struct rdma_cm_id *listener = listening();
	int count = 0, found = 0;

	CHECK((list = rdma_get_devices(&count)) && count >= 1 && !list[count]);
	for (int i = 0; i < count; i++)
		found += list[i] == listener->verbs;
	CHECK(found == 1);
	rdma_free_devices(list);
	CHECK((list = rdma_get_devices(NULL)));
	rdma_free_devices(list);
	CHECK(!rdma_destroy_id(listener));
}

/* Tests names that the header of Debian 12 does not have yet. */
static void newer_names(void)
{
	int (*write_event)(struct rdma_cm_id *, int, int, uint64_t) = dlsym(RTLD_DEFAULT, "rdma_write_cm_event");
	int (*resolve)(struct rdma_cm_id *, const char *, const char *, const struct rdma_addrinfo *) =
		dlsym(RTLD_DEFAULT, "rdma_resolve_addrinfo");
	int (*query)(struct rdma_cm_id *, struct rdma_addrinfo **) = dlsym(RTLD_DEFAULT, "rdma_query_addrinfo");
	const int resolved = 16, failed = 17, user = 18;
	struct rdma_addrinfo *res = NULL;
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	CHECK(write_event && resolve && query);
	CHECK(!rdma_create_id(active, &id, NULL, RDMA_PS_TCP));
	CHECK(write_event(id, RDMA_CM_EVENT_ESTABLISHED, 0, 0) == -1 && errno == EINVAL);
	CHECK(!write_event(id, user, -5, 0x123456789abc));
	event = next(active, user);
	CHECK(event->status == -5 && *(uint64_t *)&event->param == 0x123456789abc);
	CHECK(!rdma_ack_cm_event(event));
	CHECK(query(id, &res) == -1);
	CHECK(!resolve(id, "127.0.0.1", "7471", NULL));
	await(active, resolved);
	CHECK(!query(id, &res) && res && res->ai_dst_len);
	rdma_freeaddrinfo(res);
	CHECK(!resolve(id, "no.such.host.invalid", "7471", NULL));
	event = next(active, failed);
	CHECK(event->status && !rdma_ack_cm_event(event));
	CHECK(!rdma_destroy_id(id));
}

/* No service has port 0: a program that uses it asks for the device that reaches the address. */
static void address_without_port(void)
{
	struct sockaddr_in to = loopback;
	struct rdma_cm_id *id;

	CHECK(!rdma_create_id(active, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, (void *)&to, 1000));
	await(active, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(id->verbs && rdma_get_dst_port(id) == 0);
	CHECK(!rdma_resolve_route(id, 1000));
	await(active, RDMA_CM_EVENT_ROUTE_RESOLVED);
	make_qp(id);
	CHECK(rdma_connect(id, NULL) == -1 && errno == EINVAL);
	let_go(id);
}

/* Like the kernel's descriptors, these are never writable. Otherwise a program that watches both
 * directions would not sleep. */
static void descriptors_are_never_writable(void)
{
	struct ibv_context *verbs;
	struct rdma_cm_id *listener = listening(), *client, *server;
	struct ibv_comp_channel *channel;

	verbs = listener->verbs;
	CHECK((channel = ibv_create_comp_channel(verbs)));
	connected(listener, &client, &server);
	CHECK(!rdma_disconnect(client));
	for (int with_event = 1; with_event >= 0; with_event--) {
		struct pollfd fds[] = {
			{ .fd = passive->fd, .events = POLLIN | POLLOUT },
			{ .fd = active->fd, .events = POLLIN | POLLOUT },
			{ .fd = verbs->async_fd, .events = POLLIN | POLLOUT },
			{ .fd = channel->fd, .events = POLLIN | POLLOUT },
		};

		if (with_event) {
			while (!readable(passive) || !readable(active))
				usleep(1000);
		}
		CHECK(poll(fds, 4, 0) == (with_event ? 2 : 0));
		CHECK(!with_event || (fds[0].revents == POLLIN && fds[1].revents == POLLIN));
		if (with_event) {
			await(passive, RDMA_CM_EVENT_DISCONNECTED);
			await(active, RDMA_CM_EVENT_DISCONNECTED);
		}
	}
	CHECK(!ibv_destroy_comp_channel(channel));
	let_go(client);
	let_go(server);
	CHECK(!rdma_destroy_id(listener));
}

int main(void)
{
	CHECK((passive = rdma_create_event_channel()) && (active = rdma_create_event_channel()));
	for (int round = 0; round < 3; round++) {
		private_data_and_resources();
		rejecting();
		disconnecting();
		destroyed_in_every_state();
		destruction_waits_for_acknowledgements();
		descriptors();
		descriptors_are_never_writable();
		address_without_port();
		migrating();
		synchronous();
		wildcards_and_ports();
		devices();
		newer_names();
	}
	CHECK(!readable(passive) && !readable(active));
	rdma_destroy_event_channel(passive);
	rdma_destroy_event_channel(active);
	printf("every promise kept\n");
	return EXIT_SUCCESS;
}
