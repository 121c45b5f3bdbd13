/* A receiver ends as soon as it has seen all data. Every request of the sender must succeed
 * nevertheless, because adapters acknowledge a message before its receive completes.
 *
 * usage: last_acks ROUNDS. Each round forks the receiver once for every operation and every way
 * to end. */
#define _GNU_SOURCE
#include "check.h"
#include "ends.h"
#include <signal.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <time.h>

#define MESSAGES 32
#define BYTES 65536
#define SECONDS 60

static const struct {
	const char *name;
	enum ibv_wr_opcode opcode;
	bool receives;
} operations[] = {
	{ "Send", IBV_WR_SEND, true },
	{ "Send with immediate", IBV_WR_SEND_WITH_IMM, true },
	{ "Write with immediate", IBV_WR_RDMA_WRITE_WITH_IMM, true },
	/* The receiver waits for the last byte to change in memory. */
	{ "Write", IBV_WR_RDMA_WRITE, false },
	/* The receiver waits for the effect of the last operation in memory. */
	{ "FetchAdd", IBV_WR_ATOMIC_FETCH_AND_ADD, false },
};

enum ending { EXIT_NOW, KILLED, EXECUTED, DISCONNECT, DESTROY, DISCONNECT_DESTROY, TO_ERROR, RETURN, ENDINGS };

static const char *const endings[ENDINGS] = {
	"_exit", "SIGKILL", "execve", "rdma_disconnect", "ibv_destroy_qp", "rdma_disconnect, ibv_destroy_qp", "ERR", "exit",
};

static const struct setup setup = { .window = 64, .memory = MESSAGES * BYTES };

static struct queues one_queue(struct ibv_context *verbs)
{
	struct ibv_cq *cq = make_queue(verbs, 256, NULL, 0);

	return (struct queues){ cq, cq };
}

static void end_as(struct end *end, enum ending ending)
{
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };

	if (ending == DISCONNECT || ending == DISCONNECT_DESTROY)
		CHECK(!rdma_disconnect(end->id));
	if (ending == DESTROY || ending == DISCONNECT_DESTROY)
		CHECK(!ibv_destroy_qp(end->id->qp));
	if (ending == TO_ERROR)
		CHECK(!ibv_modify_qp(end->id->qp, &error, IBV_QP_STATE));
	if (ending == KILLED)
		raise(SIGKILL);
	if (ending == EXECUTED)
		execl("/bin/true", "true", (char *)NULL);
	if (ending == RETURN)
		exit(EXIT_SUCCESS);
	_exit(EXIT_SUCCESS);
}

static void receive(int port_to, size_t operation, enum ending ending)
{
	struct rdma_event_channel *events = rdma_create_event_channel();
	uint16_t port;
	struct rdma_cm_id *listener = listen_on_loopback(events, &port);
	struct end end = { 0 };
	double limit = now() + SECONDS;

	CHECK(listener && write(port_to, &port, sizeof port) == sizeof port);
	struct rdma_cm_id *id = expect(events, RDMA_CM_EVENT_CONNECT_REQUEST, NULL);
	end_create(&end, id, one_queue(id->verbs), &setup);
	memset(end.mr->addr, 0, MESSAGES * BYTES);
	if (operations[operation].opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		void *memory = end.mr->addr;

		CHECK(!ibv_dereg_mr(end.mr));
		end.mr = ibv_reg_mr(id->pd, memory, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
		CHECK(end.mr);
	}
	for (int i = 0; operations[operation].receives && i < MESSAGES; i++)
		post_recv(&end, BYTES);
	end_accept(&end);
	expect(events, RDMA_CM_EVENT_ESTABLISHED, NULL);
	volatile char *memory = end.mr->addr;
	for (int got = 0; operations[operation].receives && got < MESSAGES;) {
		struct ibv_wc wc;

		CHECK(now() < limit);
		int count = ibv_poll_cq(end.cqs.recv, 1, &wc);
		CHECK(count >= 0 && (!count || wc.status == IBV_WC_SUCCESS));
		got += count;
	}
	while (operations[operation].opcode == IBV_WR_RDMA_WRITE && !memory[MESSAGES * BYTES - 1])
		CHECK(now() < limit);
	while (operations[operation].opcode == IBV_WR_ATOMIC_FETCH_AND_ADD && memory[0] < MESSAGES)
		CHECK(now() < limit);
	end_as(&end, ending);
}

static void post(struct end *end, size_t operation, struct remote to, int i)
{
	struct ibv_sge sge = { .addr = (uintptr_t)end->mr->addr, .length = BYTES, .lkey = end->mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = operations[operation].opcode, .send_flags = IBV_SEND_SIGNALED,
	}, *bad;

	wr.wr.rdma.remote_addr = to.addr;
	wr.wr.rdma.rkey = to.rkey;
	if (wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		sge.length = 8;
		wr.wr.atomic.remote_addr = to.addr;
		wr.wr.atomic.rkey = to.rkey;
		wr.wr.atomic.compare_add = 1;
	} else if (wr.opcode == IBV_WR_RDMA_WRITE) {
		wr.wr.rdma.remote_addr += i * BYTES;
	}
	CHECK(!ibv_post_send(end->id->qp, &wr, &bad));
}

/* Runs one round and returns the number of requests that failed. */
static int round_of(size_t operation, enum ending ending)
{
	int ports[2], failed = 0, status;
	double limit = now() + SECONDS;

	CHECK(!pipe(ports));
	pid_t receiver = fork();
	if (!receiver)
		receive(ports[1], operation, ending);
	close(ports[1]);
	uint16_t port;
	CHECK(read(ports[0], &port, sizeof port) == sizeof port);
	struct rdma_event_channel *events = rdma_create_event_channel();
	struct end end = { 0 };
	struct remote to;
	struct rdma_cm_id *id = resolve(events, port);
	end_create(&end, id, one_queue(id->verbs), &setup);
	memset(end.mr->addr, 1, MESSAGES * BYTES);
	end_connect(&end);
	expect(events, RDMA_CM_EVENT_ESTABLISHED, &to);
	for (int i = 0; i < MESSAGES; i++)
		post(&end, operation, to, i);
	for (int done = 0; done < MESSAGES;) {
		struct ibv_wc wc;
		int count = ibv_poll_cq(end.cqs.send, 1, &wc);

		CHECK(count >= 0 && now() < limit);
		done += count;
		if (count && wc.status != IBV_WC_SUCCESS && !failed++)
			fprintf(stderr, "request %d: %s\n", (int)wc.wr_id, ibv_wc_status_str(wc.status));
	}
	CHECK(waitpid(receiver, &status, 0) == receiver);
	CHECK(ending == KILLED ? WIFSIGNALED(status) : WIFEXITED(status) && !WEXITSTATUS(status));
	rdma_disconnect(id);
	rdma_destroy_qp(id);
	CHECK(!ibv_dereg_mr(end.mr) && !ibv_destroy_cq(end.cqs.send));
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(events);
	close(ports[0]);
	return failed;
}

int main(int argc, char **argv)
{
	int rounds = argc == 2 ? atoi(argv[1]) : 0, bad = 0;

	CHECK(rounds > 0);
	for (size_t operation = 0; operation < sizeof operations / sizeof *operations; operation++)
		for (enum ending ending = 0; ending < ENDINGS; ending++) {
			int failed = 0;

			/* Data that is only visible in memory is known to be acknowledged only if the receiver ends
			 * by DISCONNECT or a later entry. */
			if (!operations[operation].receives && ending < DISCONNECT)
				continue;
			for (int i = 0; i < rounds; i++)
				failed += round_of(operation, ending) > 0;
			if (failed)
				printf("%s, %s: %d of %d rounds\n", operations[operation].name, endings[ending], failed, rounds);
			bad += failed;
		}
	if (!bad)
		printf("all requests succeeded\n");
	return bad ? EXIT_FAILURE : EXIT_SUCCESS;
}
