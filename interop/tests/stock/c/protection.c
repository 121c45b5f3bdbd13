/* Tests registered memory that the program protects with mprotect or pkey_mprotect: the effect
 * on the requests of peers and of the program itself, and a write barrier as used by garbage
 * collectors. Requests complete after the peer has placed the data (UIW_ACK=on). */
#define _GNU_SOURCE
#include "pages.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)
#define BOTH (PROT_READ | PROT_WRITE)

static int protect(void *at, int protection, int key)
{
	return key < 0 ? mprotect(at, LENGTH, protection) : pkey_mprotect(at, LENGTH, protection, key);
}

static void fill(char *at, int seed)
{
	for (size_t i = 0; i < LENGTH; i++)
		at[i] = seed + i * 7;
}

static void check(const char *at, int seed, size_t length)
{
	for (size_t i = 0; i < length; i++)
		CHECK(at[i] == (char)(seed + i * 7));
}

/* A peer reads and writes private memory as if it were not protected. With `key`, a protection
 * key denies every access. */
static void by_a_peer(int protection, int key)
{
	struct pair pair = connected(), refused = connected(), other = connected();
	char *memory = map(BOTH), *local = pair.a.mr->addr;
	struct ibv_mr *mr = ibv_reg_mr(pair.b.id->pd, memory, LENGTH, ALL);
	struct ibv_mr *second = ibv_reg_mr(refused.b.id->pd, memory, LENGTH, ALL);
	struct ibv_mr *third = ibv_reg_mr(other.b.id->pd, memory, LENGTH, ALL);

	CHECK(mr && second && third);
	fill(memory, 1);
	CHECK(!protect(memory, protection, key));
	CHECK(request(&pair, IBV_WR_RDMA_READ, mr, 0, LENGTH) == IBV_WC_SUCCESS);
	check(local, 1, LENGTH);
	fill(local, 2);
	CHECK(request(&pair, IBV_WR_RDMA_WRITE, mr, 0, LENGTH) == IBV_WC_SUCCESS);
	/* The access also works across the boundary of two pages. */
	CHECK(request(&pair, IBV_WR_RDMA_WRITE, mr, PAGE - 3, 6) == IBV_WC_SUCCESS);
	CHECK(request(&pair, IBV_WR_RDMA_READ, mr, PAGE - 3, 6) == IBV_WC_SUCCESS);
	check(local, 2, 6);
	/* Two copies are not an atomic operation, so the request is refused. */
	CHECK(request(&refused, IBV_WR_ATOMIC_FETCH_AND_ADD, second, 0, 8) != IBV_WC_SUCCESS);
	CHECK(!protect(memory, BOTH, key < 0 ? -1 : 0));
	check(memory, 2, PAGE - 3);
	CHECK(!memcmp(memory + PAGE - 3, local, 6));
	CHECK(request(&other, IBV_WR_ATOMIC_FETCH_AND_ADD, third, 8, 8) == IBV_WC_SUCCESS);
	CHECK(request(&other, IBV_WR_RDMA_WRITE, third, 0, LENGTH) == IBV_WC_SUCCESS);
	CHECK(!ibv_dereg_mr(mr) && !ibv_dereg_mr(second) && !ibv_dereg_mr(third));
	CHECK(!munmap(memory, LENGTH));
}

/* Tests sources and sinks of the program's own requests. Sends of a few bytes are copied; others
 * are sent directly from the memory. */
static void by_itself(int protection)
{
	const unsigned sizes[] = { 64, 3 * PAGE, LENGTH };

	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		struct pair pair = connected();
		char *memory[] = { map(BOTH), map(BOTH) };
		struct ibv_mr *from = ibv_reg_mr(pair.a.id->pd, memory[0], LENGTH, IBV_ACCESS_LOCAL_WRITE);
		struct ibv_mr *to = ibv_reg_mr(pair.b.id->pd, memory[1], LENGTH, IBV_ACCESS_LOCAL_WRITE);
		struct ibv_sge source = { .addr = (uintptr_t)memory[0], .length = sizes[i], .lkey = from->lkey };
		struct ibv_sge sink = { .addr = (uintptr_t)memory[1], .length = LENGTH, .lkey = to->lkey };
		struct ibv_recv_wr recv = { .sg_list = &sink, .num_sge = 1 }, *bad_recv;
		struct ibv_send_wr send = { .sg_list = &source, .num_sge = 1, .opcode = IBV_WR_SEND,
					    .send_flags = IBV_SEND_SIGNALED }, *bad;

		fill(memory[0], 3);
		CHECK(!protect(memory[0], protection, -1) && !protect(memory[1], protection, -1));
		CHECK(!ibv_post_recv(pair.b.id->qp, &recv, &bad_recv));
		CHECK(!ibv_post_send(pair.a.id->qp, &send, &bad));
		CHECK(completion(&pair.a) == IBV_WC_SUCCESS && completion(&pair.b) == IBV_WC_SUCCESS);
		CHECK(!protect(memory[1], PROT_READ, -1));
		check(memory[1], 3, sizes[i]);
		CHECK(!ibv_dereg_mr(from) && !ibv_dereg_mr(to));
		CHECK(!munmap(memory[0], LENGTH) && !munmap(memory[1], LENGTH));
	}
}

static atomic_bool done;

static void *toggle_protection(void *at)
{
	while (!atomic_load(&done))
		CHECK(!mprotect(at, LENGTH, PROT_NONE) && !mprotect(at, LENGTH, BOTH));
	return NULL;
}

/* Access rights change during copies and system calls. */
static void while_protections_change(void)
{
	struct pair pair = connected(), other = connected();
	char *memory = map(BOTH);
	struct ibv_mr *from = ibv_reg_mr(pair.a.id->pd, memory, LENGTH, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *mr = ibv_reg_mr(other.b.id->pd, memory, LENGTH, ALL);
	struct ibv_sge source = { .addr = (uintptr_t)memory, .length = LENGTH, .lkey = from->lkey };
	struct ibv_send_wr send = { .sg_list = &source, .num_sge = 1, .opcode = IBV_WR_SEND,
				    .send_flags = IBV_SEND_SIGNALED }, *bad;
	pthread_t thread;

	CHECK(mr);
	fill(memory, 6);
	atomic_store(&done, false);
	CHECK(!pthread_create(&thread, NULL, toggle_protection, memory));
	for (int i = 0; i < 300; i++) {
		post_recv(&pair.b, LENGTH);
		CHECK(!ibv_post_send(pair.a.id->qp, &send, &bad));
		CHECK(completion(&pair.a) == IBV_WC_SUCCESS && completion(&pair.b) == IBV_WC_SUCCESS);
		check(pair.b.mr->addr, 6, LENGTH);
		CHECK(request(&other, IBV_WR_RDMA_READ, mr, 0, LENGTH) == IBV_WC_SUCCESS);
		check(other.a.mr->addr, 6, LENGTH);
		CHECK(request(&other, IBV_WR_RDMA_WRITE, mr, 0, LENGTH) == IBV_WC_SUCCESS);
	}
	atomic_store(&done, true);
	CHECK(!pthread_join(thread, NULL));
	CHECK(!ibv_dereg_mr(from) && !ibv_dereg_mr(mr));
}

/* The kernel does not write to a shared mapping that the program may not write. */
static void shared(void)
{
	struct pair pair = connected(), other = connected();
	char *memory = mmap(NULL, LENGTH, BOTH, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr = ibv_reg_mr(pair.b.id->pd, memory, LENGTH, ALL);
	struct ibv_mr *second = ibv_reg_mr(other.b.id->pd, memory, LENGTH, ALL);

	CHECK(memory != MAP_FAILED && mr && second);
	fill(memory, 4);
	CHECK(!mprotect(memory, LENGTH, PROT_NONE));
	CHECK(request(&pair, IBV_WR_RDMA_READ, mr, 0, LENGTH) == IBV_WC_SUCCESS);
	check(pair.a.mr->addr, 4, LENGTH);
	CHECK(request(&pair, IBV_WR_RDMA_WRITE, mr, 0, LENGTH) != IBV_WC_SUCCESS);
	CHECK(!mprotect(memory, LENGTH, BOTH));
	check(memory, 4, LENGTH);
	CHECK(request(&other, IBV_WR_RDMA_WRITE, second, 0, LENGTH) == IBV_WC_SUCCESS);
	CHECK(!ibv_dereg_mr(mr) && !ibv_dereg_mr(second));
}

/* Unmapped memory is gone, whether or not it was protected. */
static void unmapped(void)
{
	struct pair pair = connected();
	char *memory = map(BOTH), *again;
	struct ibv_mr *mr = ibv_reg_mr(pair.b.id->pd, memory, LENGTH, ALL);

	CHECK(mr && !mprotect(memory, LENGTH, PROT_NONE) && !munmap(memory, LENGTH));
	again = mmap(memory, LENGTH, BOTH, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	CHECK(again == memory);
	fill(memory, 5);
	CHECK(!mprotect(memory, LENGTH, PROT_READ));
	CHECK(request(&pair, IBV_WR_RDMA_WRITE, mr, 0, LENGTH) != IBV_WC_SUCCESS);
	check(memory, 5, LENGTH);
	CHECK(!ibv_dereg_mr(mr));
}

/* Heap with a write barrier: when the program writes to a protected page, the page is marked
 * dirty and made writable. */
static char *heap;
static volatile sig_atomic_t dirty[PAGES];
static atomic_int barriers;

static void on_barrier(int number, siginfo_t *info, void *context)
{
	size_t page = ((char *)info->si_addr - heap) / PAGE;

	(void)number;
	(void)context;
	if ((char *)info->si_addr < heap || page >= PAGES)
		_exit(3);
	dirty[page] = 1;
	barriers++;
	if (mprotect(heap + page * PAGE, PAGE, BOTH))
		_exit(4);
}

/* Writes to the second half of each page. Between two writes to a page, the collector sets at
 * least one barrier. */
static void *mutate(void *unused)
{
	(void)unused;
	for (unsigned i = 0; !atomic_load(&done); i++) {
		volatile char *at = heap + i % PAGES * PAGE + PAGE / 2 + i % (PAGE / 2);

		*at = i;
	}
	return NULL;
}

static void write_barrier(void)
{
	struct pair pair = connected();
	struct sigaction action = { .sa_sigaction = on_barrier, .sa_flags = SA_SIGINFO };
	struct ibv_mr *mr;
	pthread_t thread;
	int before;

	heap = map(BOTH);
	CHECK((mr = ibv_reg_mr(pair.b.id->pd, heap, LENGTH, ALL)));
	CHECK(!sigaction(SIGSEGV, &action, NULL));
	CHECK(!mprotect(heap, LENGTH, PROT_READ));
	/* The Write of a peer does not count as a write of the program. */
	CHECK(request(&pair, IBV_WR_RDMA_WRITE, mr, 3 * PAGE, PAGE) == IBV_WC_SUCCESS);
	CHECK(!barriers && heap[3 * PAGE] == 0x5A && heap[4 * PAGE - 1] == 0x5A);
	heap[5 * PAGE] = 1;
	CHECK(barriers == 1 && dirty[5] && !dirty[3]);
	/* The Write covers pages with and without the barrier. */
	CHECK(request(&pair, IBV_WR_RDMA_WRITE, mr, 0, LENGTH) == IBV_WC_SUCCESS);
	CHECK(barriers == 1 && heap[0] == 0x5A && heap[5 * PAGE] == 0x5A && heap[LENGTH - 1] == 0x5A);
	/* A collector sets the barrier repeatedly while the program and the peer write. */
	atomic_store(&done, false);
	CHECK(!pthread_create(&thread, NULL, mutate, NULL));
	before = barriers;
	for (int i = 0; i < 500 || barriers < before + 50; i++) {
		char *source = pair.a.mr->addr;

		CHECK(!mprotect(heap, LENGTH, PROT_READ));
		memset(source, i, PAGE / 2);
		CHECK(request(&pair, IBV_WR_RDMA_WRITE, mr, i % PAGES * PAGE, PAGE / 2) == IBV_WC_SUCCESS);
		CHECK(!memcmp(heap + i % PAGES * PAGE, source, PAGE / 2));
	}
	atomic_store(&done, true);
	CHECK(!pthread_join(thread, NULL));
	CHECK(signal(SIGSEGV, SIG_DFL) != SIG_ERR);
	CHECK(!ibv_dereg_mr(mr));
}

int main(void)
{
	int key = pkey_alloc(0, PKEY_DISABLE_ACCESS);

	by_a_peer(PROT_READ, -1);
	by_a_peer(PROT_NONE, -1);
	/* The processor supports protection keys. */
	if (key >= 0)
		by_a_peer(BOTH, key);
	by_itself(PROT_NONE);
	while_protections_change();
	shared();
	unmapped();
	write_barrier();
	printf("protected memory is as it should be\n");
	return EXIT_SUCCESS;
}
