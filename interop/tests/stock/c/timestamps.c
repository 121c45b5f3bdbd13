/* Tests a completion with a timestamp under valgrind, which hides the vDSO used to read clocks. */
#include "check.h"
#include "ends.h"

static struct queues with_timestamps(struct ibv_context *verbs, void *unused)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = 16, .wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
	};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(verbs, &attr);

	(void)unused;
	CHECK(cq);
	return (struct queues){ ibv_cq_ex_to_cq(cq), ibv_cq_ex_to_cq(cq) };
}

int main(void)
{
	const struct setup setup = { .window = 8, .memory = 64 };
	struct ibv_poll_cq_attr attr = { 0 };
	struct pair pair;

	pair_connect(&pair, &setup, with_timestamps, NULL);
	post_recv(&pair.b, 8);
	post_send(&pair.a, 8);
	struct ibv_cq_ex *cq = (struct ibv_cq_ex *)pair.b.cqs.recv;
	while (ibv_start_poll(cq, &attr) == ENOENT)
		;
	CHECK(cq->status == IBV_WC_SUCCESS && ibv_wc_read_completion_ts(cq) > 0);
	ibv_end_poll(cq);
	printf("a timestamp was read\n");
	return 0;
}
