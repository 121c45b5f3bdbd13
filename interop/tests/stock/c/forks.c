/* A server that continues after forks, and its children: the objects that a child inherits are
 * inert, and each child connects with its own engine. A child of a child does the same. */
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHILDREN 3

static void fail(const char *what)
{
	fprintf(stderr, "%d: ", (int)getpid());
	perror(what);
	exit(EXIT_FAILURE);
}

static struct rdma_cm_event *next(struct rdma_event_channel *channel, enum rdma_cm_event_type expected)
{
	struct rdma_cm_event *event;

	if (rdma_get_cm_event(channel, &event))
		fail("rdma_get_cm_event");
	if (event->event != expected) {
		fprintf(stderr, "expected %s, got %s\n", rdma_event_str(expected), rdma_event_str(event->event));
		exit(EXIT_FAILURE);
	}
	return event;
}

static void make_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .cap = { 2, 2, 1, 1, 0 } };

	/* If no queues and no protection domain are given, the id creates its own. */
	if (rdma_create_qp(id, NULL, &attr))
		fail("rdma_create_qp");
	if (!id->send_cq || !id->recv_cq || !id->send_cq_channel || !id->recv_cq_channel || !id->pd)
		fail("queues of the id");
}

static void let_go(struct rdma_cm_id *id, struct ibv_mr *mr)
{
	rdma_destroy_qp(id);
	if (rdma_dereg_mr(mr))
		fail("rdma_dereg_mr");
	if (rdma_destroy_id(id))
		fail("rdma_destroy_id");
}

/* Connects to the parent and sends a message composed by this process. */
static struct rdma_cm_id *call(struct rdma_event_channel *channel, uint16_t port, char *message, size_t size, struct ibv_mr **mr)
{
	struct sockaddr_in server = { .sin_family = AF_INET, .sin_port = port, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct rdma_cm_id *id;

	if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP))
		fail("a child's id");
	if (rdma_resolve_addr(id, NULL, (void *)&server, 2000))
		fail("rdma_resolve_addr");
	rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_ADDR_RESOLVED));
	if (rdma_resolve_route(id, 2000))
		fail("rdma_resolve_route");
	rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_ROUTE_RESOLVED));
	make_qp(id);
	if (!(*mr = rdma_reg_msgs(id, message, size)))
		fail("rdma_reg_msgs");
	if (rdma_connect(id, NULL))
		fail("rdma_connect");
	rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_ESTABLISHED));
	return id;
}

static void say(struct rdma_cm_id *id, char *message, size_t size, struct ibv_mr *mr)
{
	struct ibv_wc wc;

	if (rdma_post_send(id, NULL, message, size, mr, IBV_SEND_SIGNALED))
		fail("rdma_post_send");
	if (rdma_get_send_comp(id, &wc) != 1 || wc.status != IBV_WC_SUCCESS)
		fail("rdma_get_send_comp");
}

static void talk(uint16_t port)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	char message[32] = "from a child";
	struct rdma_cm_id *id;
	struct ibv_mr *mr;

	if (!channel)
		fail("a child's channel");
	id = call(channel, port, message, sizeof message, &mr);
	say(id, message, sizeof message, mr);
	if (rdma_disconnect(id))
		fail("rdma_disconnect");
	rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_DISCONNECTED));
	let_go(id, mr);
	rdma_destroy_event_channel(channel);
}

static void be_child(struct rdma_event_channel *channel, struct rdma_cm_id *listener, uint16_t port, int generations)
{
	struct rdma_cm_event *event;
	int status;

	if (rdma_get_cm_event(channel, &event) != -1 || errno != EIO)
		fail("an inherited channel is inert");
	if (rdma_listen(listener, 1) != -1 || errno != EIO)
		fail("an inherited id is inert");
	if (rdma_destroy_id(listener))
		fail("an inherited id is forgotten");
	rdma_destroy_event_channel(channel);
	if (generations > 1) {
		pid_t child = fork();

		if (child == 0) {
			talk(port);
			exit(EXIT_SUCCESS);
		}
		if (child < 0 || waitpid(child, &status, 0) != child || status)
			fail("a child's child");
	} else {
		talk(port);
	}
	exit(EXIT_SUCCESS);
}

static void serve(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *id = event->id;
	char message[32] = "";
	struct ibv_mr *mr;
	struct ibv_wc wc;

	rdma_ack_cm_event(event);
	make_qp(id);
	if (!(mr = rdma_reg_msgs(id, message, sizeof message)))
		fail("rdma_reg_msgs");
	if (rdma_post_recv(id, NULL, message, sizeof message, mr))
		fail("rdma_post_recv");
	if (rdma_accept(id, NULL))
		fail("rdma_accept");
	rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_ESTABLISHED));
	if (rdma_get_recv_comp(id, &wc) != 1 || wc.status != IBV_WC_SUCCESS || strcmp(message, "from a child"))
		fail("rdma_get_recv_comp");
	rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_DISCONNECTED));
	let_go(id, mr);
}

/* An object that the parent destroys is gone, although a child that has inherited it is still
 * running. */
static void child_holds_nothing(struct rdma_event_channel *channel)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct rdma_cm_id *listener, *id;
	pid_t child;

	if (rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) || rdma_bind_addr(listener, (void *)&to) ||
	    rdma_listen(listener, 1))
		fail("one more listener");
	to.sin_port = rdma_get_src_port(listener);
	child = fork();
	if (child < 0)
		fail("fork");
	if (child == 0) {
		pause();
		exit(EXIT_SUCCESS);
	}
	if (rdma_destroy_id(listener) || rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) ||
	    rdma_resolve_addr(id, NULL, (void *)&to, 2000))
		fail("a listener that is gone");
	rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_ADDR_RESOLVED));
	if (rdma_resolve_route(id, 2000))
		fail("rdma_resolve_route");
	rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_ROUTE_RESOLVED));
	make_qp(id);
	if (rdma_connect(id, NULL))
		fail("rdma_connect");
	rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_REJECTED));
	rdma_destroy_qp(id);
	if (rdma_destroy_id(id) || kill(child, SIGKILL) || waitpid(child, NULL, 0) != child)
		fail("letting go");
}

/* A child connects, forks a child of its own and dies. Its connection ends with it, although the
 * other child is still running. */
static void dies_with_its_maker(struct rdma_event_channel *channel, uint16_t port)
{
	char message[32] = "";
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	struct ibv_wc wc;
	pid_t maker = fork(), heir;

	if (maker < 0)
		fail("fork");
	if (maker == 0) {
		struct rdma_event_channel *own = rdma_create_event_channel();

		if (!own)
			fail("a child's channel");
		id = call(own, port, message, sizeof message, &mr);
		heir = fork();
		if (heir < 0)
			fail("fork");
		if (heir > 0) {
			snprintf(message, sizeof message, "%d", (int)heir);
			say(id, message, sizeof message, mr);
		}
		for (;;)
			pause();
	}
	event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	id = event->id;
	rdma_ack_cm_event(event);
	make_qp(id);
	if (!(mr = rdma_reg_msgs(id, message, sizeof message)) || rdma_post_recv(id, NULL, message, sizeof message, mr))
		fail("a receive");
	if (rdma_accept(id, NULL))
		fail("rdma_accept");
	rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_ESTABLISHED));
	if (rdma_get_recv_comp(id, &wc) != 1 || wc.status != IBV_WC_SUCCESS)
		fail("rdma_get_recv_comp");
	heir = atoi(message);
	if (heir <= 1 || kill(maker, SIGKILL) || waitpid(maker, NULL, 0) != maker)
		fail("killing the child");
	rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_DISCONNECTED));
	if (kill(heir, SIGKILL))
		fail("its own child lives");
	let_go(id, mr);
}

int main(void)
{
	struct sockaddr_in any = { .sin_family = AF_INET };
	struct rdma_event_channel *channel;
	struct rdma_cm_id *listener;
	uint16_t port;
	int status;

	if (!(channel = rdma_create_event_channel()) || rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) ||
	    rdma_bind_addr(listener, (void *)&any) || rdma_listen(listener, 4))
		fail("listening");
	port = rdma_get_src_port(listener);
	for (int i = 0; i < CHILDREN; i++) {
		pid_t child = fork();

		if (child < 0)
			fail("fork");
		if (child == 0)
			be_child(channel, listener, port, i + 1 < CHILDREN ? 1 : 2);
		serve(channel);
		if (waitpid(child, &status, 0) != child || status) {
			fprintf(stderr, "child %d: status %d\n", i, status);
			return EXIT_FAILURE;
		}
	}
	child_holds_nothing(channel);
	dies_with_its_maker(channel, port);
	if (rdma_destroy_id(listener))
		fail("rdma_destroy_id");
	rdma_destroy_event_channel(channel);
	return EXIT_SUCCESS;
}
