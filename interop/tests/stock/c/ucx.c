/* Two UCX programs that connect by rdma_cm. "ucx PORT" listens; "ucx PORT ADDRESS MEBIBYTES
 * PAUSE" connects. The listening end sends first, while the connecting end sleeps for PAUSE
 * milliseconds after each call of ucp_worker_progress, so that UCX's own thread takes events and
 * datagrams in the meantime. Then the listening end receives MEBIBYTES and answers with their
 * hash. */
#include "check.h"
#include <arpa/inet.h>
#include <stdint.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

enum { GREETING = 1, DATA = 2, HASH = 3, MEBIBYTE = 1 << 20, UNDER_WAY = 4 };

static ucp_worker_h worker;
static ucp_conn_request_h asked;
static int peer_has_left;

static void request_came(ucp_conn_request_h request, void *arg)
{
	(void)arg;
	asked = request;
}

static void failed(void *arg, ucp_ep_h ep, ucs_status_t status)
{
	(void)arg;
	(void)ep;
	/* The connecting end exits when it has the hash. */
	if (status != UCS_ERR_CONNECTION_RESET) {
		fprintf(stderr, "endpoint: %s\n", ucs_status_string(status));
		exit(1);
	}
	peer_has_left = 1;
}

static void finish_at_leisure(void *request, int pause)
{
	ucs_status_t status;

	if (request == NULL)
		return;
	CHECK(!UCS_PTR_IS_ERR(request));
	while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS) {
		ucp_worker_progress(worker);
		if (pause)
			usleep(pause * 1000);
	}
	if (status != UCS_OK)
		fprintf(stderr, "request: %s\n", ucs_status_string(status));
	CHECK(status == UCS_OK);
	ucp_request_free(request);
}

static void finish(void *request)
{
	finish_at_leisure(request, 0);
}

static void *receive(void *place, size_t len, uint64_t tag)
{
	ucp_request_param_t param = { 0 };

	return ucp_tag_recv_nbx(worker, place, len, tag, UINT64_MAX, &param);
}

static void *post(ucp_ep_h ep, const void *from, size_t len, uint64_t tag)
{
	ucp_request_param_t param = { 0 };

	return ucp_tag_send_nbx(ep, from, len, tag, &param);
}

/* Computes the FNV-1a hash of words. */
static uint64_t hash(uint64_t before, const uint64_t *words, size_t count)
{
	while (count--)
		before = (before ^ *words++) * 0x100000001b3;
	return before;
}

static ucp_ep_h endpoint(const char *address, int port)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port) };
	ucp_ep_params_t params = { 0 };
	ucp_ep_h ep;

	params.field_mask = UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
	params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
	params.err_handler.cb = failed;
	if (address) {
		CHECK(inet_pton(AF_INET, address, &to.sin_addr) == 1);
		params.field_mask |= UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
		params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
		params.sockaddr.addr = (struct sockaddr *)&to;
		params.sockaddr.addrlen = sizeof to;
	} else {
		params.field_mask |= UCP_EP_PARAM_FIELD_CONN_REQUEST;
		params.conn_request = asked;
	}
	CHECK(ucp_ep_create(worker, &params, &ep) == UCS_OK);
	return ep;
}

static void close_endpoint(ucp_ep_h ep, uint32_t flags)
{
	ucp_request_param_t param = { .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = flags };
	void *request = ucp_ep_close_nbx(ep, &param);

	if (UCS_PTR_IS_PTR(request)) {
		while (ucp_request_check_status(request) == UCS_INPROGRESS)
			ucp_worker_progress(worker);
		ucp_request_free(request);
	}
}

static uint64_t *buffers[UNDER_WAY];

static void serve(int port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port) };
	ucp_listener_params_t params = { 0 };
	uint64_t greeting[2], done, sum = 0;
	void *requests[UNDER_WAY];
	ucp_listener_h listener;
	ucp_ep_h ep;

	params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
	params.sockaddr.addr = (struct sockaddr *)&at;
	params.sockaddr.addrlen = sizeof at;
	params.conn_handler.cb = request_came;
	CHECK(ucp_listener_create(worker, &params, &listener) == UCS_OK);
	printf("listening\n");
	while (!asked)
		ucp_worker_progress(worker);
	ep = endpoint(NULL, 0);
	greeting[0] = 0x6f6c6c6568;
	finish(post(ep, greeting, 8, GREETING));
	/* The message contains the number of messages to come. */
	finish(receive(greeting, 16, GREETING));
	for (done = 0; done < greeting[0] && done < UNDER_WAY; done++)
		requests[done] = receive(buffers[done], MEBIBYTE, DATA);
	for (done = 0; done < greeting[0]; done++) {
		uint64_t *buffer = buffers[done % UNDER_WAY];

		finish(requests[done % UNDER_WAY]);
		sum = hash(sum, buffer, MEBIBYTE / 8);
		if (done + UNDER_WAY < greeting[0])
			requests[done % UNDER_WAY] = receive(buffer, MEBIBYTE, DATA);
	}
	finish(post(ep, &sum, 8, HASH));
	printf("received %llu MiB, hash %016llx\n", (unsigned long long)done, (unsigned long long)sum);
	while (!peer_has_left)
		ucp_worker_progress(worker);
	close_endpoint(ep, UCP_EP_CLOSE_FLAG_FORCE);
	ucp_listener_destroy(listener);
}

static void connect_and_send(int port, const char *address, uint64_t mebibytes, int pause)
{
	uint64_t greeting[2] = { 0 }, done, sum = 0, theirs = 0, word = 88172645463325252;
	void *requests[UNDER_WAY] = { NULL };
	ucp_ep_h ep = endpoint(address, port);
	int at;

	finish_at_leisure(receive(greeting, 8, GREETING), pause);
	CHECK(greeting[0] == 0x6f6c6c6568);
	printf("greeted\n");
	greeting[0] = mebibytes;
	finish(post(ep, greeting, 16, GREETING));
	for (done = 0; done < mebibytes; done++) {
		uint64_t *buffer = buffers[done % UNDER_WAY];

		finish(requests[done % UNDER_WAY]);
		for (at = 0; at < MEBIBYTE / 8; at++) {
			word ^= word << 13;
			word ^= word >> 7;
			word ^= word << 17;
			buffer[at] = word;
		}
		sum = hash(sum, buffer, MEBIBYTE / 8);
		requests[done % UNDER_WAY] = post(ep, buffer, MEBIBYTE, DATA);
	}
	for (at = 0; at < UNDER_WAY; at++)
		finish(requests[at]);
	finish(receive(&theirs, 8, HASH));
	CHECK(theirs == sum);
	printf("sent %llu MiB, hash %016llx\n", (unsigned long long)done, (unsigned long long)sum);
	close_endpoint(ep, 0);
}

int main(int argc, char **argv)
{
	ucp_params_t params = { .field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG };
	ucp_worker_params_t of_worker = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
					  .thread_mode = UCS_THREAD_MODE_SINGLE };
	ucp_context_h context;
	int at;

	setvbuf(stdout, NULL, _IOLBF, 0);
	CHECK(argc == 2 || argc == 5);
	CHECK(ucp_init(&params, NULL, &context) == UCS_OK);
	CHECK(ucp_worker_create(context, &of_worker, &worker) == UCS_OK);
	for (at = 0; at < UNDER_WAY; at++)
		CHECK((buffers[at] = malloc(MEBIBYTE)));
	if (argc == 2)
		serve(atoi(argv[1]));
	else
		connect_and_send(atoi(argv[1]), argv[2], strtoull(argv[3], NULL, 10), atoi(argv[4]));
	ucp_worker_destroy(worker);
	ucp_cleanup(context);
	return 0;
}
