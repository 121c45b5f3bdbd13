/* Two UCX programs, one of which writes and reads the other one's memory by ucp_put_nbx and
 * ucp_get_nbx. They connect by rdma_cm ("ucx_memory PORT" has the memory, "ucx_memory PORT
 * ADDRESS" writes and reads it), or through files with the addresses of their workers
 * ("ucx_memory DIRECTORY owner" and "ucx_memory DIRECTORY user"). Each end computes the expected
 * bytes itself. */
#include "check.h"
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

enum { OFFER = 1, WRITTEN = 2, CHANGED = 3, DONE = 4, GOODBYE = 5 };
enum { ROUNDS = 2, GAP = 37, UNTOUCHED = 0xa5, RKEY_ROOM = 4096 };

static const size_t lens[] = { 1,    7,	    8,	   63,	    64,	     255,      1024,	      4095,
			       4096, 8191,  65536, 65537,   100000,  1 << 20,  (1 << 20) + 13, 3 << 20 };
#define PLACES (sizeof lens / sizeof lens[0])

/* Location of the memory: its address in the owning process, and the key that others need to
 * access it. */
struct offer {
	uint64_t address;
	uint64_t rkey_len;
	unsigned char rkey[RKEY_ROOM];
};

static ucp_context_h context;
static ucp_worker_h worker;
static ucp_conn_request_h asked;
static unsigned char *memory;
static size_t size;
static int everything_is_verified, peer_has_left;

static void request_came(ucp_conn_request_h request, void *arg)
{
	(void)arg;
	asked = request;
}

static void failed(void *arg, ucp_ep_h ep, ucs_status_t status)
{
	(void)arg;
	(void)ep;
	/* One end exits first. */
	if (!everything_is_verified) {
		fprintf(stderr, "endpoint: %s\n", ucs_status_string(status));
		exit(1);
	}
	peer_has_left = 1;
}

static void finish(void *request)
{
	ucs_status_t status;

	if (request == NULL)
		return;
	CHECK(!UCS_PTR_IS_ERR(request));
	while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS)
		ucp_worker_progress(worker);
	if (status != UCS_OK)
		fprintf(stderr, "request: %s\n", ucs_status_string(status));
	CHECK(status == UCS_OK);
	ucp_request_free(request);
}

/* Waits for the request and ignores its result, because the other end may have exited. */
static void wait_for(void *request)
{
	if (!UCS_PTR_IS_PTR(request))
		return;
	while (ucp_request_check_status(request) == UCS_INPROGRESS)
		ucp_worker_progress(worker);
	ucp_request_free(request);
}

static void send_message(ucp_ep_h ep, const void *from, size_t len, uint64_t tag)
{
	ucp_request_param_t param = { 0 };

	finish(ucp_tag_send_nbx(ep, from, len, tag, &param));
}

static void receive_message(void *place, size_t len, uint64_t tag)
{
	ucp_request_param_t param = { 0 };

	finish(ucp_tag_recv_nbx(worker, place, len, tag, UINT64_MAX, &param));
}

static void flush(ucp_ep_h ep)
{
	ucp_request_param_t param = { 0 };

	finish(ucp_ep_flush_nbx(ep, &param));
}

/* Returns byte `at` of place `place` in a round. */
static unsigned char byte_of(unsigned round, size_t place, size_t at)
{
	uint32_t word = (uint32_t)(at + 1) * 2654435761u ^ (uint32_t)(round * 977 + place * 131);

	return (unsigned char)(word >> 13);
}

static size_t offset_of(size_t place)
{
	size_t at = GAP, before;

	for (before = 0; before < place; before++)
		at += lens[before] + GAP;
	return at;
}

static ucp_ep_h make_endpoint(ucp_ep_params_t *params)
{
	ucp_ep_h ep;

	params->field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
	params->err_mode = UCP_ERR_HANDLING_MODE_PEER;
	params->err_handler.cb = failed;
	CHECK(ucp_ep_create(worker, params, &ep) == UCS_OK);
	return ep;
}

static ucp_ep_h accept_endpoint(int port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port) };
	ucp_listener_params_t listening = { 0 };
	ucp_ep_params_t params = { .field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST };
	ucp_listener_h listener;

	listening.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
	listening.sockaddr.addr = (struct sockaddr *)&at;
	listening.sockaddr.addrlen = sizeof at;
	listening.conn_handler.cb = request_came;
	CHECK(ucp_listener_create(worker, &listening, &listener) == UCS_OK);
	printf("listening\n");
	while (!asked)
		ucp_worker_progress(worker);
	params.conn_request = asked;
	return make_endpoint(&params);
}

static ucp_ep_h connect_endpoint(int port, const char *address)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port) };
	ucp_ep_params_t params = { .field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR };

	CHECK(inet_pton(AF_INET, address, &to.sin_addr) == 1);
	params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
	params.sockaddr.addr = (struct sockaddr *)&to;
	params.sockaddr.addrlen = sizeof to;
	return make_endpoint(&params);
}

/* Writes the worker's address to a file of this end, and reads the other end's file. */
static ucp_ep_h exchange_addresses(const char *directory, const char *own, const char *other)
{
	ucp_ep_params_t params = { .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS };
	char path[4096], whole[4096];
	unsigned char theirs[65536];
	ucp_address_t *address;
	size_t len;
	FILE *file;

	CHECK(ucp_worker_get_address(worker, &address, &len) == UCS_OK);
	snprintf(path, sizeof path, "%s/%s.part", directory, own);
	snprintf(whole, sizeof whole, "%s/%s", directory, own);
	CHECK((file = fopen(path, "w")) && fwrite(address, 1, len, file) == len && fclose(file) == 0);
	CHECK(rename(path, whole) == 0);
	ucp_worker_release_address(worker, address);
	printf("listening\n");
	snprintf(whole, sizeof whole, "%s/%s", directory, other);
	while (!(file = fopen(whole, "r")))
		usleep(1000);
	CHECK((len = fread(theirs, 1, sizeof theirs, file)) > 0 && fclose(file) == 0);
	params.address = (ucp_address_t *)theirs;
	return make_endpoint(&params);
}

static void be_owner(ucp_ep_h ep)
{
	ucp_mem_map_params_t params = { 0 };
	ucp_request_param_t param = { 0 };
	struct offer offer = { 0 };
	size_t place, at, verified = 0;
	ucp_mem_h mapped;
	void *rkey;
	size_t rkey_len;
	unsigned round;
	char word;

	params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
	params.address = memory;
	params.length = size;
	CHECK(ucp_mem_map(context, &params, &mapped) == UCS_OK);
	CHECK(ucp_rkey_pack(context, mapped, &rkey, &rkey_len) == UCS_OK && rkey_len <= RKEY_ROOM);
	offer.address = (uintptr_t)memory;
	offer.rkey_len = rkey_len;
	memcpy(offer.rkey, rkey, rkey_len);
	ucp_rkey_buffer_release(rkey);
	for (round = 0; round < ROUNDS; round++) {
		memset(memory, UNTOUCHED, size);
		send_message(ep, &offer, sizeof offer, OFFER);
		receive_message(&word, 1, WRITTEN);
		for (place = 0; place < PLACES; place++) {
			unsigned char *bytes = memory + offset_of(place);

			for (at = 0; at < GAP; at++)
				CHECK(bytes[-1 - (long)at] == UNTOUCHED);
			for (at = 0; at < lens[place]; at++)
				CHECK(bytes[at] == byte_of(round, place, at));
			verified += lens[place];
		}
		for (at = 0; at < size; at++)
			memory[at] ^= 0xff;
		send_message(ep, &word, 1, CHANGED);
		receive_message(&word, 1, DONE);
	}
	printf("verified %zu bytes that were put\n", verified);
	everything_is_verified = 1;
	wait_for(ucp_tag_send_nbx(ep, &word, 1, GOODBYE, &param));
	CHECK(ucp_mem_unmap(context, mapped) == UCS_OK);
}

static void be_user(ucp_ep_h ep)
{
	ucp_request_param_t param = { 0 };
	void *requests[PLACES], *request;
	struct offer offer;
	size_t place, at, verified = 0;
	ucp_rkey_h rkey;
	unsigned round;
	char word = 0;

	for (round = 0; round < ROUNDS; round++) {
		receive_message(&offer, sizeof offer, OFFER);
		CHECK(ucp_ep_rkey_unpack(ep, offer.rkey, &rkey) == UCS_OK);
		for (place = 0; place < PLACES; place++) {
			size_t offset = offset_of(place);

			for (at = 0; at < lens[place]; at++)
				memory[offset + at] = byte_of(round, place, at);
			requests[place] = ucp_put_nbx(ep, memory + offset, lens[place], offer.address + offset, rkey, &param);
		}
		for (place = 0; place < PLACES; place++)
			finish(requests[place]);
		/* After the flush, all data is in the memory of the other end. */
		flush(ep);
		send_message(ep, &word, 1, WRITTEN);
		receive_message(&word, 1, CHANGED);
		memset(memory, 0, size);
		for (place = 0; place < PLACES; place++) {
			size_t offset = offset_of(place);

			requests[place] = ucp_get_nbx(ep, memory + offset, lens[place], offer.address + offset, rkey, &param);
		}
		for (place = 0; place < PLACES; place++)
			finish(requests[place]);
		for (place = 0; place < PLACES; place++) {
			unsigned char *bytes = memory + offset_of(place);

			for (at = 0; at < GAP; at++)
				CHECK(bytes[-1 - (long)at] == 0);
			for (at = 0; at < lens[place]; at++)
				CHECK(bytes[at] == (byte_of(round, place, at) ^ 0xff));
			verified += lens[place];
		}
		ucp_rkey_destroy(rkey);
		send_message(ep, &word, 1, DONE);
	}
	everything_is_verified = 1;
	printf("verified %zu bytes that were got\n", verified);
	/* The last message may need this end to make progress. */
	request = ucp_tag_recv_nbx(worker, &word, 1, GOODBYE, UINT64_MAX, &param);
	while (!peer_has_left && UCS_PTR_IS_PTR(request) && ucp_request_check_status(request) == UCS_INPROGRESS)
		ucp_worker_progress(worker);
}

static void close_endpoint(ucp_ep_h ep)
{
	ucp_request_param_t param = { 0 };

	/* The flush ensures that the other end has the last message. */
	wait_for(ucp_ep_flush_nbx(ep, &param));
	param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
	param.flags = UCP_EP_CLOSE_FLAG_FORCE;
	wait_for(ucp_ep_close_nbx(ep, &param));
}

int main(int argc, char **argv)
{
	ucp_params_t params = { .field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG | UCP_FEATURE_RMA };
	ucp_worker_params_t of_worker = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
					  .thread_mode = UCS_THREAD_MODE_SINGLE };
	int port, owns;
	ucp_ep_h ep;

	setvbuf(stdout, NULL, _IOLBF, 0);
	CHECK(argc == 2 || argc == 3);
	CHECK(ucp_init(&params, NULL, &context) == UCS_OK);
	CHECK(ucp_worker_create(context, &of_worker, &worker) == UCS_OK);
	size = offset_of(PLACES);
	CHECK((memory = malloc(size)));
	port = atoi(argv[1]);
	if (port == 0) {
		owns = strcmp(argv[2], "owner") == 0;
		ep = exchange_addresses(argv[1], owns ? "owner" : "user", owns ? "user" : "owner");
	} else {
		owns = argc == 2;
		ep = owns ? accept_endpoint(port) : connect_endpoint(port, argv[2]);
	}
	if (owns)
		be_owner(ep);
	else
		be_user(ep);
	close_endpoint(ep);
	ucp_worker_destroy(worker);
	ucp_cleanup(context);
	return 0;
}
