/* A completion that arrives while ibv_poll_cq yields the processor must be returned by the same
 * call. Otherwise a program that checks for connection events after an empty poll would see
 * RDMA_CM_EVENT_DISCONNECTED first, and destroy the queue pair together with the completion.
 * Both ends are in this process, and its sched_yield, which the library calls, lets the message
 * arrive. */
#include "cm.h"
#include <pthread.h>
#include <semaphore.h>

static struct rdma_event_channel *passive, *active;
static struct rdma_cm_id *client, *server;
static sem_t may_send, has_sent;
static pthread_t poller;
static int polling, yields;

int sched_yield(void)
{
	if (!polling || !pthread_equal(pthread_self(), poller)) {
		usleep(0);
		return 0;
	}
	polling = 0;
	yields++;
	CHECK(!sem_post(&may_send) && !sem_wait(&has_sent));
	return 0;
}

static void *sends(void *unused)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_wc wc;
	int found;

	CHECK(!sem_wait(&may_send));
	CHECK(!ibv_post_send(client->qp, &wr, &bad));
	while (!(found = ibv_poll_cq(client->send_cq, 1, &wc)))
		usleep(1000);
	CHECK(found == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(!sem_post(&has_sent));
	return unused;
}

int main(void)
{
	struct sockaddr_in to;
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	struct ibv_recv_wr receive = { 0 }, *bad;
	struct ibv_wc wc;
	pthread_t sender;
	int found = 0, polls;

	CHECK((passive = rdma_create_event_channel()) && (active = rdma_create_event_channel()));
	listen_on_loopback(passive, &to);
	client = resolve(active, &to);
	create_queue_pair(client);
	CHECK(!rdma_connect(client, &param));
	server = await(passive, RDMA_CM_EVENT_CONNECT_REQUEST);
	create_queue_pair(server);
	CHECK(!ibv_post_recv(server->qp, &receive, &bad));
	CHECK(!rdma_accept(server, &param));
	await(active, RDMA_CM_EVENT_ESTABLISHED);
	await(passive, RDMA_CM_EVENT_ESTABLISHED);

	CHECK(!sem_init(&may_send, 0, 0) && !sem_init(&has_sent, 0, 0));
	CHECK(!pthread_create(&sender, NULL, sends, NULL));
	poller = pthread_self();
	polling = 1;
	for (polls = 0; !yields && polls < 1000; polls++)
		found = ibv_poll_cq(server->recv_cq, 1, &wc);
	CHECK(yields == 1 && found == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(!pthread_join(sender, NULL));
	puts("a message that came during the yield is returned");
	return 0;
}
