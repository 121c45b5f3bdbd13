/* Many threads at once: clients connect, send a word and disconnect, each on its own channel or
 * on a shared one, and server threads take turns on one channel. The thread that takes an event
 * need not own the connection. */
#include "check.h"
#include <errno.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLIENTS 8
#define SERVERS 3

static struct rdma_event_channel *served;
static uint16_t port;
static int rounds;
static atomic_int ended;

struct talk {
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	char room[64];
	int started;
};

static struct talk *start(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };
	struct talk *talk = calloc(1, sizeof *talk);

	CHECK(talk);
	talk->id = id;
	id->context = talk;
	CHECK(!rdma_create_qp(id, NULL, &attr));
	CHECK((talk->mr = rdma_reg_msgs(id, talk->room, sizeof talk->room)));
	return talk;
}

static void finish(struct talk *talk)
{
	rdma_destroy_qp(talk->id);
	CHECK(!rdma_dereg_mr(talk->mr));
	CHECK(!rdma_destroy_id(talk->id));
	free(talk);
}

static void *serve(void *unused)
{
	while (atomic_load(&ended) < CLIENTS * rounds) {
		struct rdma_cm_event *event;
		struct rdma_cm_id *id;
		struct talk *talk;
		enum rdma_cm_event_type type;

		CHECK(!rdma_get_cm_event(served, &event));
		id = event->id;
		type = event->event;
		if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
			talk = start(id);
			CHECK(!rdma_post_recv(id, NULL, talk->room, sizeof talk->room, talk->mr));
			CHECK(!rdma_accept(id, NULL));
		}
		CHECK(!rdma_ack_cm_event(event));
		if (type == RDMA_CM_EVENT_DISCONNECTED) {
			/* Another thread may still hold the previous event; destruction waits for it. */
			struct ibv_wc wc;

			talk = id->context;
			CHECK(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
			CHECK(!strcmp(talk->room, "a word"));
			finish(talk);
			if (atomic_fetch_add(&ended, 1) + 1 == CLIENTS * rounds)
				exit(EXIT_SUCCESS);
		} else if (type != RDMA_CM_EVENT_CONNECT_REQUEST && type != RDMA_CM_EVENT_ESTABLISHED) {
			CHECK(!"an event of a server");
		}
	}
	return unused;
}

static void await(struct rdma_event_channel *channel, enum rdma_cm_event_type expected)
{
	struct rdma_cm_event *event;

	CHECK(!rdma_get_cm_event(channel, &event));
	if (event->event != expected) {
		fprintf(stderr, "expected %s, got %s, status %d\n", rdma_event_str(expected),
			rdma_event_str(event->event), event->status);
		exit(EXIT_FAILURE);
	}
	CHECK(!rdma_ack_cm_event(event));
}

static void *connect_again_and_again(void *unused)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = port, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct rdma_event_channel *channel = rdma_create_event_channel();

	CHECK(channel);
	for (int round = 0; round < rounds; round++) {
		struct rdma_cm_id *id;
		struct talk *talk;
		struct ibv_wc wc;

		/* Every other round uses no channel, so the calls themselves wait. */
		int sync = round % 2;

		CHECK(!rdma_create_id(sync ? NULL : channel, &id, NULL, RDMA_PS_TCP));
		CHECK(!rdma_resolve_addr(id, NULL, (void *)&to, 1000));
		if (!sync)
			await(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
		CHECK(!rdma_resolve_route(id, 1000));
		if (!sync)
			await(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
		talk = start(id);
		strcpy(talk->room, "a word");
		CHECK(!rdma_connect(id, NULL));
		if (!sync)
			await(channel, RDMA_CM_EVENT_ESTABLISHED);
		CHECK(!rdma_post_send(id, NULL, talk->room, sizeof talk->room, talk->mr, IBV_SEND_SIGNALED));
		CHECK(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
		CHECK(!rdma_disconnect(id));
		if (!sync && round % 4 == 0)
			await(channel, RDMA_CM_EVENT_DISCONNECTED);
		finish(talk);
	}
	rdma_destroy_event_channel(channel);
	return unused;
}

int main(int argc, char **argv)
{
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	pthread_t clients[CLIENTS], servers[SERVERS];
	struct rdma_cm_id *listener;

	rounds = argc > 1 ? atoi(argv[1]) : 50;
	CHECK((served = rdma_create_event_channel()) && !rdma_create_id(served, &listener, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(listener, (void *)&any) && !rdma_listen(listener, 64));
	port = rdma_get_src_port(listener);
	for (int i = 0; i < SERVERS; i++)
		CHECK(!pthread_create(&servers[i], NULL, serve, NULL));
	for (int i = 0; i < CLIENTS; i++)
		CHECK(!pthread_create(&clients[i], NULL, connect_again_and_again, NULL));
	for (int i = 0; i < CLIENTS; i++)
		CHECK(!pthread_join(clients[i], NULL));
	for (int i = 0; i < SERVERS; i++)
		CHECK(!pthread_join(servers[i], NULL));
	return EXIT_SUCCESS;
}
