/* Calls every function of rdma_cm with NULL, with garbage and in the wrong state. Each call must
 * return an error number, and none may crash. */
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;

/* Checks that the call fails; `wanted` is its errno, or 0 for any. */
#define REFUSED(call, wanted) do { \
	errno = 0; \
	long result_ = (long)(call); \
	if (!result_ || !errno || (wanted && errno != wanted)) { \
		printf("%d: %s: result %ld, errno %d (%s)\n", __LINE__, #call, result_, errno, strerror(errno)); \
		failures++; \
	} \
} while (0)

/* Checks that the call succeeds. */
#define GOOD(call) do { \
	errno = 0; \
	if ((call)) { \
		printf("%d: %s: %s\n", __LINE__, #call, strerror(errno)); \
		failures++; \
	} \
} while (0)

static void *const garbage[] = { NULL, (void *)8, (void *)0x7fff00000001, (void *)-1L };

static void no_id(struct rdma_cm_id *id)
{
	struct sockaddr_in addr = { .sin_family = AF_INET };
	struct ibv_qp_init_attr qp = { 0 };
	struct ibv_srq_init_attr srq = { 0 };
	struct rdma_conn_param param = { 0 };
	struct rdma_cm_id *other;
	struct ibv_qp_attr attr = { 0 };
	struct ibv_ece ece = { 0 };
	int mask, value = 1;

	REFUSED(rdma_destroy_id(id), EINVAL);
	REFUSED(rdma_bind_addr(id, (void *)&addr), EINVAL);
	REFUSED(rdma_resolve_addr(id, NULL, (void *)&addr, 1), EINVAL);
	REFUSED(rdma_resolve_route(id, 1), EINVAL);
	REFUSED(rdma_create_qp(id, NULL, &qp), EINVAL);
	REFUSED(rdma_create_srq(id, NULL, &srq), EINVAL);
	REFUSED(rdma_connect(id, &param), EINVAL);
	REFUSED(rdma_establish(id), EINVAL);
	REFUSED(rdma_listen(id, 1), EINVAL);
	REFUSED(rdma_get_request(id, &other), EINVAL);
	REFUSED(rdma_accept(id, &param), EINVAL);
	REFUSED(rdma_reject(id, NULL, 0), EINVAL);
	REFUSED(rdma_reject_ece(id, NULL, 0), EINVAL);
	REFUSED(rdma_notify(id, IBV_EVENT_COMM_EST), EINVAL);
	REFUSED(rdma_disconnect(id), EINVAL);
	REFUSED(rdma_join_multicast(id, (void *)&addr, NULL), EINVAL);
	REFUSED(rdma_leave_multicast(id, (void *)&addr), EINVAL);
	REFUSED(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &value, sizeof value), EINVAL);
	REFUSED(rdma_migrate_id(id, NULL), EINVAL);
	REFUSED(rdma_init_qp_attr(id, &attr, &mask), EINVAL);
	REFUSED(rdma_set_local_ece(id, &ece), EINVAL);
	REFUSED(rdma_get_remote_ece(id, &ece), EINVAL);
	rdma_destroy_qp(id);
	rdma_destroy_srq(id);
	rdma_destroy_ep(id);
	if (rdma_get_src_port(id) || rdma_get_dst_port(id)) {
		printf("an unbound port\n");
		failures++;
	}
}

static void idle_id(struct rdma_event_channel *channel)
{
	struct rdma_conn_param param = { 0 };
	struct sockaddr_storage other = { .ss_family = AF_UNIX };
	struct sockaddr_in far = { .sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(0x01010101) };
	struct sockaddr_in loopback = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct rdma_cm_id *id, *request;
	struct rdma_cm_event *event;
	struct ibv_qp_init_attr qp = { .qp_type = IBV_QPT_RC };
	struct ibv_qp_attr attr = { 0 };
	int mask, wide = 1;
	char narrow = 1;

	REFUSED(rdma_create_id(channel, NULL, NULL, RDMA_PS_TCP), EINVAL);
	REFUSED(rdma_create_id(channel, &id, NULL, RDMA_PS_UDP), EOPNOTSUPP);
	REFUSED(rdma_create_id(channel, &id, NULL, RDMA_PS_IPOIB), EOPNOTSUPP);
	REFUSED(rdma_create_id(channel, &id, NULL, RDMA_PS_IB), EOPNOTSUPP);
	REFUSED(rdma_create_id(channel, &id, NULL, 77), EINVAL);
	REFUSED(rdma_create_id((void *)8, &id, NULL, RDMA_PS_TCP), EINVAL);
	GOOD(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));

	REFUSED(rdma_bind_addr(id, NULL), EINVAL);
	REFUSED(rdma_bind_addr(id, (void *)&other), EINVAL);
	REFUSED(rdma_bind_addr(id, (void *)&far), EADDRNOTAVAIL);
	REFUSED(rdma_resolve_addr(id, NULL, NULL, 1), EINVAL);
	REFUSED(rdma_resolve_addr(id, NULL, (void *)&other, 1), EINVAL);
	REFUSED(rdma_resolve_route(id, 1), EINVAL);
	REFUSED(rdma_connect(id, &param), EINVAL);
	REFUSED(rdma_accept(id, &param), EINVAL);
	REFUSED(rdma_reject(id, NULL, 3), EINVAL);
	REFUSED(rdma_disconnect(id), EINVAL);
	REFUSED(rdma_establish(id), EINVAL);
	REFUSED(rdma_create_qp(id, NULL, NULL), EINVAL);
	REFUSED(rdma_create_qp(id, NULL, &qp), EINVAL);
	REFUSED(rdma_create_qp_ex(id, NULL), EINVAL);
	REFUSED(rdma_create_srq(id, NULL, NULL), EINVAL);
	REFUSED(rdma_create_srq_ex(id, NULL), EINVAL);
	REFUSED(rdma_init_qp_attr(id, NULL, &mask), EINVAL);
	REFUSED(rdma_init_qp_attr(id, &attr, NULL), EINVAL);
	REFUSED(rdma_get_request(id, &request), EINVAL);
	REFUSED(rdma_join_multicast(id, (void *)&far, NULL), ENOSYS);
	REFUSED(rdma_join_multicast_ex(id, NULL, NULL), EINVAL);
	REFUSED(rdma_leave_multicast(id, (void *)&far), EADDRNOTAVAIL);
	REFUSED(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &narrow, 1), EINVAL);
	REFUSED(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &wide, sizeof wide), EINVAL);
	REFUSED(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, NULL, 1), EINVAL);
	REFUSED(rdma_set_option(id, RDMA_OPTION_ID, 99, &wide, sizeof wide), ENOSYS);
	REFUSED(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &wide, sizeof wide), ENOSYS);
	REFUSED(rdma_migrate_id(id, (void *)8), EINVAL);
	REFUSED(rdma_get_cm_event(channel, NULL), EINVAL);

	GOOD(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &narrow, 1));
	GOOD(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &wide, sizeof wide));
	GOOD(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &wide, sizeof wide));
	GOOD(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &narrow, 1));
	GOOD(rdma_bind_addr(id, (void *)&loopback));
	REFUSED(rdma_bind_addr(id, (void *)&loopback), EINVAL);
	REFUSED(rdma_connect(id, &param), EINVAL);
	qp.qp_type = IBV_QPT_UD;
	REFUSED(rdma_create_qp(id, NULL, &qp), EINVAL);
	qp.qp_type = IBV_QPT_RC;
	qp.cap.max_send_wr = 1u << 31;
	REFUSED(rdma_create_qp(id, NULL, &qp), EINVAL);
	if (id->qp || id->send_cq || id->recv_cq) {
		printf("something is left of a queue pair that was refused\n");
		failures++;
	}
	GOOD(rdma_listen(id, -5));
	REFUSED(rdma_listen(id, 1), EINVAL);
	REFUSED(rdma_resolve_addr(id, NULL, (void *)&loopback, 1), EINVAL);
	REFUSED(rdma_disconnect(id), EINVAL);
	GOOD(rdma_destroy_id(id));
	REFUSED(rdma_destroy_id(id), EINVAL);
	REFUSED(rdma_ack_cm_event(NULL), EINVAL);
	REFUSED(rdma_ack_cm_event((void *)64), EINVAL);
	for (size_t i = 0; i < sizeof garbage / sizeof *garbage; i++)
		REFUSED(rdma_get_cm_event(garbage[i], &event), EINVAL);
}

/* An event can be acknowledged only once, and an id whose connection failed can be destroyed in
 * any order. */
static void failed_connection(struct rdma_event_channel *channel)
{
	struct sockaddr_in unbound = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct ibv_qp_init_attr qp = { .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	struct rdma_conn_param param = { .private_data_len = 5 };
	struct rdma_cm_event *event;
	struct rdma_cm_id *id, *holder;

	/* The port is bound, but nothing listens on it. */
	GOOD(rdma_create_id(channel, &holder, NULL, RDMA_PS_TCP));
	GOOD(rdma_bind_addr(holder, (void *)&unbound));
	unbound.sin_port = rdma_get_src_port(holder);

	GOOD(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	REFUSED(rdma_bind_addr(id, (void *)&unbound), EADDRINUSE);
	GOOD(rdma_resolve_addr(id, NULL, (void *)&unbound, 100));
	GOOD(rdma_get_cm_event(channel, &event));
	GOOD(rdma_ack_cm_event(event));
	REFUSED(rdma_ack_cm_event(event), EINVAL);
	GOOD(rdma_resolve_route(id, 100));
	GOOD(rdma_create_qp(id, NULL, &qp));
	REFUSED(rdma_create_qp(id, NULL, &qp), EINVAL);
	/* The length of private data that is NULL does not matter. */
	GOOD(rdma_connect(id, &param));
	for (int seen = 0; seen < 2; seen++) {
		GOOD(rdma_get_cm_event(channel, &event));
		if (event->event == RDMA_CM_EVENT_REJECTED && event->status != -ECONNREFUSED) {
			printf("status %d\n", event->status);
			failures++;
		}
		GOOD(rdma_ack_cm_event(event));
	}
	REFUSED(rdma_connect(id, &param), EINVAL);
	GOOD(rdma_disconnect(id));
	rdma_destroy_qp(id);
	rdma_destroy_qp(id);
	GOOD(rdma_destroy_id(id));
	GOOD(rdma_destroy_id(holder));
}

int main(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_addrinfo *res;

	if (!channel)
		return perror("rdma_create_event_channel"), 1;
	for (size_t i = 0; i < sizeof garbage / sizeof *garbage; i++)
		no_id(garbage[i]);
	/* The pointer refers to a valid object of another type. */
	no_id((void *)channel);
	idle_id(channel);
	failed_connection(channel);
	REFUSED(rdma_getaddrinfo(NULL, NULL, NULL, &res), EINVAL);
	REFUSED(rdma_getaddrinfo("127.0.0.1", "7471", NULL, NULL), EINVAL);
	if (rdma_getaddrinfo("no.such.host.invalid", "7471", NULL, &res) == 0) {
		printf("a host that does not exist\n");
		failures++;
	}
	REFUSED(rdma_create_ep(NULL, NULL, NULL, NULL), EINVAL);
	rdma_freeaddrinfo(NULL);
	rdma_free_devices(NULL);
	for (int event = -2; event < 40; event++)
		if (!rdma_event_str(event))
			failures++;
	rdma_destroy_event_channel(channel);
	rdma_destroy_event_channel(channel);
	rdma_destroy_event_channel(NULL);
	printf("%d failures\n", failures);
	return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
